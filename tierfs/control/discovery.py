"""From a path to the daemon that serves it: mount table, runtime directory, session file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tierfs.errors import TierfsError

RUNTIME = Path("/run/tierfs")
"""One directory for each mount; made by ``tierfs mount``, kept when a daemon is killed."""

SESSION_FILE = "session.json"
LOST_FILE = "lost"
SOCKET_NAME = "control"
LOG_NAME = "daemon.log"

_ID_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a daemon says of itself beside its socket; it stays there when the daemon is killed.

    Attributes:
        started: seconds since the epoch.
    """

    mountpoint: str
    local: str
    shared: str
    pid: int
    node: str
    member: str
    started: float
    version: str


class NoMount(TierfsError):
    """No tierfs mount serves the path."""


def mount_id(mountpoint: str) -> str:
    """The name of the runtime directory of `mountpoint` (absolute).

    The escaping is that of ``systemd-escape --path``; a name too long for a directory entry is
    cut and ends in a hash.
    """
    trimmed = "/".join(part for part in mountpoint.split("/") if part)
    if not trimmed:
        return "-"
    escaped = "".join(
        _escape(byte, first=index == 0) for index, byte in enumerate(os.fsencode(trimmed))
    )
    if len(escaped) <= _ID_LIMIT:
        return escaped
    return f"{escaped[:160]}-{hashlib.sha256(os.fsencode(trimmed)).hexdigest()[:32]}"


def session_directory(mountpoint: str) -> Path:
    """The runtime directory of `mountpoint`, whether it is there or not."""
    return RUNTIME / mount_id(mountpoint)


def write_session(directory: Path, session: Session) -> None:
    """Put `session` into `directory` in one step: readers see the old one or the new one."""
    draft = directory / f".{SESSION_FILE}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(session), indent=2) + "\n", encoding="ascii")
    draft.chmod(0o644)
    draft.replace(directory / SESSION_FILE)


def write_lost(directory: Path, paths: Iterable[str]) -> None:
    """Leave the names of what a failed local drive had and nobody else: for root, after us too.

    One a line, after a line with the time; those of an earlier failure are replaced.
    """
    draft = directory / f".{LOST_FILE}.{os.getpid()}"
    lines = [f"# {time.strftime('%Y-%m-%d %H:%M:%S')}: the local drive failed with this pending"]
    text = "\n".join((*lines, *paths)) + "\n"
    draft.touch(mode=0o600)
    draft.write_bytes(os.fsencode(text))
    draft.replace(directory / LOST_FILE)


def remove_session(directory: Path) -> None:
    """Take the session file away: the mount ended in good order. The log stays."""
    (directory / SESSION_FILE).unlink(missing_ok=True)


def read_session(mountpoint: str) -> Session:
    """The session of `mountpoint`.

    Raises:
        NoMount: there is none.
    """
    path = session_directory(mountpoint) / SESSION_FILE
    try:
        return Session(**json.loads(path.read_text(encoding="ascii")))
    except OSError:
        raise NoMount(
            f"{mountpoint}: no tierfs daemon has a session for this mount point"
        ) from None
    except (TypeError, ValueError) as error:
        raise NoMount(f"{path}: not a session file of this version: {error}") from None


def mountpoints() -> list[str]:
    """Where tierfs is mounted as this process sees it, the latest mount last."""
    with open("/proc/self/mountinfo", "rb") as table:
        return [os.fsdecode(found) for line in table if (found := _tierfs_mountpoint(line))]


def find_mount(path: str | None = None, *, follow: bool = False) -> tuple[str, str]:
    """The mount point that holds `path`, and `path` as that mount knows it.

    Without a path: the mount that holds the working directory, else the only one there is; the
    path is then the mount point. `follow`: a symlink stands for what it leads to, as a checkpoint
    is what is asked for, never its link.

    Raises:
        NoMount: none, or several to choose from.
    """
    mounted = mountpoints()
    if path is None:
        mountpoint = _holding(_working_directory(), mounted) or _only(mounted)
        return mountpoint, mountpoint
    for candidate in _spellings(path, mounted, follow=follow):
        if holder := _holding(candidate, mounted):
            return holder, candidate
    raise NoMount(f"{path}: not inside a tierfs mount{_listed(mounted)}")


def _escape(byte: int, *, first: bool) -> str:
    char = chr(byte)
    if char == "/":
        return "-"
    if (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and not first):
        return char
    return f"\\x{byte:02x}"


def _tierfs_mountpoint(line: bytes) -> bytes | None:
    """The mount point in a line of mountinfo (proc_pid_mountinfo(5)) if its type is ours."""
    before, _, after = line.partition(b" - ")
    if after.split(b" ", 1)[0] != b"fuse.tierfs":
        return None
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), before.split(b" ")[4])


def _holding(path: str, mounted: list[str]) -> str | None:
    around = [m for m in mounted if path == m or path.startswith(m.rstrip("/") + "/")]
    return max(around, key=len, default=None)


def _only(mounted: list[str]) -> str:
    distinct = sorted(set(mounted))
    if len(distinct) == 1:
        return distinct[0]
    if not distinct:
        raise NoMount("no tierfs mount here; start one with: tierfs mount MOUNTPOINT …")
    raise NoMount(f"several tierfs mounts: say which one{_listed(mounted)}")


def _listed(mounted: list[str]) -> str:
    return f" (mounted: {', '.join(sorted(set(mounted)))})" if mounted else " (none is mounted)"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, or its mount is dead
        return "/"


def _spellings(path: str, mounted: list[str], *, follow: bool) -> list[str]:
    """The absolute paths that `path` can mean, the likeliest first.

    The mount point itself is recognised without touching the file system, so that commands work
    when the mount does not answer. Without `follow` the last component is not followed: it may be
    a symlink that is to be flushed. Only a path that is outside then may be a symlink to the mount
    point.
    """
    absolute = os.path.abspath(path)
    if absolute in mounted:
        return [absolute]
    if follow:
        return [os.path.realpath(absolute)]
    parent, name = os.path.split(absolute)
    return [os.path.join(os.path.realpath(parent), name), os.path.realpath(absolute)]
