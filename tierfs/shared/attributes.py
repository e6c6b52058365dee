"""Giving a file on the shared tier the attributes of the local object."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping

from tierfs.model import Attributes
from tierfs.osio import OS
from tierfs.shared import layout

_SETID = stat.S_ISUID | stat.S_ISGID


def apply_attributes(
    system: OS,
    label: str,
    fd: int,
    attributes: Attributes,
    xattrs: Mapping[bytes, bytes],
    *,
    keep_setid: bool = True,
) -> None:
    """Owner, xattrs, mode and times, in the order in which none undoes another.

    A change of owner clears setuid, setgid and capabilities; an ACL changes the mode, and the
    mode the mask of the ACL. Steps are ``LABEL.chown``, ``.xattr``, ``.chmod`` and ``.times``.
    """
    system.fchown(f"{label}.chown", fd, attributes.uid, attributes.gid)
    for name, value in xattrs.items():
        if layout.carried(name):
            system.set_xattr(f"{label}.xattr", fd, name, value)
    mode = attributes.mode if keep_setid else attributes.mode & ~_SETID
    system.fchmod(f"{label}.chmod", fd, mode)
    system.utime_fd(f"{label}.times", fd, attributes.atime_ns, attributes.mtime_ns)


def replace_xattrs(system: OS, label: str, fd: int, xattrs: Mapping[bytes, bytes]) -> None:
    """Remove the application's xattrs that are not in `xattrs`."""
    for name in system.list_xattr(f"{label}.xattr", fd):
        if layout.carried(name) and name not in xattrs:
            remove_xattr(system, label, fd, name)


def remove_xattr(system: OS, label: str, fd: int, name: bytes) -> None:
    """Remove the xattr `name`; none being there is fine."""
    try:
        system.remove_xattr(f"{label}.xattr", fd, name)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
