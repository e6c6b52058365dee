"""Makes what was closed durable on the local tier, by itself.

Most frameworks never fsync. So each op is synced as soon as the burst that it belongs to is over
(see `Pace`): first its object, then, with the group commit of the journal, its row. Nothing is
published before (DESIGN 2).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import trio

from tierfs.journal import SaveOp
from tierfs.model import Mark, ObjectId, Op, OpKind, OpState
from tierfs.writeback.failures import Verdict, not_synced, path_of, unreadable
from tierfs.writeback.pace import Pace
from tierfs.writeback.rooms import Rooms

log = logging.getLogger(__name__)

HAS_OBJECT = frozenset({OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.SETATTR})
"""Ops that send something of a local object; of the others the row is all there is."""


BATCH_OPS = 64
BATCH_BYTES = 16 << 20
"""What one thread syncs in one go, so that each directory of objects is synced once."""


class Syncer:
    """Syncs ops in the order in which they were issued, several at once.

    `on_durable()` is called whenever ops have become durable, `on_marked(op, verdict, mark)`
    when one cannot.
    """

    def __init__(
        self,
        rooms: Rooms,
        pace: Pace,
        on_durable: Callable[[], None],
        on_marked: Callable[[Op, Verdict, Mark], None],
    ) -> None:
        self._rooms = rooms
        self._pace = pace
        self._on_durable = on_durable
        self._on_marked = on_marked
        self._queue: dict[int, Op] = {}
        self._more = trio.Event()
        self._working = 0

    def soon(self, op: Op) -> None:
        """Queue `op` if it needs syncing and no writer has it open; twice does no harm."""
        if _ready(op):
            self._queue.setdefault(op.row, op)
            self._more.set()

    async def run(self, workers: int) -> None:
        """Sync what is queued until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work, workers)

    async def _work(self, workers: int) -> None:
        while True:
            await self._pace.breathe(workers)
            batch = self._take(workers)
            if not batch:
                await self._until_more()
                continue
            self._working += 1
            try:
                await self._sync(batch)
            except Exception:
                # the rows stay as they are: not durable, so not published, and visible as unsynced
                log.exception("%s: could not be made durable", ", ".join(map(path_of, batch)))
            finally:
                self._working -= 1

    def _take(self, workers: int) -> list[Op]:
        free = self._working < self._pace.width(workers)
        if not free and not self._pace.any_awaited:
            return []
        batch: list[Op] = []
        size = 0
        for op in self._queue.values():
            if free or self._pace.is_awaited(op.row):
                batch.append(op)
                size += op.size
            if len(batch) == BATCH_OPS or size >= BATCH_BYTES:
                break
        for op in batch:
            del self._queue[op.row]
        return batch

    async def _until_more(self) -> None:
        if self._queue:
            await self._pace.change()
            return
        if self._more.is_set():
            self._more = trio.Event()
        await self._more.wait()

    async def _sync(self, batch: list[Op]) -> None:
        rooms = self._rooms
        batch = [
            op for op in batch
            if not op.durable and op.mark is not Mark.SUSPECT and rooms.alive(op)
        ]  # fmt: skip
        versions = {op.row: (op.data_version, op.attr_version) for op in batch}
        failed = await self._sync_objects([op.object for op in batch if op.kind in HAS_OBJECT])
        done = []
        for op in batch:
            if not rooms.alive(op):
                continue
            if op.kind in HAS_OBJECT and op.object in failed:
                self._failed(op, failed[op.object])
            elif op.is_open:
                continue
            elif (op.data_version, op.attr_version) != versions[op.row]:
                self.soon(op)
            else:
                done.append(op)
        if done:
            await self._note(done)

    async def _sync_objects(self, objects: list[ObjectId]) -> Mapping[ObjectId, OSError]:
        rooms = self._rooms
        far = tuple(filter(rooms.store.spread.is_spilled, objects))
        near = tuple(each for each in objects if each not in far)
        failed: dict[ObjectId, OSError] = {}
        if near:
            failed |= await rooms.local(rooms.store.sync_all, near)
        if far:
            failed |= await rooms.on_shared(rooms.store.sync_all, far)
        return failed

    async def _note(self, done: list[Op]) -> None:
        for op in done:
            op.durable = True
        await self._rooms.journal.post(*map(SaveOp, done)).synced()
        statistics, now = self._rooms.statistics, time.time_ns()
        statistics.durable_count += len(done)
        statistics.durable_seconds += sum(max(0.0, (now - op.timestamp_ns) / 1e9) for op in done)
        self._on_durable()

    def _failed(self, op: Op, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        verdict = (unreadable if missing else not_synced)(error, path_of(op))
        self._on_marked(op, verdict, Mark.STUCK if missing else Mark.SUSPECT)


def _ready(op: Op) -> bool:
    return op.state in (OpState.PENDING, OpState.PUBLISHING) and not op.durable
