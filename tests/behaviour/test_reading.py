"""READs that the daemon answers: each has its buffer until the kernel has the reply."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.behaviour.direct import Direct
from tierfs.kernel import wire
from tierfs.kernel.extras import Extras
from tierfs.kernel.wire import Opcode, Request
from tierfs.model import Kind
from tierfs.namespace.callers import Caller

MIB = 1 << 20
ME = Caller(0, 0, 0, 0o022)


def asked(unique: int, handle: int, offset: int) -> tuple[Request, bytes]:
    """A READ of 1 MiB (struct fuse_read_in)."""
    body = struct.pack("=QQIIQII", handle, offset, MIB, 0, 0, 0, 0)
    length = wire.REQUEST_HEADER.size + len(body)
    head = wire.REQUEST_HEADER.pack(length, Opcode.READ, unique, 2, 0, 0, 0, 0)
    return Request.of(memoryview(head)), head + body


def test_a_buffer_serves_again_once_its_reply_was_sent(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    fs, extras = direct.fs, Extras(direct.fs)
    content = b"".join(bytes([number]) * MIB for number in (1, 2, 3))
    direct.write_file("f", content)
    node = direct.run(fs.lookup.find, fs.tree.directory(1), b"f")
    assert node is not None
    assert node.kind is Kind.FILE
    handle = direct.run(fs.files.open, node, 0, ME)

    def read(unique: int, at: int, number: int = handle.number) -> memoryview | bytes:
        return direct.run(extras.answer, *asked(unique, number, at * MIB))

    first, second = read(1, 0), read(2, 1)
    head = wire.REPLY_HEADER
    for unique, reply in ((1, first), (2, second)):
        assert head.unpack_from(reply) == (head.size + MIB, 0, unique)
        assert reply[head.size :] == content[(unique - 1) * MIB : unique * MIB]
    assert isinstance(first, memoryview)
    extras.sent(first)
    third = read(3, 2)
    assert isinstance(third, memoryview)
    assert third.obj is first.obj, "new memory, though a buffer is free"
    assert third[head.size :] == content[2 * MIB :]
    assert second[head.size :] == content[MIB : 2 * MIB], "its reply was not sent yet"

    extras.sent(third)
    failed = read(4, 0, number=999)
    assert head.unpack_from(failed)[1] < 0
    extras.sent(failed)
    last = read(5, 5)  # behind the end
    assert head.unpack_from(last) == (head.size, 0, 5)
    direct.run(fs.files.release, handle)
