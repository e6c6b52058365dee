"""Extended attributes, on descriptors of any kind."""

from __future__ import annotations

import os

from tierfs.osio.data import through
from tierfs.osio.labels import Labelled, labelled


class Xattrs(Labelled):
    """Calls on extended attributes; O_PATH descriptors will do."""

    @labelled
    def get_xattr(self, step: str, fd: int, name: bytes) -> bytes:
        """The value of `name`; ENODATA where there is none."""
        return through(lambda file: os.getxattr(file, name), fd)

    @labelled
    def set_xattr(self, step: str, fd: int, name: bytes, value: bytes, flags: int = 0) -> None:
        """Set `name`; flags are XATTR_CREATE or XATTR_REPLACE."""
        through(lambda file: os.setxattr(file, name, value, flags), fd)

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
