"""The service: lanes of workers that take ops from the backlog and see each through to its end."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from tierfs.errors import ObjectChanged, SpilledDamaged
from tierfs.journal import Change, Journal, SaveOp
from tierfs.local import ObjectStore
from tierfs.model import Mark, Name, ObjectId, Op, OpKind, OpState, Phase
from tierfs.order import Backlog, Work
from tierfs.shared import Places, SharedTier
from tierfs.threads import Pool
from tierfs.writeback.actions import Actions
from tierfs.writeback.durable import Syncer
from tierfs.writeback.failures import Verdict, damaged, path_of
from tierfs.writeback.flush import Flushes
from tierfs.writeback.pace import Pace
from tierfs.writeback.records import (
    FlushProgress,
    FlushResult,
    Outcome,
    OutcomeKind,
    Statistics,
    Status,
)
from tierfs.writeback.recovery import Recovery
from tierfs.writeback.removals import FULL, Removals
from tierfs.writeback.results import Applied, Held, NothingToDo, NotYet
from tierfs.writeback.retries import LOST, Retries
from tierfs.writeback.rooms import Rooms
from tierfs.writeback.settings import WritebackSettings
from tierfs.writeback.slots import Slots
from tierfs.writeback.staging import Stager
from tierfs.writeback.through import Through

log = logging.getLogger(__name__)

HELD_AGAIN_SECONDS = 1.0
"""How long a removal that may not go, and cannot be held, waits until it is looked at again."""

Action = Callable[[Op], Awaitable[Applied | None]]

HOLDS_SECONDS = 0.02
"""Holds that end within so long are looked at together: each removal of a tree has its own."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Up to `width` ops at once, of those that need this kind of work and that `want` accepts."""

    width: int
    work: tuple[Work, ...]
    want: Callable[[Op], bool] | None
    action: Action


class WriteBack:
    """Takes ops whose turn it is, makes them durable, stages, publishes, retries and reports.

    All methods belong to the trio thread. `clock` is monotonic and must be the clock that every
    other user of `backlog` passes as `now`. `is_group`: whether a directory of that name is a
    checkpoint, if it lies in none. `edit`: unseals a checkpoint whose end marker is about to be
    removed, if it must be. `on_published`: told of a checkpoint that was found published by another
    node, and what has its name. `on_outcome` is called in the synchronous step that
    ends an op, after `backlog.remove`; the changes it returns are posted to the journal in the
    same post as those of this room.

    Attributes:
        pace: to be told what the application does; it holds the work back meanwhile.
    """

    def __init__(
        self,
        backlog: Backlog,
        places: Places,
        journal: Journal,
        store: ObjectStore,
        shared: SharedTier,
        settings: WritebackSettings,
        on_outcome: Callable[[Outcome], Sequence[Change]],
        *,
        is_group: Callable[[Name], bool] = lambda name: False,
        edit: Callable[[ObjectId], bool] = lambda group: False,
        on_published: Callable[[ObjectId, os.stat_result], None] = lambda group, st: None,
        local_threads: Pool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        threads = local_threads or Pool("local", settings.syncers)
        self._rooms = Rooms(backlog, places, journal, store, shared, threads, clock)
        self._settings = settings
        self._on_outcome = on_outcome
        self.pace = Pace(clock)
        self._retries = Retries(self._rooms, settings)
        self._syncer = Syncer(self._rooms, self.pace, self.wake, self._marked)
        self._stager = Stager(self._rooms)
        self.removals = Removals(self._rooms, settings, lambda: self._retries.met(FULL), is_group)
        self._actions = Actions(
            self._rooms, self._stager, self.removals, is_group, edit, on_published
        )
        self._recovery = Recovery(self._rooms, self._actions, settings)
        self._flushes = Flushes(self._rooms, self._stager, settings)
        self._through = Through(
            self._rooms, self._flushes, self._retries, self.pace, lambda: self._wakeup
        )
        self._slots = Slots(clock, self._stager.moved, lambda: self._settings.hang_seconds)
        self._wakeup = trio.Event()
        self._over: dict[int, trio.Event] = {}
        self._given_back: dict[int, trio.Event] = {}

    # -- what the namespace calls ---------------------------------------------------------------

    def submit(self, op: Op) -> None:
        """Take over `op`, whose row is posted; again after it was closed.

        Nothing to do where it is over already: who awaited something since cannot know.
        """
        self._take_over(op)
        self.wake()

    def submit_restored(self, ops: Iterable[Op]) -> None:
        """The same of many, at a start."""
        for op in ops:
            self._take_over(op)
        self.wake()

    def _take_over(self, op: Op) -> None:
        if op not in self._rooms.backlog:
            return
        fresh = op.row not in self._rooms.live
        self._rooms.live[op.row] = op
        if fresh and op.state is OpState.PUBLISHING:
            self._recovery.add(op)
        if fresh and op.mark is Mark.STUCK:
            self._retries.loaded(op)
        self._syncer.soon(op)

    def sync_soon(self, op: Op) -> None:
        """Make `op` durable on the local tier without waiting for it to be sent."""
        self._syncer.soon(op)

    def cancel(self, op: Op) -> None:
        """The namespace took `op` back: forget it, and what was staged for it."""
        if self._rooms.alive(op):
            self._finish(op, None)
        self.wake()  # for what waited for it

    def lost(self, op: Op, why: str) -> None:
        """What `op` would send is gone: it is stuck, and named."""
        if self._rooms.alive(op):
            self._marked(op, Verdict(True, f"{path_of(op)}: {why}", LOST), Mark.STUCK)
        else:  # it is open
            op.mark, op.error = Mark.STUCK, why
            self._rooms.backlog.update(op)
            self._rooms.journal.post(SaveOp(op))

    def changed(self, scope: tuple[ObjectId, ...], changed_ns: int) -> None:
        """A name in the directory that `scope` ends with changed in the mount alone.

        Its mtime on the shared tier becomes `changed_ns`, unless a later change gives it another.
        """
        self._actions.changed(scope, changed_ns)

    def asked(self, directory: ObjectId, when_ns: int, mtime_ns: int) -> None:
        """An application gave `directory` that mtime at `when_ns`, past the ops.

        It gets it again when what is pending in it is committed.
        """
        self._actions.asked(directory, when_ns, mtime_ns)

    def hurry(self) -> None:
        """The shared tier answers again: what failed there is tried again at once."""
        self._retries.hurry()
        self.wake()

    def wake(self) -> None:
        """Something changed: look for work again."""
        self._wakeup.set()
        self._wakeup = trio.Event()

    async def progress(self) -> None:
        """Return when something was done, or came to be done."""
        await self._wakeup.wait()

    def found_others(self, op: Op) -> bool:
        """Whether the last attempt at `op` found another node at the same checkpoint."""
        return self._retries.reason(op) == "EAGAIN"

    async def committed(self, op: Op) -> None:
        """Return when `op` is committed or dropped; at once if it is not known here."""
        if self._rooms.alive(op):
            with self.pace.awaiting(op.row):
                await self._over.setdefault(op.row, trio.Event()).wait()
        else:
            await trio.lowlevel.checkpoint()

    async def finish(self, op: Op) -> None:
        """Returns when `op` is committed, or waits for nothing but what others have open.

        OSError when it is stuck, or the shared tier is full or read-only; it stays pending.
        """
        self._rooms.backlog.release_hold(op)
        self.wake()
        await self._through.finish(op)

    async def decided(self, op: Op) -> None:
        """Return when it is known whether the final call of `op` has happened.

        That is when it is over, or when it failed and may be tried again, never or late.
        """
        await trio.lowlevel.checkpoint()
        while self._rooms.alive(op) and op.phase is Phase.PUBLISHING:
            await self._given_back.setdefault(op.row, trio.Event()).wait()

    def retry_stuck(self, directory: ObjectId) -> None:
        """Try every stuck op below `directory` again now."""
        for op in list(self._rooms.backlog.under(directory)):
            self._try_stuck(op)
        self.wake()

    async def wait(
        self,
        ops: Iterable[Op],
        seconds: float | None = None,
        *,
        directory: ObjectId | None = None,
        progress: Callable[[FlushProgress], None] | None = None,
        keeps: Callable[[Op], bool] = lambda op: False,
    ) -> FlushResult:
        """Wait until each of `ops` is committed, dropped, or cannot go on by itself.

        Holds that only wait for time end at once, below `directory` or everywhere, but for what
        `keeps` its own; ops that are stuck are tried again first. `progress` is called now and
        then. When `seconds` are over, `timed_out` is set and `remaining` names what could have gone
        on.
        """
        self._rooms.backlog.release_holds(directory, keeps)
        waited = [op for op in ops if self._rooms.alive(op)]
        for op in waited:
            self._try_stuck(op)
        self.wake()
        with self.pace.rush():
            return await self._flushes.wait(waited, seconds, progress)

    def use(self, settings: WritebackSettings) -> None:
        """Go by other times from now on; how much is done at once stays as it is."""
        self._settings = self.removals.settings = settings

    def status(self) -> Status:
        """What is being done now."""
        return Status(
            self._rooms.statistics.committed_files,
            self._rooms.statistics.committed_bytes,
            self._stager.rate.value(),
            self._retries.report(),
            self._stager.report(),
        )

    def is_sending(self) -> bool:
        """Whether files are on their way, and move: the shared tier may be slow, but answers."""
        return self._stager.moves(self._rooms.clock() - self._settings.hang_seconds)

    @property
    def statistics(self) -> Statistics:
        """Counts since the start, for metrics."""
        return self._rooms.statistics

    # -- workers --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled. No failure of an op ends this."""
        async with trio.open_nursery() as nursery:
            # what is closed becomes durable here whatever the shared tier does
            nursery.start_soon(self._syncer.run, self._settings.syncers)
            await self._recovery.retire()
            nursery.start_soon(self._recovery.run, self._settled)
            nursery.start_soon(self._stager.sweep)
            nursery.start_soon(self._actions.run)
            nursery.start_soon(self._retry_stuck)
            nursery.start_soon(self._slots.run)
            nursery.start_soon(self.removals.run, self.wake)
            for lane in self._lanes():
                nursery.start_soon(self._work_lane, lane)

    def _lanes(self) -> Iterable[Lane]:
        files, small = self._settings.transfer_files, self._settings.small_files
        yield Lane(files, (Work.STAGE_LARGE, Work.STAGE_SMALL), None, self._stage)
        yield Lane(small, (Work.STAGE_SMALL,), None, self._stage)
        yield Lane(self._settings.publishers, (Work.PUBLISH,), self._may_go, self._actions.apply)

    def _may_go(self, op: Op) -> bool:
        return op.durable and not self._recovery.concerns(op)

    async def _work_lane(self, lane: Lane) -> None:
        room = trio.Semaphore(lane.width)
        async with trio.open_nursery() as nursery:
            while True:
                await room.acquire()
                op = await self._next(lane, room)
                nursery.start_soon(self._work, op, lane.action, room)

    async def _next(self, lane: Lane, room: trio.Semaphore) -> Op:
        while True:
            await self.pace.breathe(lane.width)
            wakeup = self._wakeup
            now = self._rooms.clock()
            width = self.pace.width(lane.width)
            free = lane.width - room.value <= width
            if free or self.pace.any_awaited:
                want = lane.want if free else partial(self._is_awaited, lane)
                op = self._rooms.backlog.take(now, want, work=lane.work)
                if op is not None:
                    return op
            if not width and not self.pace.any_awaited:
                await self.pace.change()
                continue
            until = self._rooms.backlog.next_time(now)
            pause = math.inf if until is None else max(HOLDS_SECONDS, until - now)
            with trio.move_on_after(pause if free else min(pause, self.pace.seconds())):
                await wakeup.wait()

    def _is_awaited(self, lane: Lane, op: Op) -> bool:
        return self.pace.is_awaited(op.row) and (lane.want is None or lane.want(op))

    async def _work(self, op: Op, action: Action, room: trio.Semaphore) -> None:
        with self._slots.taken(op, room):
            await self._attempt(op, action)
        self.wake()

    async def _attempt(self, op: Op, action: Action) -> None:
        try:
            applied = await action(op)
            if applied is not None:
                self._committed(op, applied)
        except NotYet:
            log.debug("%s: not its turn any more", path_of(op))
        except ObjectChanged:
            self._rooms.statistics.restaged += 1
        except NothingToDo as reason:
            self._dropped(op, str(reason))
        except Held as reason:
            self._held(op, str(reason))
        except Exception as error:
            self._failed(op, error)
        finally:
            if self._rooms.alive(op):
                self._rooms.backlog.done_with(op)
            self._tell_decided(op)
            self.wake()

    def _tell_decided(self, op: Op) -> None:
        event = self._given_back.pop(op.row, None)
        if event is not None:
            event.set()

    async def _stage(self, op: Op) -> None:
        if not self._rooms.alive(op):
            return  # taken back between being taken and now
        await self._stager.stage(op)
        self._retries.went_well(op)

    def _settled(self, op: Op, applied: Applied | None) -> None:
        if applied is None:
            self._rooms.journal.post(SaveOp(op))
            self._rooms.backlog.update(op)
            self._tell_decided(op)
        else:
            self._committed(op, applied)
        self.wake()

    async def _retry_stuck(self) -> None:
        while True:
            for op in self._retries.due_stuck():
                self._try_stuck(op)
            self.wake()
            await self._retries.until_stuck_due()

    def _try_stuck(self, op: Op) -> None:
        if self._retries.retry_stuck(op):
            self._syncer.soon(op)  # it may have failed at that already

    # -- how ops end ----------------------------------------------------------------------------

    def _committed(self, op: Op, applied: Applied) -> None:
        if not self._rooms.alive(op):
            return  # taken back while its idempotent call was under way
        statistics = self._rooms.statistics
        statistics.committed_ops += 1
        if op.kind is OpKind.PUT:
            statistics.committed_files += 1
            statistics.committed_bytes += op.size
        changes = self._actions.settle(op, applied)
        outcome = Outcome(
            OutcomeKind.COMMITTED, op, applied.st, applied.adopted, other=applied.other,
            xattrs=applied.xattrs,
        )  # fmt: skip
        self._finish(op, outcome, changes)
        self.removals.published(op)
        log.debug("%s #%d %s: committed", op.kind, op.number, path_of(op))

    def _dropped(self, op: Op, reason: str) -> None:
        if not self._rooms.alive(op):
            return
        self._rooms.statistics.dropped_ops += 1
        log.warning("%s #%d %s: dropped: %s", op.kind, op.number, path_of(op), reason)
        self._flushes.dropped(op, reason)
        self._finish(op, Outcome(OutcomeKind.DROPPED, op, reason=reason))

    def _finish(self, op: Op, outcome: Outcome | None, changes: Sequence[Change] = ()) -> None:
        """The synchronous step that ends an op; `outcome` is None when the namespace did it."""
        del self._rooms.live[op.row]
        self._retries.over(op)
        self._stager.forget(op)
        self.removals.over(op)
        if outcome is not None:
            self._rooms.backlog.remove(op)
            # what follows from the end of a SEAL (its removal, begun meanwhile) ends up with it
            with self._rooms.journal.together():
                self._rooms.journal.post(*changes, *self._on_outcome(outcome))
        committed = outcome is not None and outcome.kind is OutcomeKind.COMMITTED
        if not committed:
            self._actions.left(op)
        self._flushes.over(op, committed=committed)
        self._tell_decided(op)
        over = self._over.pop(op.row, None)
        if over is not None:
            over.set()

    def _held(self, op: Op, reason: str) -> None:
        if not self._rooms.alive(op):
            return
        if self._rooms.backlog.hold_removal(op, reason):
            log.info("%s #%d %s: held: %s", op.kind, op.number, path_of(op), reason)
        else:  # what was issued since needs it done: it stays in the order, and is asked again
            log.debug("%s #%d %s: must wait: %s", op.kind, op.number, path_of(op), reason)
            self._rooms.backlog.back_off(op, self._rooms.clock() + HELD_AGAIN_SECONDS)
        self._flushes.look_again()

    def _failed(self, op: Op, error: Exception) -> None:
        cause = _first(error)
        if not self._rooms.alive(op):
            return
        if isinstance(cause, SpilledDamaged):
            self._marked(op, damaged(cause, path_of(op)), Mark.SUSPECT)
        else:
            self._retries.failed(op, cause)
            if op.mark is not None:
                self._flushes.look_again()

    def _marked(self, op: Op, verdict: Verdict, mark: Mark) -> None:
        log.error("%s", verdict.text)
        self._rooms.statistics.failures[verdict.reason] += 1
        self._retries.mark(op, verdict, mark)
        self._flushes.look_again()


def _first(error: BaseException) -> BaseException:
    """The first real error in the groups that nurseries make."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
