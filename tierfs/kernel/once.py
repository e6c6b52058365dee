"""Changes of xattrs that have another answer when they are made a second time.

SETXATTR with XATTR_CREATE, and REMOVEXATTR: the worker may die when it has carried one out and not
answered it. So that it will be carried out is journaled before.
"""

from __future__ import annotations

import os

from tierfs.journal import SaveRequest
from tierfs.kernel import wire
from tierfs.kernel.boundary import refusal
from tierfs.kernel.resent import RESENT, Requests
from tierfs.kernel.wire import Opcode, Request
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.outage.asking import on_behalf_of

ONCE = frozenset({Opcode.SETXATTR, Opcode.REMOVEXATTR})


class Once:
    """Looks at each of them before pyfuse3 does."""

    def __init__(self, fs: FileSystem, requests: Requests) -> None:
        self._fs = fs
        self._requests = requests

    def concerns(self, message: memoryview, opcode: int) -> bool:
        """Whether `message` is one of them; SETXATTR as of `wire.short_setxattr`."""
        if opcode == Opcode.SETXATTR:
            return bool(wire.xattr_flags(message) & os.XATTR_CREATE)
        return opcode == Opcode.REMOVEXATTR

    async def begin(self, request: Request, message: bytes) -> bytes:
        """What pyfuse3 gets for it; no longer than the header of a reply: that to the kernel."""
        try:
            return await self._begin(request, message)
        except Exception as error:
            return refusal(request, error)

    async def _begin(self, request: Request, message: bytes) -> bytes:
        removes = request.opcode == Opcode.REMOVEXATTR
        name = wire.xattr_name(message, request.opcode)
        done = self._requests.begun(request, name)
        with on_behalf_of(request.pid):
            node = self._fs.tree.node(request.nodeid)
            there = name in await self._fs.attributes.listxattr(node)
        if done and removes and not there:
            return wire.error_reply(request.unique, 0)
        if done and not removes:
            return wire.with_xattr_flags(message, 0)
        if there == removes and not done:
            await self._fs.core.journal.post(SaveRequest(request.unique & ~RESENT)).written()
        return message
