"""Waiting for ops on behalf of a flush or an unmount, truthfully (G5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from tierfs.model import Op, OpKind, OpState
from tierfs.writeback.records import FlushProgress, FlushResult, Held
from tierfs.writeback.rooms import Rooms
from tierfs.writeback.settings import WritebackSettings
from tierfs.writeback.staging import Stager

UNCLOSED = frozenset({OpState.OPEN, OpState.CLOSED})


@dataclass(slots=True, eq=False)
class _Waiter:
    """One flush that waits.

    Attributes:
        left: its ops that are not over.
        witness: one of them that could go on when it was last looked at.
        changed: `left` became empty, or an op was marked.
    """

    left: dict[int, Op]
    total_files: int
    total_bytes: int
    witness: Op | None = None
    done_files: int = 0
    done_bytes: int = 0
    committed_files: int = 0
    committed_bytes: int = 0
    dropped: list[Held] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)


class Flushes:
    """All flushes that wait now."""

    def __init__(self, rooms: Rooms, stager: Stager, settings: WritebackSettings) -> None:
        self._rooms = rooms
        self._stager = stager
        self._pause = settings.progress_seconds
        self._waiters: set[_Waiter] = set()

    # -- what the service reports ----------------------------------------------------------------

    def over(self, op: Op, *, committed: bool) -> None:
        """`op` is committed, or else dropped or taken back."""
        for waiter in self._waiters:
            if waiter.left.pop(op.row, None) is None:
                continue
            if op.kind is OpKind.PUT:
                waiter.done_files += 1
                waiter.done_bytes += op.size
                waiter.committed_files += committed
                waiter.committed_bytes += op.size * committed
            if not waiter.left:
                waiter.changed.set()

    def dropped(self, op: Op, reason: str) -> None:
        """`op` is about to be over because there is nothing to do for it."""
        for waiter in self._waiters:
            if op.row in waiter.left:
                waiter.dropped.append(Held(op, reason))

    def look_again(self) -> None:
        """An op was marked: perhaps nothing that somebody waits for can go on any more."""
        for waiter in self._waiters:
            waiter.changed.set()

    # -- waiting ---------------------------------------------------------------------------------

    async def wait(
        self,
        ops: Iterable[Op],
        seconds: float | None,
        progress: Callable[[FlushProgress], None] | None,
    ) -> FlushResult:
        """See :meth:`WriteBack.wait`."""
        left = {op.row: op for op in ops}
        files = [op.size for op in left.values() if op.kind is OpKind.PUT]
        waiter = _Waiter(left, len(files), sum(files))
        self._waiters.add(waiter)
        try:
            with trio.move_on_after(math.inf if seconds is None else seconds) as scope:
                await self._wait(waiter, progress)
        finally:
            self._waiters.discard(waiter)
        return self._result(waiter, scope.cancelled_caught)

    async def _wait(
        self, waiter: _Waiter, progress: Callable[[FlushProgress], None] | None
    ) -> None:
        await trio.lowlevel.checkpoint()
        while waiter.left and self._can_go_on(waiter):
            if progress is not None:
                progress(self._progress(waiter))
            with trio.move_on_after(self._pause):
                await waiter.changed.wait()
            waiter.changed = trio.Event()
        if progress is not None:
            progress(self._progress(waiter))

    def _can_go_on(self, waiter: _Waiter) -> bool:
        """Whether any op can; the one found last time is asked first, so that it stays cheap."""
        now = self._rooms.clock()
        witness = waiter.witness
        if witness is not None and witness.row in waiter.left and self._free(witness, now):
            return True
        waiter.witness = next((op for op in waiter.left.values() if self._free(op, now)), None)
        return waiter.witness is not None

    def _free(self, op: Op, now: float) -> bool:
        return not self._rooms.backlog.blocked_for_good(op, now)

    def _progress(self, waiter: _Waiter) -> FlushProgress:
        transfers = [t for t in self._stager.transfers() if t.op.row in waiter.left]
        return FlushProgress(
            waiter.total_files,
            waiter.done_files,
            waiter.total_bytes,
            min(waiter.total_bytes, waiter.done_bytes + sum(t.sent for t in transfers)),
            self._stager.rate.value(),
            tuple(t.path for t in transfers),
        )

    def _result(self, waiter: _Waiter, timed_out: bool) -> FlushResult:
        now = self._rooms.clock()
        remaining: list[Op] = []
        stuck: list[Op] = []
        open_: list[Op] = []
        held: list[Held] = []
        for op in sorted(waiter.left.values(), key=lambda op: op.number):
            if self._rooms.backlog.is_held(op):
                continue  # nobody waits for a removal that is held
            if op.mark is not None:
                stuck.append(op)
            elif op.state in UNCLOSED:
                open_.append(op)
            elif self._free(op, now):
                remaining.append(op)
            else:
                held.append(Held(op, self._rooms.backlog.explain(op, now)))
        return FlushResult(
            waiter.committed_files, waiter.committed_bytes, timed_out and bool(waiter.left),
            tuple(remaining), tuple(stuck), tuple(held), tuple(open_), tuple(waiter.dropped),
        )  # fmt: skip
