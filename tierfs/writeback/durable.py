"""Makes what was closed durable on the local tier, by itself and right away.

Most frameworks never fsync. So each op is synced as soon as it is issued: first its object, then,
with the group commit of the journal, its row. Nothing is published before (DESIGN 2).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import trio

from tierfs.journal import SaveOp
from tierfs.model import Mark, Op, OpKind, OpState
from tierfs.writeback.failures import Verdict, not_synced, path_of, unreadable
from tierfs.writeback.rooms import LocalFailure, Rooms

log = logging.getLogger(__name__)

HAS_OBJECT = frozenset({OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.SETATTR})
"""Ops that send something of a local object; of the others the row is all there is."""


class Syncer:
    """Syncs ops in the order in which they were issued, several at once.

    `on_durable()` is called whenever an op has become durable, `on_marked(op, verdict, mark)`
    when it cannot.
    """

    def __init__(
        self,
        rooms: Rooms,
        on_durable: Callable[[], None],
        on_marked: Callable[[Op, Verdict, Mark], None],
    ) -> None:
        self._rooms = rooms
        self._on_durable = on_durable
        self._on_marked = on_marked
        self._queued: set[int] = set()
        self._send, self._receive = trio.open_memory_channel[Op](math.inf)

    def soon(self, op: Op) -> None:
        """Queue `op` if it needs syncing and no writer has it open; twice does no harm."""
        ready = op.state in (OpState.PENDING, OpState.PUBLISHING)
        if ready and not op.durable and op.row not in self._queued:
            self._queued.add(op.row)
            self._send.send_nowait(op)

    async def run(self, workers: int) -> None:
        """Sync what is queued until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        async for op in self._receive:
            self._queued.discard(op.row)
            try:
                await self._sync(op)
            except Exception:
                # the row stays as it is: not durable, so not published, and visible as unsynced
                log.exception("%s: could not be made durable", path_of(op))

    async def _sync(self, op: Op) -> None:
        if op.durable or op.mark is Mark.SUSPECT or not self._rooms.alive(op):
            return
        data, attributes = op.data_version, op.attr_version
        if op.kind in HAS_OBJECT and not await self._sync_object(op):
            return
        if not self._rooms.alive(op) or op.is_open:
            return
        if (op.data_version, op.attr_version) != (data, attributes):
            self.soon(op)
            return
        op.durable = True
        await self._rooms.journal.post(SaveOp(op)).synced()
        statistics = self._rooms.statistics
        statistics.durable_count += 1
        statistics.durable_seconds += max(0.0, (time.time_ns() - op.timestamp_ns) / 1e9)
        self._on_durable()

    async def _sync_object(self, op: Op) -> bool:
        try:
            await self._rooms.local(self._rooms.store.sync, op.object)
        except LocalFailure as failure:
            error = failure.__cause__
            assert isinstance(error, OSError)
            missing = isinstance(error, FileNotFoundError)
            if self._rooms.alive(op):
                verdict = (unreadable if missing else not_synced)(error, path_of(op))
                self._on_marked(op, verdict, Mark.STUCK if missing else Mark.SUSPECT)
            return False
        return True
