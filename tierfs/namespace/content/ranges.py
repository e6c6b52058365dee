"""Bytes of open files: read and written by the daemon, allocated, searched for holes, copied."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from typing import TypeVar

from tierfs.capacity import Next
from tierfs.namespace.content.data import Data
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Handle, LocalObject
from tierfs.namespace.room.drive import Drive
from tierfs.namespace.room.spilling import Spilling
from tierfs.namespace.room.waiting import FULL, Room

T = TypeVar("T")

BURST_BYTES = 64 << 10
"""Writes of this size are no log lines."""

COPY_BYTES = 1 << 30
"""Most that one copy_file_range takes: without reflink it is really copied."""


class Ranges:
    """What is done to parts of an open file. `thread` asks for it, 0: not known.

    What finds the local tier full waits for room (`Room`); then the file goes on on the shared one
    (`Spilling`).
    """

    def __init__(
        self, core: Core, data: Data, spilling: Spilling, room: Room,
        drive: Drive,
    ) -> None:  # fmt: skip
        self._core = core
        self._data = data
        self._spilling = spilling
        self._drive = drive
        self._room = room

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

    async def write(
        self, handle: Handle, offset: int, data: bytes | memoryview, thread: int = 0
    ) -> int:
        """Writes all of `data`."""
        os_ = self._core.os
        await self._change(
            handle, offset + len(data), len(data),
            lambda fd: os_.pwrite_all("write.local", fd, data, offset), thread,
        )  # fmt: skip
        return len(data)

    async def fallocate(
        self, handle: Handle, offset: int, length: int, mode: int, thread: int = 0
    ) -> None:
        """fallocate(2) with the modes of the local file system; EOPNOTSUPP for the others."""
        os_ = self._core.os
        await self._change(
            handle, offset + length, length,
            lambda fd: os_.fallocate("write.allocate", fd, offset, length, mode), thread,
        )  # fmt: skip

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
                target, target_offset + size, size,
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
            self._drive.check(obj)
            return await core.of_object(obj.id, look, f"{what}.local", _reading(obj))
        except OSError as error:
            if not (self._drive.failed or await core.is_drive_lost(error)):
                raise
            if not await self._data.read_shared_instead(handle):
                raise
        finally:
            await self._data.release(obj)
        return await self._look(handle, what, look)

    async def _change(
        self, handle: Handle, end: int, size: int, change: Callable[[int], T], thread: int = 0
    ) -> T:
        """Makes `change`, which takes `size` bytes up to `end`, once there is room for it."""
        if handle.object is None or not handle.writable:
            raise OSError(errno.EBADF, "not open for writing")
        if size >= BURST_BYTES:
            self._core.writeback.pace.touch()
        heeding = True  # what was promised to others
        for tried in itertools.count():
            # the handle may have been given another object while there was no room
            obj = handle.object
            assert obj is not None
            full: OSError | None = None
            small = self._room.is_small(handle.node, end)
            if not heeding or small or await self._leaves(obj, size):
                try:
                    return await self._change_now(obj, change)
                except OSError as error:
                    if error.errno not in FULL or self._core.store.spread.is_spilled(obj.id):
                        raise
                    full = error
            if not await self._has_found(obj, size, small=small, thread=thread, tried=tried):
                if full is not None:
                    raise full
                heeding = False
        raise AssertionError

    async def _has_found(
        self, obj: LocalObject, size: int, *, small: bool, thread: int, tried: int
    ) -> bool:
        """Whether a change of `obj` may succeed now: there is room, or it moved to where some is.

        OSError(EINTR): who asks for it was killed.
        """
        found = await self._room.find(
            size, small=small, thread=thread, tried=tried, can_spill=not obj.live
        )
        if found is not Next.SPILL:
            return found is Next.RETRY
        try:
            return await self._spilling.helps(obj)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False

    async def _leaves(self, obj: LocalObject, size: int) -> bool:
        """Whether a change of `obj` takes nothing of what was promised to others."""
        if obj.live or self._core.store.spread.is_spilled(obj.id):
            return True
        return await self._room.leaves(size)

    async def _change_now(self, obj: LocalObject, change: Callable[[int], T]) -> T:
        obj.users += 1
        self._data.touched(obj)
        try:
            self._drive.check(obj)
            await self._spilling.entered(obj)
            with self._spilling.changing(obj):
                fd = await self._data.writable(obj)
                return await self._core.of_object(obj.id, change, fd)
        finally:
            self._data.touched(obj)
            await self._data.release(obj)


def _reading(obj: LocalObject) -> int:
    return obj.fd if obj.fd >= 0 else obj.write_fd
