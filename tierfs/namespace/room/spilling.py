"""Files for which the local tier has no room: their content moves to the shared tier and goes on.

The whole object moves, so afterwards there is one place again for reads, writes, truncates and
fsync, and nothing above has to know. Who writes waits meanwhile; who reads does not.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from tierfs.model import ObjectId
from tierfs.namespace.content.data import COPY_BYTES, change_mode, copy_piece
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import LocalObject, Node

log = logging.getLogger(__name__)


class Spilling:
    """Moves objects out, one step at a time with those who change them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changing: Counter[ObjectId] = Counter()
        self._moving: dict[ObjectId, trio.Event] = {}
        self._less = trio.Event()

    async def entered(self, obj: LocalObject) -> None:
        """Waits until `obj` is not being moved; `changing` is to be entered in the same step."""
        while (moving := self._moving.get(obj.id)) is not None:
            await moving.wait()

    @contextmanager
    def changing(self, obj: LocalObject) -> Iterator[None]:
        """While its content is changed in a thread it is not moved."""
        self._changing[obj.id] += 1
        try:
            yield
        finally:
            self._changing[obj.id] -= 1
            if not self._changing[obj.id]:
                del self._changing[obj.id]
                self._less.set()

    async def helps(self, obj: LocalObject) -> bool:
        """Moves `obj` out, for which there is no room, if another change has not done so.

        False: the kernel writes to the file by itself. OSError: the shared tier is full, too, or
        failed.
        """
        core = self._core
        if core.store.spread.is_spilled(obj.id):
            return True
        if obj.live:
            return False
        node = core.tree.by_object.get(obj.id)
        if node is None:
            return False
        async with node.lock:
            if node.backing or obj.live:
                return False
            if not core.store.spread.is_spilled(obj.id):
                await self._move(node, obj)
        return True

    async def _move(self, node: Node, obj: LocalObject) -> None:
        over = self._moving[obj.id] = trio.Event()
        obj.users += 1
        try:
            while self._changing[obj.id]:
                self._less = trio.Event()
                await self._less.wait()
            log.warning("%s: the local tier is full: goes on on the shared tier", _named(node, obj))
            await self._copy(obj)
            await self._switch(obj)
            obj.changed()
        finally:
            obj.users -= 1
            del self._moving[obj.id]
            over.set()

    async def _copy(self, obj: LocalObject) -> None:
        core, spread = self._core, self._core.store.spread
        source = await core.local(core.store.open_object, obj.id, os.O_RDONLY | os.O_NOATIME)
        try:
            size = (await core.local(core.store.attributes_of, source)).size
            target = await core.calls.content(spread.begin_move, obj.id)
            try:
                await core.calls.content(core.os.ftruncate, "spill.size", target, size)
                for start, end in await core.local(
                    lambda: list(core.os.data_ranges("spill.ranges", source, size))
                ):
                    for at in range(start, end, COPY_BYTES):
                        piece = min(COPY_BYTES, end - at)
                        await core.calls.content(copy_piece, core.os, source, target, at, piece)
                await core.calls.content(spread.finish_move, obj.id, source, target)
            except BaseException:
                with trio.CancelScope(shield=True):
                    if not spread.is_spilled(obj.id):
                        await core.calls.content(spread.abandon_move, obj.id, target)
                raise
            await core.calls.content(core.os.close, "spill.close", target)
        finally:
            with trio.CancelScope(shield=True):
                await core.local(core.os.close, "spill.close", source)

    async def _switch(self, obj: LocalObject) -> None:
        """The descriptors that handles share stand for the moved file: no handle has to know."""
        core = self._core
        for fd, flags in ((obj.fd, os.O_RDONLY), (obj.write_fd, os.O_RDWR)):
            if fd >= 0:
                await core.calls.content(change_mode, core, obj.id, fd, flags)


def _named(node: Node, obj: LocalObject) -> str:
    name = node.a_name()
    return os.fsdecode(name[1]) if name is not None else f"object {obj.id:016x}"
