"""Descriptors: content, size, holes, attributes, and making all of it durable."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from tierfs.osio import libc
from tierfs.osio.labels import Labelled, labelled

_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ETXTBSY}
)


R = TypeVar("R")


def through(call: Callable[[int | str], R], fd: int) -> R:
    """`call` on `fd`, or on its path in /proc where it is an O_PATH descriptor.

    Those, the only ones that fifos, sockets and symlinks have, are refused with EBADF.
    """
    try:
        return call(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return call(f"/proc/self/fd/{fd}")


class Data(Labelled):
    """Calls on descriptors. Attributes can be set through O_PATH descriptors too."""

    @labelled
    def fstat(self, step: str, fd: int) -> os.stat_result:
        """Attributes of `fd`."""
        return os.fstat(fd)

    @labelled
    def project(self, step: str, fd: int) -> tuple[int, bool]:
        """The project of `fd`, and whether what is made in it gets the same; (0, False) if none."""
        try:
            found = fcntl.ioctl(fd, libc.FS_IOC_FSGETXATTR, bytes(libc.FSXATTR.size))
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS):
                return 0, False
            raise
        flags, _, _, project = libc.FSXATTR.unpack(found)
        return project, bool(flags & libc.FS_XFLAG_PROJINHERIT)

    @labelled
    def pread_into(self, step: str, fd: int, buffer: bytearray | memoryview, offset: int) -> int:
        """Read once at `offset` into `buffer`; the number of bytes, 0 at the end of the file."""
        return os.preadv(fd, [buffer], offset)

    @labelled
    def pread(self, step: str, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; short only at the end of the file."""
        return os.pread(fd, size, offset)

    @labelled
    def pwrite_all(
        self, step: str, fd: int, data: bytes | bytearray | memoryview, offset: int
    ) -> None:
        """Write all of `data` at `offset`, in as many calls as that takes."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            allowed = self._allowed(step, len(view) - done)
            done += os.pwrite(fd, view[done : done + allowed], offset + done)

    @labelled
    def fsync(self, step: str, fd: int) -> None:
        """fsync(2) of a file."""
        os.fsync(fd)

    @labelled
    def fsync_dir(self, step: str, fd: int) -> None:
        """fsync(2) of a directory: its entries are durable then."""
        os.fsync(fd)

    @labelled
    def fdatasync(self, step: str, fd: int) -> None:
        """fdatasync(2)."""
        os.fdatasync(fd)

    @labelled
    def syncfs(self, step: str, fd: int) -> None:
        """Write out everything dirty of the file system that `fd` is on."""
        libc.syncfs(fd)

    @labelled
    def ftruncate(self, step: str, fd: int, size: int) -> None:
        """Set the size to `size` bytes."""
        os.ftruncate(fd, size)

    @labelled
    def fallocate(self, step: str, fd: int, offset: int, length: int, mode: int = 0) -> None:
        """Reserve, punch or zero (`mode`: FALLOC_FL_*) `length` bytes; EOPNOTSUPP where it cannot.

        Never emulated by writing.
        """
        libc.fallocate(fd, mode, offset, length)

    def data_ranges(
        self, step: str, fd: int, size: int, start: int = 0
    ) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the parts between `start` and `size` that hold data.

        One piece at a time: a file with a million holes costs no memory. Where the file system
        knows no holes, the whole file is one piece.
        """
        position = start
        while position < size:
            piece = self._next_data(step, fd, position, size)
            if piece is None:
                return
            yield piece
            position = piece[1]

    @labelled
    def _next_data(self, step: str, fd: int, position: int, size: int) -> tuple[int, int] | None:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return None
            if error.errno == errno.EINVAL:  # the file system cannot tell
                return position, size
            raise
        if start >= size:
            return None
        return start, min(os.lseek(fd, start, os.SEEK_HOLE), size)

    @labelled
    def clone(self, step: str, src_fd: int, dst_fd: int) -> bool:
        """Make `dst_fd` share all content of `src_fd` (FICLONE). False: not possible here."""
        try:
            fcntl.ioctl(dst_fd, libc.FICLONE, src_fd)
        except OSError as error:
            if error.errno in _NO_CLONE:
                return False
            raise
        return True

    @labelled
    def drop_cache(self, step: str, fd: int, offset: int, length: int) -> None:
        """Take clean pages of the range out of the page cache; advice, not a guarantee."""
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    @labelled
    def lock_exclusive(self, step: str, fd: int) -> bool:
        """Lock the file until its descriptor is closed. False: another process has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @labelled
    def has_no_writer(self, step: str, fd: int) -> bool:
        """Whether nobody has the file open for writing or mapped writable; `fd` is read-only.

        A read lease tells (fcntl(2), F_SETLEASE): it is granted only then, and given back at once.
        """
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    @labelled
    def is_alone(self, step: str, fd: int) -> bool:
        """Whether nobody else has the file open or mapped: a write lease tells, as above."""
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    @labelled
    def reopen(self, step: str, fd: int, flags: int) -> int:
        """Open the file of `fd` anew, also when it has no name."""
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)

    @labelled
    def replace(self, step: str, fd: int, number: int) -> None:
        """Let the number `number`, an open descriptor, stand for the file of `fd` (dup3(2)).

        At once: a call under way with that number ends on the file that it began with.
        """
        os.dup2(fd, number, inheritable=False)

    @labelled
    def open_nothing(self, step: str) -> int:
        """A descriptor that leads nowhere: no name is found below it."""
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @labelled
    def seek(self, step: str, fd: int, offset: int, whence: int) -> int:
        """lseek(2) with SEEK_DATA or SEEK_HOLE. ENXIO when there is nothing from `offset` on."""
        return os.lseek(fd, offset, whence)

    @labelled
    def copy_range(
        self, step: str, source: int, target: int, size: int, offset: int, target_offset: int
    ) -> int:
        """copy_file_range(2): shares blocks where the file system can; the bytes copied.

        EXDEV between file systems.
        """
        return os.copy_file_range(source, target, size, offset, target_offset)

    @labelled
    def fchown(self, step: str, fd: int, uid: int, gid: int) -> None:
        """Set the owner; -1 leaves one as it is. Clears setuid and setgid: chmod comes after."""
        through(lambda file: os.chown(file, uid, gid), fd)

    @labelled
    def fchmod(self, step: str, fd: int, mode: int) -> None:
        """Set the permission bits, setuid, setgid and sticky included."""
        through(lambda file: os.chmod(file, mode), fd)

    @labelled
    def utime_fd(self, step: str, fd: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Set the times in ns since the epoch; None leaves one as it is."""
        atime, mtime = libc.Timespec.of(atime_ns), libc.Timespec.of(mtime_ns)
        libc.utimensat(libc.AT_FDCWD, b"/proc/self/fd/%d" % fd, 0, atime, mtime)
