"""The journal has failed: each request that would change something is refused, and no more."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
import trio

from tests.behaviour.direct import Direct
from tierfs.kernel import wire
from tierfs.kernel.backings import Backings
from tierfs.kernel.device import Device
from tierfs.kernel.filter import Filter
from tierfs.kernel.resent import Requests
from tierfs.kernel.wire import Opcode
from tierfs.namespace.overlay.tree import ROOT_INO

_SET_ACL = struct.pack("=IIII", 1, 0, 1, 0) + b"system.posix_acl_access\0"
NAME = b"user.x\0"
"""An xattr that the file has."""

REQUESTS = {
    "create an xattr": (Opcode.SETXATTR, struct.pack("=II", 1, os.XATTR_CREATE) + b"user.y\0v"),
    "remove an xattr": (Opcode.REMOVEXATTR, NAME),
    "write, and clear setuid": (Opcode.WRITE, struct.pack("=QQIIQII", 0, 0, 1, 4, 0, 0, 0) + b"v"),
    "truncate, and clear setuid": (Opcode.SETATTR, struct.pack("=I84x", 1 << 11 | 1 << 3)),
    "open, and clear setuid": (Opcode.OPEN, struct.pack("=II", os.O_WRONLY | os.O_TRUNC, 1)),
    "set an ACL, and clear setgid": (Opcode.SETXATTR, _SET_ACL + b"v"),
    "remove a file": (Opcode.UNLINK, b"f\0"),
    "remove a directory": (Opcode.RMDIR, b"d\0"),
}  # fmt: skip
OF_NAMES = (Opcode.UNLINK, Opcode.RMDIR)


@pytest.fixture
def filtered(make_direct: Callable[..., Direct]) -> Iterator[tuple[Direct, Filter, socket.socket]]:
    """What the kernel's messages come to, and where the replies go."""
    direct = make_direct(held=True)
    with contextlib.ExitStack() as stack:
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (kernel, device):
            stack.enter_context(end)
        kernel.setblocking(False)
        held = Device(device.fileno())
        made = Filter(
            held, direct.fs, Backings(held), lambda: None, Requests((), lambda _: None),
            passthrough=False,
        )  # fmt: skip
        stack.callback(made.close)
        stack.callback(os.close, made._theirs)
        made._draining = True  # nothing but what the test asks
        yield direct, made, kernel


@pytest.mark.parametrize("what", REQUESTS)
def test_a_change_is_refused_when_the_journal_has_failed(
    filtered: tuple[Direct, Filter, socket.socket], what: str
) -> None:
    direct, made, kernel = filtered
    direct.mkdir("d")
    direct.write_file("f", b"content")
    direct.chmod("f", 0o6775)
    direct.setxattr("f", "user.x", b"v")
    opcode, body = REQUESTS[what]
    nodeid = ROOT_INO if opcode in OF_NAMES else direct.inode("f")
    size = wire.REQUEST_HEADER.size + len(body)
    message = wire.REQUEST_HEADER.pack(size, opcode, 8, nodeid, 1000, 1000, 0, 0) + body

    async def ask() -> None:
        direct.die()
        async with trio.open_nursery() as nursery:
            await made._request(nursery, memoryview(message))

    direct.run(ask)
    assert wire.REPLY_HEADER.unpack(kernel.recv(4096))[1:] == (-errno.EIO, 8)
