"""`tierfs flush --wait` and what an unmount waits for: ops, then the seals of checkpoints (G5)."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from tierfs.control.access import only_visible
from tierfs.control.results import (
    FlushResult,
    Problem,
    Progress,
    UnsealedGroup,
    flush_exit_code,
)
from tierfs.control.server import Peer, Send
from tierfs.daemon.report import OPEN_STATES, Report
from tierfs.daemon.rooms import Rooms
from tierfs.groups import Decision, Verdict
from tierfs.model import ROOT, ObjectId, Op, OpKind
from tierfs.namespace.grouping.group import Group
from tierfs.osio.processes import ancestors
from tierfs.writeback import FlushProgress
from tierfs.writeback import FlushResult as Flushed

RELEASE_SECONDS = 3.0
"""How long a flush gives the kernel to release what its callers have closed: close() returns before
that, and on a busy machine long before."""


@dataclass(slots=True)
class _Total:
    """What the rounds of one flush came to; `last` is how the last of them ended."""

    files: int = 0
    bytes: int = 0
    last: Flushed | None = None
    dropped: list[tuple[Op, str]] = field(default_factory=list)
    unsealed: list[tuple[Group, Verdict]] = field(default_factory=list)

    @property
    def timed_out(self) -> bool:
        """Whether something could have gone on: an op, or a checkpoint that will be sealed."""
        assert self.last is not None
        return self.last.timed_out or any(verdict.will_seal for _, verdict in self.unsealed)

    def add(self, done: Flushed) -> None:
        self.files += done.committed_files
        self.bytes += done.committed_bytes
        self.dropped += [(item.op, item.reason) for item in done.dropped]
        self.last = done


@dataclass(frozen=True, slots=True)
class Top:
    """A directory that is flushed, with all that is `below`; else one that holds what is."""

    directory: ObjectId
    below: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked: it and its ancestors (pids), and the monotonic time at which it did."""

    processes: frozenset[int]
    called: float


class Flushing:
    """Waits for ops and seals, truthfully."""

    def __init__(self, rooms: Rooms, report: Report, access: trio.CapacityLimiter) -> None:
        self._rooms = rooms
        self._report = report
        self._access = access

    async def start(self, paths: tuple[str, ...], peer: Peer) -> FlushResult:
        """Send what is under `paths` now, and do not wait for it."""
        ops = await self._ops(paths)
        self._rooms.backlog.release_holds(None, self._keeps(ancestors(peer.pid)))
        self._rooms.writeback.retry_stuck(ROOT)
        remaining = [(op, "sending") for op in ops if not op.is_open and not self._is_held(op)]
        return await self._visible(peer, FlushResult(), remaining=remaining)

    async def wait(
        self, paths: tuple[str, ...], seconds: float | None, peer: Peer, send: Send
    ) -> FlushResult:
        """Return when what was issued under `paths` is committed, or cannot go on by itself."""
        deadline = trio.current_time() + (math.inf if seconds is None else seconds)
        called = time.monotonic()
        tops = await self._tops(paths)
        fs = self._rooms.fs
        for top in tops:
            await fs.long_open.send_logs(fs.files.handles.values(), top.directory)
        ops = await self._ops(paths)
        await self._report.until_released(ops, RELEASE_SECONDS)
        newest: list[FlushProgress] = []
        total = _Total()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward, newest, send, peer)
            caller = Caller(ancestors(peer.pid), called)
            await self._rounds(ops, tops, caller, deadline, newest, total)
            nursery.cancel_scope.cancel()
        return await self._answer(peer, ops, total)

    async def _rounds(
        self, ops: list[Op], tops: list[Top], caller: Caller, deadline: float,
        newest: list[FlushProgress], total: _Total,
    ) -> None:  # fmt: skip
        """Each seal lets others go on: pointers, removals that were held."""
        rooms = self._rooms
        left, waited_for = ops, set[int]()
        while True:
            asked = self._groups(tops)
            for group in asked:
                rooms.fs.sealing.ask(group, caller.processes, caller.called)
            held = [op for op in left if self._is_held(op)]
            waited = [op for op in left if not self._is_held(op)]
            done = await rooms.writeback.wait(
                waited,
                _until(deadline),
                progress=newest.append,
                keeps=self._keeps(caller.processes),
            )
            total.add(done)
            if done.timed_out:
                return
            held += [op for op in waited if self._is_held(op)]
            groups = [each for each in self._groups(tops) if not each.is_later(caller.called)]
            seals, total.unsealed = await self._seal(groups, caller, deadline)
            new = [op for op in (*seals, *self._reopened(tops)) if op.row not in waited_for]
            waited_for |= {op.row for op in new}
            left = [op for op in (*left, *new) if op in rooms.backlog]
            # their seals may have been issued, and be over, before they were looked at here
            over = any(
                rooms.fs.core.groups.get(each.id) is not each
                for each in asked if not each.is_later(caller.called)
            )  # fmt: skip
            if new or over:
                continue
            if all(self._is_held(op) for op in held if op in rooms.backlog):
                return

    def _keeps(self, processes: frozenset[int]) -> Callable[[Op], bool]:
        """What a removal of a sealed checkpoint, by others than `processes`, is still to go with.

        Half of it is no edit of it: it is waited for as long as without a flush.
        """
        unlinkers = self._rooms.fs.core.groups.unlinkers
        return lambda op: unlinkers.is_under_way(op, processes)

    def _reopened(self, tops: list[Top]) -> list[Op]:
        """Generations that begin: what was closed while a checkpoint was sealed issues one."""
        backlog = self._rooms.backlog
        return [
            op for group in self._groups(tops) for op in backlog.ops_of_object(group.id)
            if op.kind is OpKind.REOPEN
        ]  # fmt: skip

    async def _seal(
        self, groups: list[Group], caller: Caller, deadline: float
    ) -> tuple[list[Op], list[tuple[Group, Verdict]]]:
        """The seals that were issued, and what cannot be sealed."""
        sealing = self._rooms.fs.sealing
        seals, unsealed = [], []
        for group in groups:
            verdict = await sealing.flush(group, caller.processes, caller.called)
            while verdict is not None and verdict.will_seal and trio.current_time() < deadline:
                pause = (verdict.until_seconds or 0.0) + 0.05
                await trio.sleep(min(pause, deadline - trio.current_time()))
                verdict = await sealing.flush(group, caller.processes, caller.called)
            if verdict is not None:
                unsealed.append((group, verdict))
            elif group.seal is not None:
                seals.append(group.seal)
        return seals, unsealed

    # -- what is waited for ----------------------------------------------------------------------

    async def _ops(self, paths: tuple[str, ...]) -> list[Op]:
        await self._rooms.fs.settling.look(self._rooms.fs.files)
        found: dict[int, Op] = {}
        for path in paths or (self._rooms.mountpoint,):
            found |= {op.row: op for op in await self._report.ops_under(path)}
        # a log that is open was sent as it is; what comes later is nobody's flush
        return [op for op in found.values() if not (op.log and op.state in OPEN_STATES)]

    async def _tops(self, paths: tuple[str, ...]) -> list[Top]:
        """The directories whose checkpoints are meant."""
        found = []
        for path in paths or (self._rooms.mountpoint,):
            node = await self._report.find(path)
            if node is not None and node.directory is not None:
                found.append(Top(node.directory, below=True))
            elif (directory := await self._report.directory_of(path)) is not None:
                found.append(Top(directory, below=False))
        return found

    def _groups(self, tops: Iterable[Top]) -> list[Group]:
        """The unsealed checkpoints that `tops` lie in, or hold."""
        tree = self._rooms.fs.tree
        known = [top for top in tops if top.directory in tree.directories]
        return [
            group for group in self._rooms.fs.core.groups
            if any(
                tree.is_within(top.directory, group.id)
                or (top.below and tree.is_within(group.id, top.directory))
                for top in known
            )
        ]  # fmt: skip

    def _is_held(self, op: Op) -> bool:
        backlog = self._rooms.backlog
        return op in backlog and backlog.is_held(op)

    # -- the answer --------------------------------------------------------------------------------

    async def _answer(self, peer: Peer, ops: list[Op], total: _Total) -> FlushResult:
        backlog, done = self._rooms.backlog, total.last
        assert done is not None
        reported = {op.row for op in done.open}
        still_open = [*done.open]
        still_open += [
            op for op in ops
            if op in backlog and op.is_open and op.mark is None and op.row not in reported
        ]  # fmt: skip
        held = [(item.op, item.reason) for item in done.held] + total.dropped
        unsealed = [each for each in total.unsealed if each[1].decision is not Decision.BROKEN]
        code = flush_exit_code(
            timed_out=total.timed_out, stuck=bool(done.stuck), held=bool(held),
            unsealed=bool(unsealed), still_open=bool(still_open),
        )  # fmt: skip
        base = FlushResult(
            exit_code=code, timed_out=total.timed_out, committed_files=total.files,
            committed_bytes=total.bytes,
        )  # fmt: skip
        return await self._visible(
            peer, base,
            remaining=[(op, backlog.explain(op, time.monotonic())) for op in done.remaining],
            stuck=[(op, op.error or str(op.mark)) for op in done.stuck],
            open_=[(op, "open for writing") for op in still_open],
            held=held, unsealed=unsealed,
        )  # fmt: skip

    async def _visible(
        self,
        peer: Peer,
        base: FlushResult,
        *,
        remaining: Iterable[tuple[Op, str]] = (),
        stuck: Iterable[tuple[Op, str]] = (),
        open_: Iterable[tuple[Op, str]] = (),
        held: Iterable[tuple[Op, str]] = (),
        unsealed: Iterable[tuple[Group, Verdict]] = (),
    ) -> FlushResult:
        hidden = 0
        shown = []
        for group in (remaining, stuck, open_, held):
            problems = [Problem(path=self._report.path_of(op), reason=why) for op, why in group]
            visible, more = await only_visible(problems, peer, self._access)
            shown.append(visible)
            hidden += more
        groups = [self._unsealed(group, verdict) for group, verdict in unsealed]
        seen, more = await only_visible(groups, peer, self._access)
        return FlushResult(
            exit_code=base.exit_code, timed_out=base.timed_out,
            committed_files=base.committed_files, committed_bytes=base.committed_bytes,
            remaining=shown[0], stuck=shown[1], open=shown[2], held=shown[3],
            unsealed=seen, hidden=hidden + more,
        )  # fmt: skip

    def _unsealed(self, group: Group, verdict: Verdict) -> UnsealedGroup:
        path = self._report.path_of_directory(group.id)
        return UnsealedGroup(
            path=path, reason=verdict.reason, missing=verdict.missing,
            command=f"tierfs commit {shlex.quote(path)}",
        )  # fmt: skip


def _until(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - trio.current_time())


async def _forward(newest: list[FlushProgress], send: Send, peer: Peer) -> None:
    """Sends the latest progress now and then; names only to root."""
    while True:
        await trio.sleep(0.2)
        if not newest:
            continue
        at = newest.pop()
        newest.clear()
        left = None
        if at.rate_bytes > 0:
            left = max(0.0, (at.total_bytes - at.done_bytes) / at.rate_bytes)
        await send(
            Progress(
                total_files=at.total_files, done_files=at.done_files,
                total_bytes=at.total_bytes, done_bytes=at.done_bytes, rate_bytes=at.rate_bytes,
                seconds_left=left, sending=at.sending if peer.is_root else (),
            )
        )  # fmt: skip
