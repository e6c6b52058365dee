"""``tierfs verify``: read the shared tier again and compare with the digests recorded there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierfs.cli import output
from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount, read_session
from tierfs.errors import TierfsError
from tierfs.osio import OS

if TYPE_CHECKING:
    from tierfs.mend.sealed import ManifestLine

DIFFERS = 3
"""Exit code when a file differs or cannot be read."""

_BATCH = 256  # files in hand at once: a tree may have millions


@dataclass(frozen=True, slots=True)
class Verdict:
    """What reading one file again showed; `problem` is None of a file that is as recorded.

    Attributes:
        expected: the digest that the content should have; None: nothing says so, or the content is
            not what is wrong.
    """

    path: str
    size: int
    expected: str | None
    problem: str | None = None


@dataclass(slots=True)
class Report:
    """Counts over all files, and the verdicts on those with a problem."""

    verified_files: int = 0
    verified_bytes: int = 0
    without_digest: int = 0
    checkpoints: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)
    repaired: list[dict[str, str]] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count one more file that was not repaired."""
        if verdict.problem is not None:
            self.problems.append({"path": verdict.path, "problem": verdict.problem})
        elif verdict.expected is None:
            self.without_digest += 1
        else:
            self.verified_files += 1
            self.verified_bytes += verdict.size


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--shared",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory of the shared tier; needs no mount. Each PATH is then relative to it.",
)
@click.option(
    "--repair",
    "wants_repair",
    is_flag=True,
    help="Put a local copy in the place of each damaged file (root).",
)
@click.option(
    "--local",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="With --shared: the local tier that --repair takes the copies from.",
)
@output.json_option
def verify(
    paths: tuple[str, ...], shared: Path | None, wants_repair: bool, local: Path | None
) -> int:  # fmt: skip
    """Read the files under each PATH (default: all) on the shared tier again, and compare.

    Each file that tierfs committed carries the digest that was verified then, and each sealed
    checkpoint has a list of its files. Reads past the page cache. Exit code 3 if a file differs,
    is missing or cannot be read; files without a digest are counted.

    With --repair a file whose content is not what was recorded is replaced by a copy from the local
    tier that has the recorded content and the same modification time; the damaged one goes to
    quarantine. Exit code 0 if all could be repaired.
    """
    if local is not None and not (wants_repair and shared is not None):
        raise click.UsageError("--local goes with --shared and --repair")
    root, starts, found_local, mountpoint = _where(paths, shared)
    report = Report()
    with contextlib.ExitStack() as stack:
        mend = None
        if wants_repair:
            mend = _mender(stack, root, local or found_local, mountpoint)
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)))
        for start in starts:
            _verify(root, start, pool, report, mend)
    exit_code = DIFFERS if report.problems else 0
    if output.wants_json():
        output.emit({**asdict(report), "exit_code": exit_code})
    else:
        _print(report)
    return exit_code


Mend = Callable[[Verdict], str]
"""Repairs a damaged file and says how. Raises TierfsError with the reason why not."""


def _verify(
    root: str, start: str, pool: ThreadPoolExecutor, report: Report, mend: Mend | None
) -> None:
    walk = Walk(root, report)
    with contextlib.closing(walk):
        files = walk.files(start)
        while batch := list(itertools.islice(files, _BATCH)):
            for verdict in pool.map(_judge, batch):
                if verdict.problem is None or verdict.expected is None or mend is None:
                    report.add(verdict)
                    continue
                try:
                    how = mend(verdict)
                except TierfsError as error:
                    report.add(replace(verdict, problem=f"{verdict.problem}; {error}"))
                else:
                    report.repaired.append({"path": verdict.path, "how": how})


def _mender(
    stack: contextlib.ExitStack, root: str, local: Path | None, mountpoint: str | None
) -> Mend:
    # Here: the room loads trio, which no other command needs.
    from tierfs.mend.repair import repairing

    if local is None:
        raise click.UsageError("--repair with --shared needs --local DIR, to take copies from")
    if os.geteuid() != 0:
        raise TierfsError("repairing needs root (sudo tierfs verify --repair …)")
    repairer = stack.enter_context(repairing(Path(root), local))

    def mend(verdict: Verdict) -> str:
        if mountpoint is not None:
            _check_settled(mountpoint, os.path.relpath(verdict.path, root))
        return repairer.repair(verdict.path, str(verdict.expected))

    return mend


def _check_settled(mountpoint: str, relative: str) -> None:
    """A change that is on its way means the inode that is there now: it must come first.

    Raises:
        TierfsError: something is pending, or the mount has no such name any more.
    """
    path = os.path.join(mountpoint, relative)
    state = call(mountpoint, requests.Locate(path=path))[0]["state"]
    if state != "committed":
        raise TierfsError(f"not repaired: it is {state} in the mount; flush and verify again")


def _print(report: Report) -> None:
    for repaired in report.repaired:
        output.say(f"{repaired['path']}: {repaired['how']}")
    for problem in report.problems:
        output.say(f"{problem['path']}: {problem['problem']}")
    size = format_size(report.verified_bytes)
    output.say(
        f"{report.verified_files} files ({size}) as recorded, {len(report.problems)} not, "
        f"{len(report.repaired)} repaired, {report.without_digest} without a digest, "
        f"{report.checkpoints} checkpoints"
    )


def _where(
    paths: tuple[str, ...], shared: Path | None
) -> tuple[str, list[str], Path | None, str | None]:
    """The root of the shared tier, where in it to start, the local tier, the mount.

    Raises:
        TierfsError: no mount, several, or nothing of a name on the shared tier.
    """
    if shared is None:
        found = [find_mount(path) for path in paths] or [find_mount()]
        if len({mountpoint for mountpoint, _ in found}) > 1:
            raise TierfsError("the paths are of several mounts: verify one after the other")
        mountpoint = found[0][0]
        session = read_session(mountpoint)
        inside = [os.path.relpath(path, mountpoint) for _, path in found]
        return session.shared, _starts(session.shared, inside), Path(session.local), mountpoint
    root = os.path.realpath(shared)
    return root, _starts(root, [*paths] or ["."]), None, None


def _starts(root: str, relative: list[str]) -> list[str]:
    starts = [os.path.normpath(os.path.join(root, path)) for path in relative]
    for start in starts:
        if not os.path.lexists(start):
            raise TierfsError(
                f"{start}: not on the shared tier (or not committed yet: tierfs locate)"
            )
    return starts


Task = Verdict | tuple[str, "ManifestLine | None"]
"""A file to be read, with what the manifest says of it; or what is known without reading."""


class Walk:
    """The regular files of a shared tier, without what is tierfs' own."""

    def __init__(self, root: str, report: Report) -> None:
        from tierfs.mend.sealed import Manifests

        self._root = root
        self._report = report
        self._manifests = Manifests(root)
        self._lines: dict[str, ManifestLine] = {}

    def close(self) -> None:
        """Let go of the tier."""
        self._manifests.close()

    def files(self, start: str) -> Iterator[Task]:
        """What is at or under `start`, and what manifests say should be there."""
        above = os.path.relpath(start, self._root).split(os.sep)[:-1]
        for count in range(len(above)):
            yield from self._look_up(os.path.join(self._root, *above[: count + 1]), start)
        if not os.path.isdir(start) or os.path.islink(start):
            yield start, self._lines.get(start)
            return
        for folder, names in _folders(self._root, start):
            yield from self._look_up(folder, start)
            for name in names:
                path = os.path.join(folder, name)
                yield path, self._lines.pop(path, None)

    def _look_up(self, folder: str, start: str) -> Iterator[Verdict]:
        """Learns what the manifest of a checkpoint says; yields what is missing."""
        try:
            lines = self._manifests.of(folder)
        except PermissionError:
            return  # manifests are for root
        except OSError as error:
            yield Verdict(folder, 0, None, f"its manifest cannot be read: {error.strerror}")
            return
        if lines is None:
            return
        self._report.checkpoints += 1
        for path, line in lines.items():
            if path != start and not path.startswith(start.rstrip("/") + "/"):
                continue
            if (wrong := _missing(path, line)) is None:
                self._lines[path] = line
            else:
                problem = f"{wrong}: the manifest of its checkpoint has it"
                yield Verdict(path, line.size, None, problem)


def _missing(path: str, line: ManifestLine) -> str | None:
    """What is wrong with `path`, which a manifest lists; None: it is there.

    Of what has no digest, symlinks among it, nothing says what it is.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "missing"
    return None if stat.S_ISREG(mode) or line.digest is None else "not a file any more"


def _folders(root: str, start: str) -> Iterator[tuple[str, list[str]]]:
    # Here: the shared room loads trio, which no other command needs.
    from tierfs.shared.layout import hidden

    def failed(error: OSError) -> None:
        raise TierfsError(f"{error.filename}: {error.strerror}; verifying all needs root")

    for folder, folders, names in os.walk(start, onerror=failed):
        here = b"" if folder == root else os.fsencode(os.path.relpath(folder, root))
        folders[:] = sorted(f for f in folders if not hidden(here, os.fsencode(f)))
        yield folder, [name for name in names if not hidden(here, os.fsencode(name))]


def _judge(task: Task) -> Verdict:
    if isinstance(task, Verdict):
        return task
    path, line = task
    listed = line.digest if line is not None else None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # Symlinks, sockets and what was removed since the listing: nothing to verify.
        gone = error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT)
        return Verdict(path, 0, None, None if gone else error.strerror)
    expected = listed
    try:
        recorded = _recorded(descriptor)
        expected = recorded or listed
        size = os.fstat(descriptor).st_size
        if expected is None:
            return Verdict(path, size, None)
        return _compare(path, descriptor, size, expected, line)
    except OSError as error:
        return Verdict(path, 0, expected, f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def _recorded(descriptor: int) -> str | None:
    from tierfs.shared.layout import XATTR_DIGEST

    try:
        return os.getxattr(descriptor, XATTR_DIGEST).decode(errors="replace")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return None


def _compare(
    path: str, descriptor: int, size: int, expected: str, line: ManifestLine | None
) -> Verdict:
    from tierfs.shared.digest import digest_kind, digest_of_file

    try:
        kind = digest_kind(expected)
    except ValueError as error:
        return Verdict(path, size, None, str(error))
    system = OS()
    system.drop_cache("verify.drop", descriptor, 0, size)
    found = digest_of_file(system, descriptor, kind)
    if found != expected:
        problem = f"damaged or changed outside tierfs: recorded {expected}, found {found}"
        return Verdict(path, size, expected, problem)
    if line is None or (line.digest in (None, expected) and line.size == size):
        return Verdict(path, size, expected)
    problem = (
        f"not the file that the manifest of its checkpoint has: that has {line.size} bytes and "
        f"digest {line.digest or 'unknown'}, this {size} and {expected}"
    )
    return Verdict(path, size, None, problem)
