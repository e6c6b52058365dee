"""Names: opening, listing, making, renaming and removing, always relative to a directory."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from tierfs.model import Kind
from tierfs.osio import libc
from tierfs.osio.labels import Labelled, labelled

_BENEATH = libc.RESOLVE_BENEATH | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_NO_MAGICLINKS
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
_MISSING_CALL = frozenset({errno.ENOSYS, errno.EPERM})
_PATH_MAX = 4096
_RETRIES = 8


class DirItem(NamedTuple):
    """One entry of a directory."""

    name: bytes
    kind: Kind
    inode: int


Seen = tuple[Kind, int]
"""Kind and inode of an entry, as a directory tells them."""

_FILE = Kind.FILE


class Paths(Labelled):
    """Calls on names. `dirfd` is a descriptor of a directory, `name` one component below it."""

    @labelled
    def open_root(self, step: str, path: str | bytes) -> int:
        """Open the directory `path` of the configuration; symlinks in it are followed."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @labelled
    def open_beneath(self, step: str, dirfd: int, path: bytes, flags: int, mode: int = 0) -> int:
        """Open `path` (b"" is `dirfd` itself) below `dirfd` and never through a symlink.

        Raises ELOOP for a symlink on the way and EXDEV for a path that leaves `dirfd`.
        """
        retries = _RETRIES if len(path) < _PATH_MAX else 0  # longer ones no call takes
        for _ in range(retries):
            try:
                return libc.openat2(dirfd, path or b".", flags, mode, _BENEATH)
            except OSError as error:
                if error.errno in _MISSING_CALL:
                    return _walk_beneath(dirfd, path, flags, mode)
                # A rename somewhere on the way while the kernel walked: it asks to be called again.
                if error.errno != errno.EAGAIN:
                    raise
        return _walk_beneath(dirfd, path, flags, mode)

    @labelled
    def open_at(self, step: str, dirfd: int, name: bytes, flags: int, mode: int = 0) -> int:
        """Open the entry `name`, never through a symlink."""
        return os.open(name, flags | _ALWAYS, mode, dir_fd=dirfd)

    @labelled
    def close(self, step: str, fd: int) -> None:
        """Close `fd`."""
        os.close(fd)

    @labelled
    def stat_at(self, step: str, dirfd: int, name: bytes) -> os.stat_result:
        """Attributes of the entry `name` itself, also if it is a symlink."""
        return os.stat(name, dir_fd=dirfd, follow_symlinks=False)

    @labelled
    def rename_at(
        self, step: str, dirfd: int, name: bytes, dirfd2: int, name2: bytes, flags: int = 0
    ) -> None:
        """Rename (dirfd, name) to (dirfd2, name2); flags of renameat2(2)."""
        if flags:
            libc.renameat2(dirfd, name, dirfd2, name2, flags)
        else:
            os.rename(name, name2, src_dir_fd=dirfd, dst_dir_fd=dirfd2)

    @labelled
    def unlink_at(self, step: str, dirfd: int, name: bytes) -> None:
        """Remove the entry `name`, which is no directory."""
        os.unlink(name, dir_fd=dirfd)

    @labelled
    def rmdir_at(self, step: str, dirfd: int, name: bytes) -> None:
        """Remove the empty directory `name`."""
        os.rmdir(name, dir_fd=dirfd)

    @labelled
    def mkdir_at(self, step: str, dirfd: int, name: bytes, mode: int) -> None:
        """Make the directory `name`; the process' umask applies."""
        os.mkdir(name, mode, dir_fd=dirfd)

    @labelled
    def symlink_at(self, step: str, dirfd: int, name: bytes, target: bytes) -> None:
        """Make the symlink `name` that leads to `target`."""
        os.symlink(target, name, dir_fd=dirfd)

    @labelled
    def readlink_at(self, step: str, dirfd: int, name: bytes) -> bytes:
        """The target of the symlink `name`."""
        return os.readlink(name, dir_fd=dirfd)

    @labelled
    def link_at(self, step: str, dirfd: int, name: bytes, dirfd2: int, name2: bytes) -> None:
        """Give the entry (dirfd, name) the further name (dirfd2, name2)."""
        os.link(name, name2, src_dir_fd=dirfd, dst_dir_fd=dirfd2, follow_symlinks=False)

    @labelled
    def list_dir(self, step: str, fd: int) -> list[DirItem]:
        """All entries of the directory `fd` but ``.`` and ``..``, in the order of the disk."""
        return [DirItem(name, *seen) for name, seen in _entries(fd).items()]

    @labelled
    def scan_dir(self, step: str, fd: int) -> dict[bytes, Seen]:
        """As `list_dir`, by name: for directories that may hold millions."""
        return _entries(fd)

    @labelled
    def chown_at(self, step: str, dirfd: int, name: bytes, uid: int, gid: int) -> None:
        """Set the owner of the entry itself, also of a symlink; -1 leaves one as it is."""
        os.chown(name, uid, gid, dir_fd=dirfd, follow_symlinks=False)

    @labelled
    def utime_at(
        self, step: str, dirfd: int, name: bytes, atime_ns: int | None, mtime_ns: int | None
    ) -> None:
        """Set the times of the entry itself, also of a symlink; None leaves one as it is."""
        atime, mtime = libc.Timespec.of(atime_ns), libc.Timespec.of(mtime_ns)
        libc.utimensat(dirfd, name, libc.AT_SYMLINK_NOFOLLOW, atime, mtime)


def _entries(fd: int) -> dict[bytes, Seen]:
    try:
        # By its path: then names come as bytes. No function of Python is called for a file.
        with os.scandir(b"/proc/self/fd/%d" % fd) as entries:
            return {
                e.name: (_FILE if e.is_file(follow_symlinks=False) else _kind(e), e.inode())
                for e in entries
            }
    except OSError as error:
        error.filename = None  # the seam has a better name for it
        raise


def _kind(entry: os.DirEntry[bytes]) -> Kind:
    """Of what is no file."""
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    if entry.is_symlink():
        return Kind.SYMLINK
    try:
        return Kind.of_mode(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:  # removed since the directory was read
        return Kind.OTHER


def _walk_beneath(dirfd: int, path: bytes, flags: int, mode: int) -> int:
    """What openat2 does, component by component: without it, and for paths that are too long."""
    names = [part for part in path.split(b"/") if part not in (b"", b".")] or [b"."]
    if path.startswith(b"/") or b".." in names:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    current = dirfd
    try:
        for name in names[:-1]:
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | _ALWAYS, dir_fd=current)
            if current != dirfd:
                os.close(current)
            current = below
        return os.open(names[-1], flags | _ALWAYS, mode, dir_fd=current)
    except OSError as error:
        error.filename = path
        raise
    finally:
        if current != dirfd:
            os.close(current)
