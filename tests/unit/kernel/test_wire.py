"""What the filter reads in messages of the kernel, and what it makes of them."""

from __future__ import annotations

import struct

import pytest

from tierfs.kernel import wire
from tierfs.kernel.wire import Opcode
from tierfs.namespace.finding.inheritance import ACCESS, DEFAULT


def setxattr(name: bytes, value: bytes, *more: int) -> memoryview:
    """A SETXATTR request; `more`: what FUSE_SETXATTR_EXT adds to its struct."""
    body = struct.pack("=II", len(value), 1) + struct.pack(f"={len(more)}I", *more)
    body += name + b"\0" + value
    length = wire.REQUEST_HEADER.size + len(body)
    header = wire.REQUEST_HEADER.pack(length, Opcode.SETXATTR, 7, 8, 9, 10, 11, 0)
    return memoryview(header + body)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0" * 20, b"x" * 100])
@pytest.mark.parametrize("name", [ACCESS, DEFAULT, b"user.x", b"x", b"\1", b"\1" * 8, b"\1" * 9])
def test_setxattr_is_told_apart_by_itself(name: bytes, value: bytes) -> None:
    short = setxattr(name, value)
    assert wire.short_setxattr(short) == short
    assert not wire.kills_privileges(short, Opcode.SETXATTR)
    for kills in (0, 1):
        extended = setxattr(name, value, kills, 0)
        assert wire.kills_privileges(extended, Opcode.SETXATTR) is (name == ACCESS and kills == 1)
        assert wire.short_setxattr(extended) == short
