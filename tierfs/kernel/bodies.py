"""Bodies of the requests and replies that `Hot` handles.

Layouts are those of include/uapi/linux/fuse.h (protocol 7.40 and later). Pure.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tierfs.kernel.wire import REPLY_HEADER, REQUEST_HEADER, Opcode, OpenFlag, Request
from tierfs.model import Attributes, Kind

_BODY = REQUEST_HEADER.size
_FORGET_IN = struct.Struct("=Q")  # nlookup
_BATCH_FORGET_IN = struct.Struct("=II")  # count, dummy
_FORGET_ONE = struct.Struct("=QQ")  # nodeid, nlookup
_CREATE_IN = struct.Struct("=IIII")  # flags, mode, umask, open_flags
_OPEN_IN = struct.Struct("=II")  # flags, open_flags
_FH_IN = struct.Struct("=Q")  # how struct fuse_flush_in and fuse_release_in begin
_GETXATTR_IN = struct.Struct("=II")  # size, padding
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ATTR_OUT = struct.Struct("=QII")  # attr_valid, attr_valid_nsec, dummy
_ENTRY_OUT = struct.Struct("=QQQQII")  # nodeid, generation, entry_valid, attr_valid, their nsec
_OPEN_OUT = struct.Struct("=QIi")  # fh, open_flags, backing_id
_READ_IN = struct.Struct("=QQI")  # fh, offset, size
_FULL_ENTRY = struct.Struct("=QQQQII QQQQQQIIIIIIIIII QQII")
"""struct fuse_direntplus: what a lookup answers, then ino, off, namelen, type."""
_PLAIN_ENTRY = struct.Struct("=128xQQII")
"""The same with a nodeid of 0: nothing is told but the name."""
_PLAIN_ENTRIES = [
    (struct.Struct(f"=128xQQII{size}s").pack, _PLAIN_ENTRY.size + size)
    for size in (length + 7 & ~7 for length in range(256))
]
"""The same with a name of so many bytes, and what it takes."""
_TYPES = {kind: kind.type_bits >> 12 for kind in Kind}
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Create:
    """What a CREATE asks for."""

    name: bytes
    flags: int
    mode: int
    umask: int


@dataclass(frozen=True, slots=True)
class GetXattr:
    """A GETXATTR of at most `size` bytes; 0 asks for the length."""

    name: bytes
    size: int


def forgotten(request: Request, message: memoryview) -> Iterator[tuple[int, int]]:
    """(nodeid, lookups) of a FORGET or BATCH_FORGET."""
    if request.opcode == Opcode.FORGET:
        yield request.nodeid, _FORGET_IN.unpack_from(message, _BODY)[0]
        return
    count, _ = _BATCH_FORGET_IN.unpack_from(message, _BODY)
    start = _BODY + _BATCH_FORGET_IN.size
    yield from _FORGET_ONE.iter_unpack(message[start : start + count * _FORGET_ONE.size])


def name_at(message: bytes, start: int = 0) -> bytes:
    """The name that stands `start` bytes into the body."""
    return message[_BODY + start : message.index(b"\0", _BODY + start)]


def create(message: bytes) -> Create:
    """The body of a CREATE."""
    flags, mode, umask, _ = _CREATE_IN.unpack_from(message, _BODY)
    return Create(name_at(message, _CREATE_IN.size), flags, mode, umask)


def open_flags(message: bytes) -> int:
    """The flags of open(2) in an OPEN."""
    return int(_OPEN_IN.unpack_from(message, _BODY)[0])


def handle_of(message: bytes) -> int:
    """The open file of a FLUSH or RELEASE."""
    return int(_FH_IN.unpack_from(message, _BODY)[0])


def getxattr(message: bytes) -> GetXattr:
    """The body of a GETXATTR."""
    size, _ = _GETXATTR_IN.unpack_from(message, _BODY)
    return GetXattr(name_at(message, _GETXATTR_IN.size), size)


def read(message: bytes) -> tuple[int, int, int]:
    """Open directory, position and bytes of a READDIRPLUS."""
    fh, offset, size = _READ_IN.unpack_from(message, _BODY)
    return fh, offset, size


def opened_directory(fh: int) -> bytes:
    """struct fuse_open_out of an OPENDIR."""
    return _OPEN_OUT.pack(fh, 0, 0)


def entry_size(name: bytes) -> int:
    """What an entry takes in the answer to a READDIRPLUS."""
    return _FULL_ENTRY.size + (len(name) + 7 & ~7)


def full_entry(
    ino: int, offset: int, name: bytes, found: Attributes, block_bytes: int,
    entry_seconds: float, attr_seconds: float,
) -> bytes:  # fmt: skip
    """An entry with all that a lookup would tell; the next one is at `offset`."""
    atime, atime_ns = divmod(found.atime_ns, _SECOND)
    mtime, mtime_ns = divmod(found.mtime_ns, _SECOND)
    ctime, ctime_ns = divmod(found.ctime_ns, _SECOND)
    type_bits = found.kind.type_bits
    length = len(name)
    return _FULL_ENTRY.pack(
        ino, 0, 0, 0, int(entry_seconds * _SECOND), int(attr_seconds * _SECOND),
        ino, found.size, found.blocks, atime % (1 << 64), mtime % (1 << 64), ctime % (1 << 64),
        atime_ns, mtime_ns, ctime_ns, type_bits | found.mode, found.nlink,
        found.uid, found.gid, _device(found.rdev) if found.rdev else 0, block_bytes, 0,
        ino, offset, length, type_bits >> 12,
    ) + name.ljust(length + 7 & ~7, b"\0")  # fmt: skip


def plain_entry(ino: int, offset: int, name: bytes, type_bits: int) -> bytes:
    """An entry of which the kernel gets the name, `ino` and what it is."""
    length = len(name)
    padded = name.ljust(length + 7 & ~7, b"\0")
    return _PLAIN_ENTRY.pack(ino, offset, length, type_bits >> 12) + padded


def plain_entries(
    told: Iterable[tuple[bytes, Kind, int]], offset: int, room: int
) -> Iterator[bytes]:
    """As many of `told` (name, kind, ino) as there is room for, each as a `plain_entry`; the first
    one stands at `offset`.
    """
    for name, kind, ino in told:
        length = len(name)
        pack, size = _PLAIN_ENTRIES[length]
        room -= size
        if room < 0:
            return
        offset += 1
        yield pack(ino, offset, length, _TYPES[kind], name)


def reply(unique: int, *body: bytes) -> bytes:
    """The answer with the body given in pieces."""
    content = b"".join(body)
    return REPLY_HEADER.pack(REPLY_HEADER.size + len(content), 0, unique) + content


def attributes(ino: int, found: Attributes, block_bytes: int) -> bytes:
    """struct fuse_attr."""
    atime, atime_ns = divmod(found.atime_ns, _SECOND)
    mtime, mtime_ns = divmod(found.mtime_ns, _SECOND)
    ctime, ctime_ns = divmod(found.ctime_ns, _SECOND)
    return _ATTR.pack(
        ino, found.size, found.blocks, atime % (1 << 64), mtime % (1 << 64), ctime % (1 << 64),
        atime_ns, mtime_ns, ctime_ns, found.kind.type_bits | found.mode, found.nlink,
        found.uid, found.gid, _device(found.rdev), block_bytes, 0,
    )  # fmt: skip


def attr_out(seconds: float, attr: bytes) -> bytes:
    """struct fuse_attr_out: `attr` may be believed for `seconds`."""
    return _ATTR_OUT.pack(*_valid(seconds), 0) + attr


def entry_out(ino: int, entry_seconds: float, attr_seconds: float, attr: bytes) -> bytes:
    """struct fuse_entry_out: how long the name and `attr` may be believed."""
    entry_valid, entry_ns = _valid(entry_seconds)
    attr_valid, attr_ns = _valid(attr_seconds)
    return _ENTRY_OUT.pack(ino, 0, entry_valid, attr_valid, entry_ns, attr_ns) + attr


def open_out(fh: int, backing: int, *, keep_cache: bool, flush: bool, direct: bool) -> bytes:
    """struct fuse_open_out. Without `flush` a close of it sends no FLUSH.

    `direct`: unless there is a backing, what is written goes to the daemon past the page cache.
    """
    flags = OpenFlag.PASSTHROUGH if backing else OpenFlag(0)
    if direct and not backing:
        flags |= OpenFlag.DIRECT_IO
    if keep_cache and not backing:
        flags |= OpenFlag.KEEP_CACHE
    if not flush:
        flags |= OpenFlag.NOFLUSH
    return _OPEN_OUT.pack(fh, flags, backing)


def _device(rdev: int) -> int:
    """A device number as the kernel's new_encode_dev writes it (linux/kdev_t.h)."""
    major, minor = os.major(rdev), os.minor(rdev)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def _valid(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * _SECOND)
