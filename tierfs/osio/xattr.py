"""Extended attributes, on descriptors of any kind."""

from __future__ import annotations

import errno
import os

from tierfs.errors import XattrsFull
from tierfs.osio.data import through
from tierfs.osio.labels import Labelled, labelled

ROOM_BYTES = 16 << 20
"""With so much free no file system lacks the room for an xattr."""


class Xattrs(Labelled):
    """Calls on extended attributes; O_PATH descriptors will do."""

    @labelled
    def get_xattr(self, step: str, fd: int, name: bytes) -> bytes:
        """The value of `name`; ENODATA where there is none."""
        return through(lambda file: os.getxattr(file, name), fd)

    @labelled
    def set_xattr(self, step: str, fd: int, name: bytes, value: bytes, flags: int = 0) -> None:
        """Set `name`; flags are XATTR_CREATE or XATTR_REPLACE.

        Of ENOSPC there are two: `XattrsFull` where the file system has room (ext4 has one block
        for the xattrs of a file), OSError where it is full.
        """
        try:
            through(lambda file: os.setxattr(file, name, value, flags), fd)
        except OSError as error:
            if error.errno != errno.ENOSPC or not _has_room(fd):
                raise
            _set_with_room(fd, name, value, flags)

    @labelled
    def list_xattr(self, step: str, fd: int) -> list[bytes]:
        """The names of all extended attributes."""
        return [os.fsencode(name) for name in through(os.listxattr, fd)]

    @labelled
    def list_xattr_at(self, step: str, dirfd: int, name: bytes) -> list[bytes]:
        """The names of all extended attributes of the entry `name` itself, also of a symlink."""
        path = b"/proc/self/fd/%d/%s" % (dirfd, name)
        return [os.fsencode(each) for each in os.listxattr(path, follow_symlinks=False)]

    @labelled
    def remove_xattr(self, step: str, fd: int, name: bytes) -> None:
        """Remove `name`; ENODATA where there is none."""
        through(lambda file: os.removexattr(file, name), fd)


def _has_room(fd: int) -> bool:
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize >= ROOM_BYTES


def _set_with_room(fd: int, name: bytes, value: bytes, flags: int) -> None:
    """Once more: the room may have come between the call and the question."""
    try:
        through(lambda file: os.setxattr(file, name, value, flags), fd)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise XattrsFull(name) from error
        raise
