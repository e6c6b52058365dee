"""The mount point: what is on it, mounting over a dead tierfs mount, unmounting."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
from pathlib import Path

from tierfs.errors import TierError

log = logging.getLogger(__name__)

READ_AHEAD_KIB = 1024

MNT_DETACH = 2
"""umount2(2)."""

FUSE_DEVICE = os.makedev(10, 229)
"""/dev/fuse; Documentation/admin-guide/devices.txt of the kernel."""

_libc = ctypes.CDLL(None, use_errno=True)


def umount(mountpoint: str, *, detach: bool = False) -> None:
    """umount2(2). OSError: EBUSY when something is open in it and `detach` is not set."""
    if _libc.umount2(os.fsencode(mountpoint), MNT_DETACH if detach else 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), mountpoint)


def type_mounted_at(mountpoint: str) -> str | None:
    """The type of the file system mounted on `mountpoint`, None if none is."""
    found = _mounted_at(mountpoint)
    return found[1] if found is not None else None


def _mounted_at(mountpoint: str) -> tuple[str, str] | None:
    """Device (major:minor) and type of what is mounted on `mountpoint`; proc_pid_mountinfo(5)."""
    found = None
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            before, _, after = line.partition(b" - ")
            fields = before.split(b" ")
            place = fields[4].decode("unicode_escape").encode("latin-1")
            if place == os.fsencode(mountpoint):
                found = fields[2].decode(), after.split(b" ", 1)[0].decode()
    return found


def read_ahead(mountpoint: str) -> None:
    """Has the kernel ask for large pieces of what is read through the daemon.

    128 KiB, its default, makes eight requests of what fits into one. Only speed depends on it.
    """
    found = _mounted_at(mountpoint)
    if found is None:
        return
    setting = Path("/sys/class/bdi", found[0], "read_ahead_kb")
    try:
        setting.write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        log.info("%s stays as it is: %s", setting, error.strerror)


def is_dead_mount(mountpoint: str) -> bool:
    """Whether a tierfs mount whose daemon is gone is there; TierError for any other mount."""
    kind = type_mounted_at(mountpoint)
    if kind is None:
        return False
    if kind != "fuse.tierfs":
        raise TierError(
            f"mount point {mountpoint}: a {kind} file system is mounted there; unmount it first, "
            "or name another directory"
        )
    try:
        os.statvfs(mountpoint)  # stat(2) may be answered by what the kernel remembers
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            return True
        raise
    raise TierError(
        f"mount point {mountpoint}: tierfs is mounted there already; unmount it first "
        f"(tierfs umount {mountpoint})"
    )


def check_mountpoint(mountpoint: str) -> None:
    """Refuses what cannot be mounted on. TierError."""
    try:
        if not Path(mountpoint).is_dir():
            made = Path(mountpoint).exists()
            wrong = "is not a directory; name one" if made else "no such directory; make it first"
            raise TierError(f"mount point {mountpoint}: {wrong}")
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            raise TierError(f"mount point {mountpoint}: {error.strerror}") from None
    if os.geteuid() != 0:
        raise TierError("mounting needs root: run tierfs mount as root")
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        found = os.fstat(fd)
        os.close(fd)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != FUSE_DEVICE:
            raise OSError(errno.ENODEV, "is not the FUSE device")
    except OSError as error:
        hint = "load the fuse module (modprobe fuse)"
        raise TierError(f"/dev/fuse: {error.strerror}; {hint}") from None


def check_overlap(mountpoint: str, local: Path, shared: Path) -> None:
    """Refuses tiers that lie in each other or in the mount point, or it in them. TierError."""
    places = {
        "mount point": Path(os.path.abspath(mountpoint)),
        "local tier": Path(os.path.realpath(local)),
        "shared tier": Path(os.path.realpath(shared)),
    }
    names = list(places)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            one, other = places[first], places[second]
            if one == other or one in other.parents or other in one.parents:
                raise TierError(
                    f"{first} {one} and {second} {other} overlap: give each a directory of its own"
                )
