"""The messages between the kernel and a FUSE daemon, as far as the filter looks into them.

Numbers and layouts are those of include/uapi/linux/fuse.h (protocol 7.40 and later). Pure.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from tierfs.namespace.finding.inheritance import ACCESS

REQUEST_HEADER = struct.Struct("=IIQQIIII")
"""struct fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, lengths of extensions."""

REPLY_HEADER = struct.Struct("=IiQ")
"""struct fuse_out_header: len, error (0 or a negative errno), unique."""

_INIT_IN = struct.Struct("=IIIII")  # major, minor, max_readahead, flags, flags2
_INIT_OUT = struct.Struct("=IIIIHHIIHHII")
INIT_OUT_BYTES = 64
_OPEN_IN = struct.Struct("=II")  # flags, open_flags
_CREATE_IN = struct.Struct("=IIII")  # flags, mode, umask, open_flags
_SETATTR_IN = struct.Struct("=I")  # valid
_SETXATTR_IN = struct.Struct("=IIII")  # size, flags, setxattr_flags, padding
_SHORT_SETXATTR_IN = struct.Struct("=II")
_WRITE_IN = struct.Struct("=QQII")  # fh, offset, size, write_flags
_WRITE_DATA_AT = REQUEST_HEADER.size + 40
_READ_IN = struct.Struct("=QQI")  # fh, offset, size
_OPEN_OUT = struct.Struct("=QIi")  # fh, open_flags, backing_id
_FALLOCATE_IN = struct.Struct("=QQQII")  # fh, offset, length, mode, padding
_LSEEK_IN = struct.Struct("=QqII")  # fh, offset (as the caller gave it), whence, padding
_COPY_IN = struct.Struct("=QQQQQQQ")  # fh, off, nodeid of the target, its fh, its off, len, flags
_ENTRY_OUT_BYTES = 128

FIRST_MINOR_WITH_PASSTHROUGH = 40
FIRST_MINOR_WITH_RIGHT_PAGES = 45
"""Linux 6.18. Pages that are read into the page cache while they are written past it are not kept:
tried there. Earlier kernels throw pages away before such a write, which is not enough."""


class Opcode(enum.IntEnum):
    """enum fuse_opcode: those that the filter does not pass on blindly, and their names."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    TMPFILE = 51


_OPERATIONS = {int(opcode): opcode.name.lower() for opcode in Opcode}


def operation(opcode: int) -> str:
    """What people call it."""
    return _OPERATIONS.get(opcode) or f"operation {opcode}"


class InitFlag(enum.IntFlag):
    """FUSE_INIT_*: `flags` and, from bit 32 on, `flags2`."""

    DONT_MASK = 1 << 6
    WRITEBACK_CACHE = 1 << 16
    HANDLE_KILLPRIV_V2 = 1 << 28
    SETXATTR_EXT = 1 << 29
    INIT_EXT = 1 << 30
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class OpenFlag(enum.IntFlag):
    """FOPEN_*."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    NOFLUSH = 1 << 5
    PARALLEL_DIRECT_WRITES = 1 << 6
    PASSTHROUGH = 1 << 7


BESIDE_PASSTHROUGH = OpenFlag.DIRECT_IO | OpenFlag.NOFLUSH | OpenFlag.PARALLEL_DIRECT_WRITES
"""All others make the kernel fail a passthrough open with EIO (FOPEN_PASSTHROUGH_MASK)."""

_OPEN_KILL_SUIDGID = 1 << 0
_WRITE_KILL_SUIDGID = 1 << 2
_FATTR_KILL_SUIDGID = 1 << 11
_SETXATTR_ACL_KILL_SGID = 1 << 0


class Request(NamedTuple):
    """The header of a request; `pid` is a thread id."""

    length: int
    opcode: int
    unique: int
    nodeid: int
    uid: int
    gid: int
    pid: int

    @classmethod
    def of(cls, message: memoryview) -> Request:
        """The header of `message`."""
        return cls._make(REQUEST_HEADER.unpack_from(message)[:7])


@dataclass(frozen=True, slots=True)
class Read:
    """A read of `size` bytes of the open file `fh`."""

    fh: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Write:
    """A write to the open file `fh`."""

    fh: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Fallocate:
    """fallocate(2) on the open file `fh`."""

    fh: int
    offset: int
    length: int
    mode: int


@dataclass(frozen=True, slots=True)
class Lseek:
    """lseek(2) with SEEK_DATA or SEEK_HOLE on the open file `fh`."""

    fh: int
    offset: int
    whence: int


@dataclass(frozen=True, slots=True)
class CopyFileRange:
    """copy_file_range(2) from the open file `fh` to `target_fh`."""

    fh: int
    offset: int
    target_fh: int
    target_offset: int
    length: int


def offered(message: memoryview) -> InitFlag:
    """What the kernel offers in its INIT request."""
    body = REQUEST_HEADER.size
    if len(message) < body + _INIT_IN.size:
        return InitFlag(0)
    _, _, _, flags, flags2 = _INIT_IN.unpack_from(message, body)
    return InitFlag(flags | flags2 << 32)


def offered_minor(message: memoryview) -> int:
    """The minor version of the protocol that the kernel speaks, by its INIT request."""
    return int(_INIT_IN.unpack_from(message, REQUEST_HEADER.size)[1])


def with_init_flags(message: bytes, add: InitFlag, *, max_stack_depth: int) -> bytes:
    """The INIT reply `message` with the flags `add`; writeback caching goes with PASSTHROUGH."""
    header = REPLY_HEADER.size
    body = bytearray(message[header:].ljust(INIT_OUT_BYTES, b"\0"))
    fields = list(_INIT_OUT.unpack_from(body))
    flags = InitFlag(fields[3] | fields[10] << 32) | add | InitFlag.INIT_EXT
    if add & InitFlag.PASSTHROUGH:
        flags &= ~InitFlag.WRITEBACK_CACHE
        fields[11] = max_stack_depth
    fields[1] = max(fields[1], FIRST_MINOR_WITH_PASSTHROUGH)
    fields[3], fields[10] = flags & 0xFFFFFFFF, flags >> 32
    _INIT_OUT.pack_into(body, 0, *fields)
    _, error, unique = REPLY_HEADER.unpack_from(message)
    return REPLY_HEADER.pack(header + len(body), error, unique) + bytes(body)


def _open_at(opcode: int) -> int:
    return REPLY_HEADER.size + (_ENTRY_OUT_BYTES if opcode == Opcode.CREATE else 0)


def opened_handle(message: memoryview, opcode: int) -> int:
    """The file handle in a reply to OPEN or CREATE that is no error."""
    return int(_OPEN_OUT.unpack_from(message, _open_at(opcode))[0])


def set_backing(message: memoryview, opcode: int, backing: int) -> None:
    """Makes the reply to OPEN or CREATE one that grants passthrough to `backing`."""
    at = _open_at(opcode)
    fh, flags, _ = _OPEN_OUT.unpack_from(message, at)
    flags = flags & BESIDE_PASSTHROUGH | OpenFlag.PASSTHROUGH
    _OPEN_OUT.pack_into(message, at, fh, flags, backing)


def kills_privileges(message: memoryview, opcode: int) -> bool:
    """Whether the request says that setuid, setgid and capabilities have to go.

    Of SETXATTR: setgid, as its ACL is set by an owner who is not in the group of the file.
    """
    body = REQUEST_HEADER.size
    match opcode:
        case Opcode.WRITE:
            return bool(_WRITE_IN.unpack_from(message, body)[3] & _WRITE_KILL_SUIDGID)
        case Opcode.SETATTR:
            return bool(_SETATTR_IN.unpack_from(message, body)[0] & _FATTR_KILL_SUIDGID)
        case Opcode.OPEN:
            return bool(_OPEN_IN.unpack_from(message, body)[1] & _OPEN_KILL_SUIDGID)
        case Opcode.SETXATTR if _is_extended(message):
            is_access = message[body + _SETXATTR_IN.size : _end_of_name(message)] == ACCESS
            asked = _SETXATTR_IN.unpack_from(message, body)[2] & _SETXATTR_ACL_KILL_SGID
            return bool(asked and is_access)  # it asks the same with a default ACL
    return False


def _end_of_name(message: memoryview) -> int:
    size = int(_SHORT_SETXATTR_IN.unpack_from(message, REQUEST_HEADER.size)[0])
    return len(message) - 1 - size


def _is_extended(message: memoryview) -> bool:
    """Whether a SETXATTR request has the long struct fuse_setxattr_in (FUSE_SETXATTR_EXT).

    The message itself tells, whatever an earlier worker has agreed to: a name has no NUL before
    its end, and what the long one has more of is never without.
    """
    body = REQUEST_HEADER.size
    return 0 in message[body + _SHORT_SETXATTR_IN.size : _end_of_name(message)]


def short_setxattr(message: memoryview) -> memoryview:
    """The SETXATTR request `message` as who does not know FUSE_SETXATTR_EXT expects it."""
    if not _is_extended(message):
        return message
    fields = list(REQUEST_HEADER.unpack_from(message))
    body = REQUEST_HEADER.size
    fields[0] -= _SETXATTR_IN.size - _SHORT_SETXATTR_IN.size
    kept = message[body : body + _SHORT_SETXATTR_IN.size], message[body + _SETXATTR_IN.size :]
    return memoryview(REQUEST_HEADER.pack(*fields) + b"".join(kept))


def xattr_flags(message: bytes | memoryview) -> int:
    """The flags of a (short) SETXATTR request."""
    return int(_SHORT_SETXATTR_IN.unpack_from(message, REQUEST_HEADER.size)[1])


def with_xattr_flags(message: bytes, flags: int) -> bytes:
    """The (short) SETXATTR request `message` with other flags."""
    body = REQUEST_HEADER.size
    size, _ = _SHORT_SETXATTR_IN.unpack_from(message, body)
    fields = _SHORT_SETXATTR_IN.pack(size, flags)
    return message[:body] + fields + message[body + len(fields) :]


def xattr_name(message: bytes, opcode: int) -> bytes:
    """The name in a (short) SETXATTR or a REMOVEXATTR request."""
    start = REQUEST_HEADER.size
    start += _SHORT_SETXATTR_IN.size if opcode == Opcode.SETXATTR else 0
    return message[start : message.index(b"\0", start)]


def read(message: bytes | memoryview) -> Read:
    """The body of a READ request."""
    return Read(*_READ_IN.unpack_from(message, REQUEST_HEADER.size))


def write(message: bytes | memoryview) -> Write:
    """The body of a WRITE request; the data is not copied."""
    fh, offset, size, _ = _WRITE_IN.unpack_from(message, REQUEST_HEADER.size)
    return Write(fh, offset, memoryview(message)[_WRITE_DATA_AT : _WRITE_DATA_AT + size])


def fallocate(message: bytes | memoryview) -> Fallocate:
    """The body of a FALLOCATE request."""
    return Fallocate(*_FALLOCATE_IN.unpack_from(message, REQUEST_HEADER.size)[:4])


def lseek(message: bytes | memoryview) -> Lseek:
    """The body of an LSEEK request."""
    return Lseek(*_LSEEK_IN.unpack_from(message, REQUEST_HEADER.size)[:3])


def copy_file_range(message: bytes | memoryview) -> CopyFileRange:
    """The body of a COPY_FILE_RANGE request."""
    fh, offset, _, target, target_offset, length, _ = _COPY_IN.unpack_from(
        message, REQUEST_HEADER.size
    )
    return CopyFileRange(fh, offset, target, target_offset, length)


def lookup_request(request: Request, name: bytes) -> bytes:
    """A LOOKUP of `name` with the number and the caller of `request`."""
    length = REQUEST_HEADER.size + len(name) + 1
    header = REQUEST_HEADER.pack(
        length, Opcode.LOOKUP, request.unique, request.nodeid, request.uid, request.gid,
        request.pid, 0,
    )  # fmt: skip
    return header + name + b"\0"


def with_unique(message: bytes, unique: int) -> bytes:
    """The request `message` under another number."""
    fields = list(REQUEST_HEADER.unpack_from(message))
    fields[2] = unique
    return REQUEST_HEADER.pack(*fields) + message[REQUEST_HEADER.size :]


def reply_with_unique(message: bytes, unique: int) -> bytes:
    """The reply `message` to another request."""
    length, error, _ = REPLY_HEADER.unpack_from(message)
    return REPLY_HEADER.pack(length, error, unique) + message[REPLY_HEADER.size :]


RESEND = REPLY_HEADER.pack(REPLY_HEADER.size, 7, 0)
"""FUSE_NOTIFY_RESEND: what was read and not answered is to be asked again."""


def error_reply(unique: int, code: int) -> bytes:
    """The answer `code` (an errno, 0: done) without a body."""
    return REPLY_HEADER.pack(REPLY_HEADER.size, -code, unique)


def open_reply(unique: int, fh: int, backing: int) -> bytes:
    """The answer to OPEN."""
    flags = OpenFlag.PASSTHROUGH if backing else OpenFlag(0)
    header = REPLY_HEADER.pack(REPLY_HEADER.size + _OPEN_OUT.size, 0, unique)
    return header + _OPEN_OUT.pack(fh, flags, backing)


def data_reply(unique: int, buffer: bytearray, size: int) -> memoryview:
    """The answer to READ: `size` bytes that stand in `buffer` behind the room for the header."""
    length = REPLY_HEADER.size + size
    REPLY_HEADER.pack_into(buffer, 0, length, 0, unique)
    return memoryview(buffer)[:length]


def offset_reply(unique: int, offset: int) -> bytes:
    """The answer to LSEEK (struct fuse_lseek_out)."""
    return REPLY_HEADER.pack(REPLY_HEADER.size + 8, 0, unique) + struct.pack("=Q", offset)


def count_reply(unique: int, count: int) -> bytes:
    """The answer to WRITE and COPY_FILE_RANGE: bytes done (struct fuse_write_out)."""
    return REPLY_HEADER.pack(REPLY_HEADER.size + 8, 0, unique) + struct.pack("=II", count, 0)
