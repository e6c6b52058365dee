"""``tierfs verify``: read the shared tier again and compare with the digests recorded there."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from tierfs.cli import output
from tierfs.config.units import format_size
from tierfs.control.discovery import find_mount, read_session
from tierfs.errors import TierfsError
from tierfs.osio import OS

DIFFERS = 3
"""Exit code when a file differs or cannot be read."""

_BATCH = 256  # files in hand at once: a tree may have millions


@dataclass(frozen=True, slots=True)
class Verdict:
    """What reading one file again showed; `problem` is None of a file that is as recorded."""

    path: str
    size: int
    has_digest: bool
    problem: str | None = None


@dataclass(slots=True)
class Report:
    """Counts over all files, and the verdicts on those with a problem."""

    verified_files: int = 0
    verified_bytes: int = 0
    without_digest: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count one more file."""
        if verdict.problem is not None:
            self.problems.append({"path": verdict.path, "problem": verdict.problem})
        elif not verdict.has_digest:
            self.without_digest += 1
        else:
            self.verified_files += 1
            self.verified_bytes += verdict.size


@click.command()
@click.argument("path", required=False)
@click.option(
    "--shared",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory of the shared tier; needs no mount. PATH is then relative to it.",
)
@output.json_option
def verify(path: str | None, shared: Path | None) -> int:
    """Read the files under PATH (default: all) on the shared tier again, and compare.

    Each file that tierfs committed carries the digest that was verified then. Exit code 3 if one
    differs or cannot be read; files without a digest are counted. Reads past the page cache.
    """
    root, start = _where(path, shared)
    report = Report()
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        files = _files(root, start)
        while batch := list(itertools.islice(files, _BATCH)):
            for verdict in pool.map(_judge, batch):
                report.add(verdict)
    exit_code = DIFFERS if report.problems else 0
    if output.wants_json():
        output.emit({**asdict(report), "exit_code": exit_code})
    else:
        _print(report)
    return exit_code


def _print(report: Report) -> None:
    for problem in report.problems:
        output.say(f"{problem['path']}: {problem['problem']}")
    size = format_size(report.verified_bytes)
    output.say(
        f"{report.verified_files} files ({size}) as recorded, {len(report.problems)} not, "
        f"{report.without_digest} without a digest"
    )


def _where(path: str | None, shared: Path | None) -> tuple[str, str]:
    """The root of the shared tier, and where in it to start.

    Raises:
        TierfsError: no mount, or nothing of that name on the shared tier.
    """
    if shared is None:
        mountpoint, inside = find_mount(path)
        root = read_session(mountpoint).shared
        relative = os.path.relpath(inside, mountpoint)
    else:
        root, relative = str(shared), path or "."
    start = os.path.normpath(os.path.join(root, relative))
    if not os.path.lexists(start):
        raise TierfsError(f"{start}: not on the shared tier (or not committed yet: tierfs locate)")
    return root, start


def _files(root: str, start: str) -> Iterator[str]:
    """The regular files at or under `start`, without what is tierfs' own."""
    # Here: the shared room loads trio, which no other command needs.
    from tierfs.shared.layout import hidden

    def failed(error: OSError) -> None:
        raise TierfsError(f"{error.filename}: {error.strerror}; verifying all needs root")

    if not os.path.isdir(start) or os.path.islink(start):
        yield start
        return
    for folder, folders, names in os.walk(start, onerror=failed):
        here = b"" if folder == root else os.fsencode(os.path.relpath(folder, root))
        folders[:] = sorted(f for f in folders if not hidden(here, os.fsencode(f)))
        yield from (
            os.path.join(folder, name) for name in names if not hidden(here, os.fsencode(name))
        )


def _judge(path: str) -> Verdict:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # Symlinks, sockets and what was removed since the listing: nothing to verify.
        gone = error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT)
        return Verdict(path, 0, False, None if gone else error.strerror)
    try:
        return _compare(path, descriptor)
    except OSError as error:
        return Verdict(path, 0, True, f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def _compare(path: str, descriptor: int) -> Verdict:
    from tierfs.shared.digest import digest_kind, digest_of_file
    from tierfs.shared.layout import XATTR_DIGEST

    size = os.fstat(descriptor).st_size
    try:
        recorded = os.getxattr(descriptor, XATTR_DIGEST).decode(errors="replace")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return Verdict(path, size, False)
    try:
        kind = digest_kind(recorded)
    except ValueError as error:
        return Verdict(path, size, True, str(error))
    system = OS()
    system.drop_cache("verify.drop", descriptor, 0, size)
    found = digest_of_file(system, descriptor, kind)
    if found == recorded:
        return Verdict(path, size, True)
    return Verdict(
        path, size, True, f"damaged or changed outside tierfs: recorded {recorded}, found {found}"
    )
