"""Requests that do not go through pyfuse3.

It has no handler for fallocate, SEEK_DATA and SEEK_HOLE, and copy_file_range; what it does for read
and write copies every byte several times more than is needed.
"""

from __future__ import annotations

import errno

from tierfs.kernel import wire
from tierfs.kernel.boundary import refusal
from tierfs.kernel.wire import Opcode, Request
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.outage.asking import on_behalf_of

KEPT_BYTES = wire.REPLY_HEADER.size + (1 << 20)
"""A buffer for the largest READ of the kernel. New memory for each would cost as much as to copy
what is read."""

KEPT_FROM = 32 << 10
KEPT_BUFFERS = 8


class Extras:
    """Answers them by the namespace, with the same error boundary as the handlers of pyfuse3."""

    opcodes = frozenset(
        {Opcode.READ, Opcode.WRITE, Opcode.FALLOCATE, Opcode.LSEEK, Opcode.COPY_FILE_RANGE}
    )

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._buffers: list[bytearray] = []

    async def answer(self, request: Request, message: bytes | memoryview) -> bytes | memoryview:
        """The reply to `message`, an error included."""
        try:
            with on_behalf_of(request.pid):
                return await self._carry_out(request, message)
        except Exception as error:
            return refusal(request, error)

    async def _carry_out(self, request: Request, message: bytes | memoryview) -> bytes | memoryview:
        files, ranges = self._fs.files, self._fs.ranges
        match request.opcode:
            case Opcode.READ:
                read = wire.read(message)
                end = wire.REPLY_HEADER.size + read.size
                buffer = self._buffer(end)
                room = memoryview(buffer)[wire.REPLY_HEADER.size : end]
                size = await ranges.read_into(files.handle(read.fh), read.offset, room)
                return wire.data_reply(request.unique, buffer, size)
            case Opcode.WRITE:
                write = wire.write(message)
                count = await ranges.write(
                    files.handle(write.fh), write.offset, write.data, request.pid
                )
                return wire.count_reply(request.unique, count)
            case Opcode.FALLOCATE:
                asked = wire.fallocate(message)
                handle = files.handle(asked.fh)
                await ranges.fallocate(handle, asked.offset, asked.length, asked.mode, request.pid)
                return wire.error_reply(request.unique, 0)
            case Opcode.LSEEK:
                seek = wire.lseek(message)
                found = await ranges.seek(files.handle(seek.fh), seek.offset, seek.whence)
                return wire.offset_reply(request.unique, found)
            case Opcode.COPY_FILE_RANGE:
                copy = wire.copy_file_range(message)
                source, target = files.handle(copy.fh), files.handle(copy.target_fh)
                count = await ranges.copy(
                    source, copy.offset, target, copy.target_offset, copy.length
                )
                return wire.count_reply(request.unique, count)
        return wire.error_reply(request.unique, errno.ENOSYS)

    def sent(self, reply: bytes | memoryview) -> None:
        """The kernel has `reply`: the buffer that it stands in may be used again.

        That of a reply that failed may not: a thread may still be reading into it.
        """
        buffer = reply.obj if isinstance(reply, memoryview) else None
        if not isinstance(buffer, bytearray) or len(self._buffers) == KEPT_BUFFERS:
            return
        if len(buffer) == KEPT_BYTES:
            self._buffers.append(buffer)

    def _buffer(self, size: int) -> bytearray:
        """One of `size` bytes or more."""
        if not KEPT_FROM <= size <= KEPT_BYTES:
            return bytearray(size)
        return self._buffers.pop() if self._buffers else bytearray(KEPT_BYTES)
