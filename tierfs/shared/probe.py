"""What a file system must be able to do to be a shared tier, tried out."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tierfs.errors import TierError
from tierfs.osio import OS, RENAME_EXCHANGE, RENAME_NOREPLACE
from tierfs.shared import layout

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_OTHER_USER = 1
_LONGEST_TARGET = 4095
"""Of a symbolic link, by the kernel (PATH_MAX)."""
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Abilities:
    """What file systems differ in.

    Attributes:
        can_exchange: RENAME_EXCHANGE works; without it a checkpoint that is saved over another is
            missing for a moment.
        target_bytes: the longest target of a symbolic link (XFS: 1023).
    """

    can_exchange: bool = True
    target_bytes: int = _LONGEST_TARGET


def probe(system: OS, root: Path, root_fd: int, member: str) -> Abilities:
    """Raise TierError if the file system of `root` lacks what tierfs needs of it.

    Works in a hidden directory that is removed again; by the next sweep
    if the process dies.
    """
    if system.statvfs("probe.statvfs", root_fd).f_flag & os.ST_RDONLY:
        raise TierError(f"shared tier {root} is mounted read-only: mount it read-write")
    name = layout.probe_prefix(member) + secrets.token_hex(4).encode()
    try:
        system.mkdir_at("probe.mkdir", root_fd, name, 0o700)
    except OSError as error:
        hint = " (is root squashed there?)" if error.errno in _NOT_WRITABLE else ""
        raise TierError(f"shared tier {root} is not writable: {error.strerror}{hint}") from None
    try:
        directory = system.open_at("probe.open", root_fd, name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _try_all(system, root, directory)
        finally:
            for entry in layout.PROBE_FILES:
                _quietly(system.unlink_at, "probe.unlink", directory, entry)
            system.close("probe.close", directory)
    finally:
        _quietly(system.rmdir_at, "probe.rmdir", root_fd, name)


def _try_all(system: OS, root: Path, directory: int) -> Abilities:
    first = system.open_at("probe.create", directory, b"a", _CREATE, 0o600)
    second = system.open_at("probe.create", directory, b"b", _CREATE, 0o600)
    try:
        _try_owner(system, root, first)
        _need(root, "fsync", system.fsync, "probe.fsync", first)
        _need(root, "fsync of directories", system.fsync_dir, "probe.fsync_dir", directory)
        xattr = b"user.tierfs.probe", b"1"
        _need(root, "user xattrs", system.set_xattr, "probe.xattr", first, *xattr)
        _try_renames(system, root, directory, system.fstat("probe.stat", first).st_ino)
        return Abilities(_can_exchange(system, directory), _target_bytes(system, directory))
    finally:
        system.close("probe.close", first)
        system.close("probe.close", second)


def _try_owner(system: OS, root: Path, fd: int) -> None:
    squashed = TierError(
        f"shared tier {root} squashes root: files that root makes or gives away are not owned as "
        f"asked; export it with no_root_squash"
    )
    if system.fstat("probe.stat", fd).st_uid != os.geteuid():
        raise squashed
    try:
        system.fchown("probe.chown", fd, _OTHER_USER, _OTHER_USER)
    except PermissionError:
        raise squashed from None
    st = system.fstat("probe.stat", fd)
    if (st.st_uid, st.st_gid) != (_OTHER_USER, _OTHER_USER):
        raise squashed


def _try_renames(system: OS, root: Path, directory: int, inode: int) -> None:
    try:
        system.rename_at("probe.noreplace", directory, b"a", directory, b"b", RENAME_NOREPLACE)
    except FileExistsError:
        pass
    except OSError as error:
        raise _lacks(root, "RENAME_NOREPLACE", error.strerror) from None
    else:
        raise _lacks(root, "RENAME_NOREPLACE", "it replaced a file")
    names = directory, b"a", directory, b"b"
    _need(root, "rename over a file", system.rename_at, "probe.rename", *names)
    if system.stat_at("probe.stat", directory, b"b").st_ino != inode:
        raise _lacks(root, "atomic rename", "the file has another inode after it")


def _can_exchange(system: OS, directory: int) -> bool:
    names = directory, b"b", directory, b"a"
    try:
        fd = system.open_at("probe.create", directory, b"a", _CREATE, 0o600)
        system.close("probe.close", fd)
        system.rename_at("probe.exchange", *names, RENAME_EXCHANGE)
    except OSError:
        return False
    return True


def _target_bytes(system: OS, directory: int) -> int:
    """The length of the longest target that is taken, by halves."""
    sure, refused = 0, _LONGEST_TARGET + 1
    length = _LONGEST_TARGET
    while refused - sure > 1:
        try:
            system.symlink_at("probe.symlink", directory, b"c", b"t" * length)
        except OSError:
            refused = length
        else:
            sure = length
            system.unlink_at("probe.unlink", directory, b"c")
        length = (sure + refused) // 2
    return sure


def _need(root: Path, ability: str, call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except OSError as error:
        raise _lacks(root, ability, error.strerror) from None


def _lacks(root: Path, ability: str, reason: str | None) -> TierError:
    return TierError(
        f"the file system of shared tier {root} cannot do {ability} ({reason}): use one that can"
    )


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except OSError:
        return
