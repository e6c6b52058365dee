"""Clean copies that go, least recently used first, before anybody meets ENOSPC (G9)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

import trio

from tierfs.capacity import Marks, Usage, Written, to_evict
from tierfs.config import reserve_bytes
from tierfs.journal import DropClean, TouchClean
from tierfs.local import ObjectStore
from tierfs.model import CleanRecord, ObjectId
from tierfs.namespace.core import Core

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""How often the drive is asked how full it is; in between, whoever needs room asks."""

VICTIMS = 64
"""How many are looked at, and dropped in one post, at a time."""


class Eviction:
    """Keeps the local tier between its watermarks. Nothing pending is ever touched.

    Attributes:
        evicted_files, evicted_bytes: since the start of this daemon.
        in_use: bytes of clean copies that could not go at the last look, as somebody had them.
    """

    def __init__(self, core: Core, written: Callable[[list[int]], Mapping[int, Written]]) -> None:
        """`written`: how the open files are now, by number of their node."""
        self._core = core
        self._written = written
        self._busy = trio.StrictFIFOLock()
        self._wanted = trio.Event()
        self.evicted_files = 0
        self.evicted_bytes = 0
        self.in_use = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.tend()
                await self._watch()
            except OSError as error:
                log.warning("looking how full the local tier is: %s", error)
                await trio.sleep(TICK_SECONDS)

    async def _watch(self) -> None:
        """Until the next tick; sees meanwhile to it that who was promised room will find it."""
        promises, end = self._core.promises, trio.current_time() + TICK_SECONDS
        while (left := end - trio.current_time()) > 0:
            pause = min(left, promises.pause())
            self._wanted = trio.Event()
            with trio.move_on_after(pause):
                await self._wanted.wait()
                return
            if pause < left:
                await self._look()
                if promises.missing(0) and await self._evictable():
                    return

    def soon(self) -> None:
        """What was promised is more than what is free: looks at once."""
        self._wanted.set()

    async def tend(self) -> None:
        """Looks how full the tier is, and evicts if it is above its mark or more is promised."""
        core = self._core
        if core.store.spread.only_far:
            return
        usage = await self._look()
        reserve = core.store.reserve
        kept = reserve_bytes(core.settings.small_reserve, usage.total)
        missing = to_evict(usage, self.marks, core.promises.wanted + max(0, kept - reserve.held))
        if missing:
            await self._evict(missing)
        if kept != reserve.held:
            await core.local(reserve.fill, kept, max(0, usage.free - core.promises.rest))
        core.freed.tell()

    async def promise(self, number: int, expected: int, size: int) -> bool:
        """Whether there is room for all that node `number` will write past the daemon.

        It has `size` bytes now and is `expected` to have so many. If so it has its promise.
        """
        promises = self._core.promises
        need = max(expected, size)
        if self._core.store.spread.only_far:
            return False
        if not promises.is_ample(need, time.monotonic()):
            await self._look()
            missing = promises.missing(need)
            if missing and missing <= await self._evictable():
                await self.make(missing)
                await self._look()
            if promises.missing(need):
                return False
        promises.take(number, expected, size)
        return True

    async def leaves(self, size: int) -> bool:
        """Whether `size` bytes written through the daemon leave room for what is promised.

        And for small files, what was given to them of the reserve.
        """
        promises, owed = self._core.promises, self._core.store.reserve.owed
        now = time.monotonic()
        at_hand = not owed or promises.surely_free(size + owed, now)
        if at_hand and promises.surely_leaves(size, now):
            return True
        usage = await self._look()
        return promises.leaves(size) and (not owed or size + owed <= usage.free)

    async def _evictable(self) -> int:
        """Bytes of clean copies that may be able to go."""
        _, clean = await self._core.journal.clean_totals()
        return max(0, clean - self._core.pins.bytes - self.in_use)

    async def make(self, wanted: int) -> int:
        """Evicts for `wanted` bytes that did not fit; bytes that went, 0: nothing could go."""
        usage = await self._look()
        return await self._evict(max(wanted, to_evict(usage, self.marks)))

    @property
    def marks(self) -> Marks:
        """Those of the settings."""
        settings = self._core.settings  # may change while mounted
        return Marks(settings.watermark, settings.watermark_low)

    async def drop_idle(self, records: list[CleanRecord]) -> list[CleanRecord]:
        """Drops those of `records` that nobody uses or has pinned; returns the others."""
        spared = []
        async with self._busy:
            for start in range(0, len(records), VICTIMS):
                spared += await self._drop_unused(records[start : start + VICTIMS])
        return spared

    async def _look(self) -> Usage:
        core = self._core
        now = time.monotonic()
        usage = Usage(*await core.local(core.store.usage))
        files = self._written(core.promises.numbers())
        core.promises.looked(usage, files, core.settings.reserve, now)
        core.expected.otherwise = core.settings.expect_bytes
        return usage

    async def _evict(self, missing: int) -> int:
        async with self._busy:
            left, _ = await self._core.journal.clean_totals()
            done = self.in_use = 0
            while done < missing and left > 0:
                records = await self._core.journal.clean_victims(VICTIMS)
                left -= len(records)
                if not records:
                    break
                done += await self._drop_some(records, missing - done)
            return done

    async def _drop_some(self, records: list[CleanRecord], missing: int) -> int:
        """Drops of `records`, in this order, what nobody uses, for `missing` bytes.

        The others become the most recently used: those in use are, and those that are pinned
        are not looked at again so soon.
        """
        count = total = 0
        for record in records:
            if total >= missing:
                break
            count += 1
            total += max(1, record.bytes) if self._may_go(record) else 0
        tried = records[:count]
        spared = await self._drop_unused(tried)
        pinned = self._core.pins.is_pinned
        self.in_use += sum(r.bytes for r in spared if not pinned(r.signature.inode))
        now = time.time_ns()
        self._core.journal.post(*(TouchClean(record.signature.inode, now) for record in spared))
        return sum(max(1, record.bytes) for record in tried if record not in spared)

    async def _drop_unused(self, records: list[CleanRecord]) -> list[CleanRecord]:
        core = self._core
        maybe = [record.object for record in records if self._may_go(record)]
        idle = await core.local(self._idle, maybe)
        going = [r for r in records if r.object in idle and self._may_go(r)]
        await self.drop(going)
        self.evicted_files += len(going)
        self.evicted_bytes += sum(record.bytes for record in going)
        return [record for record in records if record not in going]

    def _idle(self, objects: list[ObjectId]) -> set[ObjectId]:
        """Those that nobody has open or mapped, and those that are lost. Blocking."""
        self._core.closing.drain()  # or we had them
        return {object_id for object_id in objects if self._core.store.is_idle(object_id)}

    def _may_go(self, record: CleanRecord) -> bool:
        core = self._core
        return record.object not in core.tree.objects and not core.pins.is_pinned(
            record.signature.inode
        )

    async def drop(self, records: Iterable[CleanRecord]) -> None:
        """Lets go of clean copies: first their rows, then their files.

        Who opens one in between is its last user, and removes it.
        """
        core, gone = self._core, list(records)
        if not gone:
            return
        await core.journal.post(*(DropClean(each.signature.inode) for each in gone)).written()
        free = []
        for record in gone:
            obj = core.tree.objects.get(record.object)
            if obj is not None:
                obj.clean = False
            else:
                free.append(record.object)
        await core.local(remove_objects, core.store, free)
        core.freed.tell()


def remove_objects(store: ObjectStore, objects: list[ObjectId]) -> None:
    """Removes many objects. Blocking."""
    for object_id in objects:
        store.remove(object_id)
