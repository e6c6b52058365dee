"""The xattrs of an object that are ours: what it is, and the name to salvage it under."""

from __future__ import annotations

import errno
import os

from tierfs.errors import XattrsFull
from tierfs.model import SPECIAL, Kind, Name, ObjectId
from tierfs.osio import OS

PREFIX = b"user.tierfs."
NAME = PREFIX + b"name"
"""Parent's directory id in hex, a colon, the name."""
KIND = PREFIX + b"kind"
"""What a regular file stands for: symlink, fifo, socket, character or block. Absent: itself."""
DEVICE = PREFIX + b"rdev"
"""The device number (st_rdev) of a character or block device, decimal."""
NAME_MAX = 255
STUB = PREFIX + b"stub"
"""Present, empty: attributes only; the content is not here."""
MOST_LISTED = 64 * 1024 - 256
"""Bytes that the names of a file may take in a listing, each with its NUL: Linux lists 64 KiB at
the most, and a file whose xattrs cannot be listed cannot be sent. The rest is for ours, on either
tier."""
UNLISTED = (PREFIX, b"trusted.SGI_ACL_")
"""Prefixes of names that no application sees; XFS lists its ACLs a second time as the latter."""

_STOOD_FOR = frozenset({Kind.SYMLINK, Kind.OTHER}) | SPECIAL


def set_name(system: OS, fd: int, parent: ObjectId, name: Name) -> None:
    """Label the object `fd` for salvage."""
    system.set_xattr("local.label", fd, NAME, b"%x:%b" % (parent, name))


def parse_name(value: bytes) -> tuple[ObjectId, Name]:
    """Parent and name in the value of the xattr NAME. ValueError if they are none."""
    parent, colon, name = value.partition(b":")
    if not colon:
        raise ValueError(f"no colon in {value!r}")
    if not 0 < len(name) <= NAME_MAX or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise ValueError(f"no file can have the name {name!r}")
    return ObjectId(int(parent, 16)), name


def set_kind(system: OS, fd: int, kind: Kind) -> None:
    """Say what the regular file `fd` stands for, unless that is a file."""
    if kind in _STOOD_FOR:
        system.set_xattr("local.label", fd, KIND, kind.value.encode())


def set_device(system: OS, fd: int, rdev: int) -> None:
    """Note the device number of an object that stands for a device; 0 is not noted."""
    if rdev:
        system.set_xattr("local.label", fd, DEVICE, b"%d" % rdev)


def device_of(system: OS, fd: int) -> int:
    """The device number of an object."""
    return int(get(system, fd, DEVICE) or b"0")


def kind_of(system: OS, fd: int) -> Kind:
    """What the regular file `fd` stands for."""
    value = get(system, fd, KIND)
    return Kind.FILE if value is None else Kind(value.decode())


def get(system: OS, fd: int, name: bytes) -> bytes | None:
    """The value of an xattr; None where there is none."""
    try:
        return system.get_xattr("local.label", fd, name)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise


def check_readable(kind: Kind, name: bytes) -> None:
    """Raise what Linux would for reading the xattr `name` of an object of this kind."""
    if name.startswith(PREFIX) or (kind in _STOOD_FOR and name.startswith(b"user.")):
        raise _error(errno.ENODATA, name)
    _check_acl(kind, name)


def check_writable(kind: Kind, name: bytes) -> None:
    """Raise what Linux would for changing the xattr `name` of an object of this kind."""
    if name.startswith(PREFIX) or (kind in _STOOD_FOR and name.startswith(b"user.")):
        raise _error(errno.EPERM, name)
    _check_acl(kind, name)


def check_listable(names: list[bytes], name: bytes) -> None:
    """Raise ENOSPC where `names` could not be listed with `name` (XFS would let it in)."""
    if name not in names and sum(map(len, names)) + len(names) + len(name) >= MOST_LISTED:
        raise XattrsFull(name)


def _check_acl(kind: Kind, name: bytes) -> None:
    if kind is Kind.SYMLINK and name.startswith(b"system.posix_acl_"):
        raise _error(errno.EOPNOTSUPP, name)


def _error(code: int, name: bytes) -> OSError:
    return OSError(code, os.strerror(code), name)
