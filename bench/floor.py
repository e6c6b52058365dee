"""The yardstick of the mount with passthrough: plain pyfuse3 behind the least of a filter.

    python -m bench.floor DIRECTORY MOUNTPOINT

What `bench.plain` does, with every open file granted to the kernel. Nothing that is done in
pyfuse3 can be done with less; it promises nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys

import pyfuse3
import trio

from bench.plain import Plain
from tierfs.kernel import wire
from tierfs.kernel.device import Device
from tierfs.kernel.filter import MESSAGE_BYTES
from tierfs.kernel.wire import InitFlag, Opcode

ADD = InitFlag.DONT_MASK | InitFlag.HANDLE_KILLPRIV_V2 | InitFlag.PASSTHROUGH
REWRITTEN = frozenset({Opcode.INIT, Opcode.OPEN, Opcode.CREATE})


class Granted(Plain):
    """Open files have a backing until they are released."""

    def __init__(self, root: bytes, device: Device) -> None:
        super().__init__(root)
        self._device = device
        self._backings: dict[int, int] = {}

    def grant(self, fh: int) -> int:
        """The backing of an open file."""
        self._backings[fh] = self._device.open_backing(fh)
        return self._backings[fh]

    async def release(self, fh: int) -> None:
        self._device.close_backing(self._backings.pop(fh))
        await super().release(fh)


class Pumps:
    """Moves every message; of the replies those to INIT, OPEN and CREATE are changed."""

    def __init__(self, device: Device, operations: Granted) -> None:
        self._device = device
        self._operations = operations
        self._awaited: dict[int, int] = {}
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, theirs):
            end.setblocking(False)
        self.path = f"/dev/fd/{theirs.detach()}"

    async def requests(self) -> None:
        """From the kernel, until the mount is gone."""
        buffer = bytearray(MESSAGE_BYTES)
        view = memoryview(buffer)
        while True:
            await trio.lowlevel.wait_readable(self._device.fd)
            try:
                while True:
                    size = self._device.receive(buffer)
                    request = wire.Request.of(view)
                    if request.opcode in REWRITTEN:
                        self._awaited[request.unique] = request.opcode
                    self._ours.send(view[:size])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                    pyfuse3.terminate()
                    return

    async def replies(self) -> None:
        """To the kernel."""
        buffer = bytearray(MESSAGE_BYTES)
        view = memoryview(buffer)
        while True:
            await trio.lowlevel.wait_readable(self._ours)
            with contextlib.suppress(BlockingIOError):
                while size := self._ours.recv_into(buffer):
                    self._pass_on(view[:size])
                return

    def _pass_on(self, message: memoryview) -> None:
        _, error, unique = wire.REPLY_HEADER.unpack_from(message)
        opcode = self._awaited.pop(unique, None)
        if opcode == Opcode.INIT:
            self._device.send(wire.with_init_flags(bytes(message), ADD, max_stack_depth=1))
            return
        if opcode is not None and not error:
            backing = self._operations.grant(wire.opened_handle(message, opcode))
            wire.set_backing(message, opcode, backing)
        self._device.send(message)


async def serve(pumps: Pumps) -> None:
    """Until it is unmounted."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumps.requests)
        nursery.start_soon(pumps.replies)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Serves DIRECTORY at MOUNTPOINT until it is unmounted."""
    directory, mountpoint = sys.argv[1:]
    device = Device()
    operations = Granted(os.fsencode(directory), device)
    pumps = Pumps(device, operations)
    pyfuse3.init(operations, pumps.path, {"fsname=floor"})
    device.mount(mountpoint, "floor")
    print("ready", flush=True)
    trio.run(serve, pumps)
    pyfuse3.close()


if __name__ == "__main__":
    main()
