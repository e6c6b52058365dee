"""Closes that wait while too much is pending (`max_pending_bytes`, `max_pending_age`)."""

from __future__ import annotations

import time

import trio

from tierfs.capacity import Turns, Waiting
from tierfs.model import ROOT, Op, OpKind, OpState, Phase
from tierfs.namespace.core import Core
from tierfs.namespace.room.waiting import CLOSING_SECONDS, Waiters

PAUSE_SECONDS = 0.05
"""How far apart two sums over all that is pending are at least."""

TICK_SECONDS = 1.0
"""How often it is looked again although nothing was sent: an age is no event."""


class Backpressure:
    """What was closed is safe before its close waits here: only how fast more comes is decided.

    Counted is what can be sent without the file whose close waits: what is closed and not staged
    yet. So nothing that is counted waits for one of those that wait.

    Attributes:
        waiters: closes that wait now.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._turns = Turns()
        self._pending: dict[int, tuple[Op, float]] = {}
        self._bytes, self._oldest_ns, self._known_until = 0, 0, 0.0
        self._come, self._admitted = trio.Event(), trio.Event()
        self._known = False
        self.waiters = Waiters()

    @property
    def limited(self) -> bool:
        """Whether closes may have to wait."""
        limited = self._core.settings.limits.any
        if self._known and not limited:  # changed while mounted
            self._known = False
            self._pending.clear()
        return limited

    async def run(self) -> None:
        """Admits those whose turn it is, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.waiters.run)
            nursery.start_soon(self._admit_waiting)

    async def wait(self, op: Op, thread: int) -> None:
        """Returns when the close of the file of `op` may; at once when `thread` is killed.

        A process that ends closes its files and cannot be killed any more: it does not wait.
        """
        if not self._known:
            self._take_stock()
        self._turns.come(Waiting(op.row, op.size))
        try:
            self._admit()
            if not self._turns.is_in(op.row):
                return
            self._come.set()
            with self.waiters.waiting(thread, quietly=True), self._core.writeback.pace.rush():
                while self._turns.is_in(op.row):
                    await self._admitted.wait()
        finally:
            self._turns.leave(op.row)
            self._pending[op.row] = op, time.monotonic()

    def _take_stock(self) -> None:
        """What is pending since before there was a limit, or was left by an earlier daemon."""
        now, ops = time.monotonic(), self._core.backlog.under(ROOT)
        self._pending = {
            op.row: (op, now) for op in ops if op.kind is OpKind.PUT and not op.is_open
        }
        self._known = True

    async def _admit_waiting(self) -> None:
        core = self._core
        while True:
            await self._come.wait()
            self._come = trio.Event()
            # what is kept back for a while only would keep them, too
            core.backlog.release_holds(None)
            core.writeback.wake()
            while self._turns:
                self._admit()
                with trio.move_on_after(TICK_SECONDS):
                    await core.writeback.progress()
                await trio.sleep(PAUSE_SECONDS)

    def _admit(self) -> None:
        self._count()
        age = (time.time_ns() - self._oldest_ns) / 1e9 if self._oldest_ns else 0.0
        admitted = self._turns.admit(self._core.settings.limits, self._bytes, age)
        if admitted:
            self._bytes += sum(each.size for each in admitted)
            self._admitted.set()
            self._admitted = trio.Event()

    def _count(self) -> None:
        """Bytes that wait to be staged, and since when the oldest of them does."""
        now = time.monotonic()
        if now < self._known_until:
            return
        over = [row for row, entry in self._pending.items() if not self._counts(*entry, now)]
        for row in over:
            del self._pending[row]
        ops = [op for op, _ in self._pending.values()]
        self._bytes = sum(op.size for op in ops)
        self._oldest_ns = min((op.timestamp_ns for op in ops), default=0)
        # many ops: counting them takes at most a tenth of the time
        self._known_until = time.monotonic() + max(PAUSE_SECONDS, 10 * (time.monotonic() - now))

    def _counts(self, op: Op, since: float, now: float) -> bool:
        if op not in self._core.backlog or op.mark is not None or op.phase >= Phase.STAGED:
            return False
        # what is not released soon after its close is open elsewhere: that is not sent
        return op.state is not OpState.CLOSED or now - since < CLOSING_SECONDS
