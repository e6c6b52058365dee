"""Bytes of open files: read and written by the daemon, allocated, searched for holes, copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tierfs.namespace.core import Core
from tierfs.namespace.data import Data
from tierfs.namespace.nodes import Handle, LocalObject
from tierfs.namespace.spilling import Spilling

T = TypeVar("T")

BURST_BYTES = 64 << 10
"""Writes of this size are no log lines."""

COPY_BYTES = 1 << 30
"""Most that one copy_file_range takes: without reflink it is really copied."""


class Ranges:
    """What is done to parts of an open file.

    A full local tier first drops clean copies (G9); then the file goes on on the shared one.
    """

    def __init__(
        self, core: Core, data: Data, spilling: Spilling,
        make_room: Callable[[int], Awaitable[bool]],
    ) -> None:  # fmt: skip
        self._core = core
        self._data = data
        self._spilling = spilling
        self._make_room = make_room

    async def read(self, handle: Handle, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; short only at the end of the file."""
        buffer = bytearray(size)
        count = await self.read_into(handle, offset, memoryview(buffer))
        return bytes(buffer[:count])

    async def read_into(self, handle: Handle, offset: int, room: memoryview) -> int:
        """Fills `room` with what stands at `offset`; less only at the end of the file."""
        os_ = self._core.os
        return await self._look(
            handle, "read", lambda step, fd: os_.pread_into(step, fd, room, offset)
        )

    async def write(self, handle: Handle, offset: int, data: bytes | memoryview) -> int:
        """Writes all of `data`."""
        os_ = self._core.os
        await self._change(
            handle, len(data), lambda fd: os_.pwrite_all("write.local", fd, data, offset)
        )
        return len(data)

    async def fallocate(self, handle: Handle, offset: int, length: int, mode: int) -> None:
        """fallocate(2) with the modes of the local file system; EOPNOTSUPP for the others."""
        os_ = self._core.os
        await self._change(
            handle, length, lambda fd: os_.fallocate("write.allocate", fd, offset, length, mode)
        )

    async def seek(self, handle: Handle, offset: int, whence: int) -> int:
        """The next data or hole from `offset` on (SEEK_DATA, SEEK_HOLE); ENXIO at the end."""
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        os_ = self._core.os
        return await self._look(handle, "seek", lambda step, fd: os_.seek(step, fd, offset, whence))

    async def copy(
        self, source: Handle, offset: int, target: Handle, target_offset: int, size: int
    ) -> int:
        """copy_file_range(2): bytes copied, by reflink where possible; EXDEV across the tiers."""
        os_, obj = self._core.os, source.object
        if obj is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        size = min(size, COPY_BYTES)
        obj.users += 1
        try:
            fd = _reading(obj)
            return await self._change(
                target, size,
                lambda to: os_.copy_range("write.copy", fd, to, size, offset, target_offset),
            )  # fmt: skip
        finally:
            await self._data.release(obj)

    async def _look(self, handle: Handle, what: str, look: Callable[[str, int], int]) -> int:
        obj, core = handle.object, self._core
        if obj is None:
            return await core.on_shared_file(handle, lambda fd: look(f"{what}.shared", fd))
        obj.users += 1  # the handle may be switched to another object meanwhile
        try:
            return await core.of_object(obj.id, look, f"{what}.local", _reading(obj))
        finally:
            await self._data.release(obj)

    async def _change(self, handle: Handle, size: int, change: Callable[[int], T]) -> T:
        obj = handle.object
        if obj is None or not handle.writable:
            raise OSError(errno.EBADF, "not open for writing")
        core = self._core
        if size >= BURST_BYTES:
            core.writeback.pace.touch()
        obj.users += 1
        self._data.touched(obj)
        try:
            while True:
                await self._spilling.entered(obj)
                try:
                    with self._spilling.changing(obj):
                        fd = await self._data.writable(obj)
                        return await core.of_object(obj.id, change, fd)
                except OSError as error:
                    if not await self._more_room(obj, size, error):
                        raise
        finally:
            self._data.touched(obj)
            await self._data.release(obj)

    async def _more_room(self, obj: LocalObject, size: int, error: OSError) -> bool:
        """Whether a change of `obj` that met `error` is worth another try."""
        local = not self._core.store.spread.is_spilled(obj.id)
        if local and error.errno == errno.ENOSPC and await self._make_room(size):
            return True
        return await self._spilling.helps(obj, error)


def _reading(obj: LocalObject) -> int:
    return obj.fd if obj.fd >= 0 else obj.write_fd
