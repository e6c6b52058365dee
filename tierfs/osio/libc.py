"""The calls of the C library and the kernel that the standard library does not offer.

Numbers and structures are those of the Linux headers (asm-generic/unistd.h, linux/openat2.h,
linux/stat.h, linux/fs.h); openat2 is reached by number because Debian 12's glibc has no wrapper.
"""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)

SYS_OPENAT2 = 437
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
FALLOC_FL_ZERO_RANGE = 16
FICLONE = 0x40049409
CLONE_FILES = 0x400
"""linux/sched.h."""
FS_IOC_FSGETXATTR = 0x801C581F
FSXATTR = struct.Struct("=IIII12x")
"""struct fsxattr: flags, extsize, nextents, projid."""
FS_XFLAG_PROJINHERIT = 0x200
STATX_BTIME = 0x800
STATX_MNT_ID = 0x1000
STATX_MNT_ID_UNIQUE = 0x4000
NFS_SUPER_MAGIC = 0x6969
_UTIME_OMIT = (1 << 30) - 2


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class Timespec(ctypes.Structure):
    """struct timespec of a 64-bit machine."""

    _fields_ = (("sec", ctypes.c_int64), ("nsec", ctypes.c_int64))

    sec: int
    nsec: int

    @classmethod
    def of(cls, ns: int | None) -> Timespec:
        """The time `ns` since the epoch; None: leave that time as it is (UTIME_OMIT)."""
        if ns is None:
            return cls(0, _UTIME_OMIT)
        return cls(*divmod(ns, 1_000_000_000))


class _StatxTimestamp(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_int64), ("nsec", ctypes.c_uint32), ("pad", ctypes.c_int32))


class Statx(ctypes.Structure):
    """struct statx (linux/stat.h), as far as it is used; the rest is padding up to 256 bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("_until_times", ctypes.c_uint8 * 60),
        ("atime", _StatxTimestamp),
        ("btime", _StatxTimestamp),
        ("ctime", _StatxTimestamp),
        ("mtime", _StatxTimestamp),
        ("_devices", ctypes.c_uint32 * 4),
        ("mnt_id", ctypes.c_uint64),
        ("_rest", ctypes.c_uint8 * 104),
    )

    mask: int
    mnt_id: int


def _check(result: int, path: bytes | None = None, path2: bytes | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        message = os.strerror(number)
        raise OSError(number, message, path, None, path2)
    return result


def openat2(dirfd: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    """openat2(2)."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    number, size = ctypes.c_long(SYS_OPENAT2), ctypes.c_size_t(ctypes.sizeof(how))
    return _check(_libc.syscall(number, dirfd, path, ctypes.byref(how), size), path)


def renameat2(dirfd: int, name: bytes, dirfd2: int, name2: bytes, flags: int) -> None:
    """renameat2(2)."""
    _check(_libc.renameat2(dirfd, name, dirfd2, name2, ctypes.c_uint(flags)), name, name2)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2): never emulated by writing, unlike posix_fallocate of the C library."""
    _check(_libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def ioprio_set(number: int, which: int, who: int, priority: int) -> None:
    """ioprio_set(2), whose number on this machine is `number`."""
    _check(_libc.syscall(ctypes.c_long(number), which, who, priority))


def unshare_descriptors() -> None:
    """The calling thread has a table of descriptors of its own, with the same in it: unshare(2)."""
    _check(_libc.unshare(CLONE_FILES))


def syncfs(fd: int) -> None:
    """syncfs(2)."""
    _check(_libc.syncfs(fd))


def utimensat(dirfd: int, name: bytes, flags: int, atime: Timespec, mtime: Timespec) -> None:
    """utimensat(2) with nanoseconds and UTIME_OMIT."""
    times = (Timespec * 2)(atime, mtime)
    _check(_libc.utimensat(dirfd, name, ctypes.byref(times), flags), name)


def statx(dirfd: int, path: bytes, flags: int, mask: int) -> Statx:
    """statx(2)."""
    result = Statx()
    _check(_libc.statx(dirfd, path, flags, ctypes.c_uint(mask), ctypes.byref(result)), path)
    return result


def filesystem_magic(fd: int) -> int:
    """`f_type` of fstatfs(2), the first word of struct statfs on 64-bit machines."""
    buffer = ctypes.create_string_buffer(256)
    _check(_libc.fstatfs(fd, buffer))
    return int.from_bytes(buffer.raw[:8], "little", signed=True)
