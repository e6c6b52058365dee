"""/dev/fuse held by ourselves: mounting it, and the ioctls that pyfuse3 does not know."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

_MS_NOSUID, _MS_NODEV = 2, 4
"""mount(2)."""

# include/uapi/linux/fuse.h: FUSE_DEV_IOC_MAGIC 229; struct fuse_backing_map {s32 fd, u32 flags,
# u64 padding}; a backing is closed by its u32 id.
_BACKING_MAP = struct.Struct("=iIQ")
_BACKING_ID = struct.Struct("=I")
_IOC_WRITE = 1 << 30
_BACKING_OPEN = _IOC_WRITE | _BACKING_MAP.size << 16 | 229 << 8 | 1
_BACKING_CLOSE = _IOC_WRITE | _BACKING_ID.size << 16 | 229 << 8 | 2

_libc = ctypes.CDLL(None, use_errno=True)


class Device:
    """One open /dev/fuse, which becomes one mount."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: one that is mounted already, from an earlier worker of the mount."""
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        self.fd = os.open("/dev/fuse", flags) if fd is None else fd

    def mount(self, mountpoint: str, source: str) -> None:
        """mount(2) as fuse.tierfs for all users. OSError, EPERM without CAP_SYS_ADMIN."""
        options = (
            f"fd={self.fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},"
            "allow_other,default_permissions"
        )
        words = (source, mountpoint, "fuse.tierfs")
        source_, target, kind = (os.fsencode(word) for word in words)
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        if _libc.mount(source_, target, kind, flags, options.encode()) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), mountpoint)

    def receive(self, buffer: bytearray) -> int:
        """Reads one request into `buffer`; its length. BlockingIOError: there is none."""
        return os.readv(self.fd, [buffer])

    def send(self, message: memoryview | bytes) -> None:
        """Writes one reply; ENOENT when nobody waits for it any more."""
        os.write(self.fd, message)

    def open_backing(self, fd: int) -> int:
        """Registers the file of `fd` for passthrough; its id, above 0.

        OSError: EPERM without CAP_SYS_ADMIN or when the connection has no passthrough, ELOOP when
        its file system is stacked on another (overlayfs), EOPNOTSUPP for what is no plain file.
        """
        buffer = bytearray(_BACKING_MAP.pack(fd, 0, 0))
        # a mutable buffer, or the id would be thrown away
        return int(fcntl.ioctl(self.fd, _BACKING_OPEN, buffer, True))

    def close_backing(self, backing: int) -> None:
        """Gives an id back; open files go on using the file."""
        fcntl.ioctl(self.fd, _BACKING_CLOSE, bytearray(_BACKING_ID.pack(backing)), True)

    def close(self) -> None:
        """Ends the connection: what is still mounted answers ENOTCONN."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
