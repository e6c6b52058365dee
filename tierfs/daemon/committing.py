"""The requests that are about checkpoints, served."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import trio

from tierfs.control import requests
from tierfs.control.access import may_list, only_visible, opened_to_change
from tierfs.control.events import Waiting
from tierfs.control.results import (
    HELD,
    OPEN,
    STUCK,
    TIMEOUT,
    UNSEALED,
    CheckpointsResult,
    CommitResult,
    Problem,
    PurgeResult,
    SettledResult,
)
from tierfs.control.server import Handler, Peer, Send
from tierfs.daemon.checkpoints import CheckpointReport, directory_at
from tierfs.daemon.flushing import RELEASE_SECONDS
from tierfs.daemon.report import OPEN_STATES, Report
from tierfs.daemon.rooms import Rooms
from tierfs.daemon.waiting import Telling
from tierfs.errors import TierfsError
from tierfs.groups import Decision, Expect, Verdict, judge
from tierfs.model import Kind, ObjectId, Op, OpKind
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.overlay.nodes import Node
from tierfs.writeback import FlushResult as WriteBackResult

POLL_SECONDS = 0.1
SHARE = 10
"""Looking whether all is settled takes at most one part in so many of a processor."""


@dataclass(slots=True)
class _Busy:
    """What keeps a directory from being settled, and what will not change by itself."""

    open: list[Problem] = field(default_factory=list)
    pending: list[Problem] = field(default_factory=list)
    sealing: list[Problem] = field(default_factory=list)
    stuck: list[Problem] = field(default_factory=list)
    pending_bytes: int = 0
    pause_seconds: float = POLL_SECONDS

    def __bool__(self) -> bool:
        return bool(self.open or self.pending or self.sealing)

    def waiting(self) -> Waiting:
        """The same in numbers."""
        return Waiting(
            open=len(self.open), pending=len(self.pending), pending_bytes=self.pending_bytes,
            sealing=len(self.sealing),
        )  # fmt: skip


class CheckpointHandlers:
    """One method for each command."""

    def __init__(
        self, rooms: Rooms, report: Report, known: CheckpointReport, access: trio.CapacityLimiter
    ) -> None:
        self._rooms = rooms
        self._report = report
        self._known = known
        self._access = access

    def table(self) -> Mapping[str, Handler]:
        """The handlers by command."""
        return {
            "checkpoints": self.checkpoints, "settled": self.settled, "commit": self.commit,
            "purge": self.purge,
        }  # fmt: skip

    async def checkpoints(
        self, request: requests.Checkpoints, peer: Peer, send: Send
    ) -> tuple[CheckpointsResult, int]:
        node = await self._directory(request.path, peer)
        return await self._known.below(node, request.path, peer), 0

    async def _directory(self, path: str, peer: Peer) -> Node:
        if not await may_list(path, peer, self._access):
            raise TierfsError(f"{path}: permission denied")
        return directory_at(await self._report.find(path), path)

    # -- settled -----------------------------------------------------------------------------------

    async def settled(
        self, request: requests.Settled, peer: Peer, send: Send
    ) -> tuple[SettledResult, int]:
        deadline = trio.current_time() + (math.inf if request.timeout is None else request.timeout)
        await self._directory(request.path, peer)
        await self._rooms.fs.settling.look(self._rooms.fs.files)
        telling = Telling(send)
        while busy := await self._busy(request.path):
            if trio.current_time() >= deadline:
                return await self._shown(busy, peer, timed_out=True), TIMEOUT
            await telling.tell(busy.waiting())
            await trio.sleep(min(busy.pause_seconds, max(0.0, deadline - trio.current_time())))
        node = await self._directory(request.path, peer)
        latest, broken, more = await self._known.standing(node, peer)
        result = await self._shown(busy, peer, timed_out=False)
        result = replace(result, latest=latest, broken=tuple(broken), hidden=result.hidden + more)
        return result, STUCK if busy.stuck else 0

    async def _busy(self, path: str) -> _Busy:
        """What is open, pending, or about to be published below `path`."""
        busy = _Busy()
        node = directory_at(await self._report.find(path), path)
        began = time.monotonic()
        for op in await self._report.ops_under(path):
            before = len(busy.pending)
            self._sort(op, busy, began)
            busy.pending_bytes += op.size if len(busy.pending) > before else 0
        for group in self._groups(node):
            verdict = group.verdict
            if group.seal is None and (verdict is None or verdict.will_seal):
                name = self._report.path_of_directory(group.id)
                reason = verdict.reason if verdict is not None else "is looked at"
                busy.sealing.append(Problem(path=name, reason=reason))
        busy.pause_seconds = max(POLL_SECONDS, SHARE * (time.monotonic() - began))
        return busy

    def _sort(self, op: Op, busy: _Busy, now: float) -> None:
        backlog = self._rooms.backlog
        if op not in backlog or op.log or backlog.is_held(op):
            return
        problem = Problem(path=self._report.path_of(op), reason="not yet committed")
        if op.mark is not None:
            reason = op.error or str(op.mark)
            busy.stuck.append(Problem(path=problem.path, reason=reason))
        elif op.state in OPEN_STATES:
            busy.open.append(Problem(path=problem.path, reason="open for writing"))
        elif root := backlog.blocked_for_good(op, now):
            if root[0].mark is not None:
                reason = backlog.explain(op, now)
                busy.stuck.append(Problem(path=problem.path, reason=reason))
            elif root[0].state in OPEN_STATES:
                busy.pending.append(problem)
        else:
            busy.pending.append(problem)

    def _groups(self, node: Node) -> list[Group]:
        """The unsealed checkpoints of this node below, or around, the directory `node`."""
        tree, top = self._rooms.fs.tree, node.directory
        if top is None or top not in tree.directories:
            return []
        return [
            group for group in self._rooms.fs.core.groups
            if tree.is_within(group.id, top) or tree.is_within(top, group.id)
        ]  # fmt: skip

    async def _shown(self, busy: _Busy, peer: Peer, *, timed_out: bool) -> SettledResult:
        hidden, shown = 0, []
        for problems in (busy.open, busy.pending, busy.sealing, busy.stuck):
            visible, more = await only_visible(problems, peer, self._access)
            shown.append(visible)
            hidden += more
        return SettledResult(
            timed_out=timed_out, open=shown[0], pending=shown[1], sealing=shown[2],
            stuck=shown[3], hidden=hidden,
        )  # fmt: skip

    # -- commit ------------------------------------------------------------------------------------

    async def commit(
        self, request: requests.Commit, peer: Peer, send: Send
    ) -> tuple[CommitResult, int]:
        path = request.path
        fd, inode = await opened_to_change(path, peer, self._access)
        try:
            node = directory_at(await self._report.find(path), path)
            if node.ino != inode:
                raise TierfsError(f"{path}: was renamed or replaced meanwhile; try again")
            return await self._commit(node, path, request.expect, Telling(send))
        finally:
            os.close(fd)

    async def _commit(
        self, node: Node, path: str, expect: int | None, telling: Telling
    ) -> tuple[CommitResult, int]:
        core = self._rooms.fs.core
        assert node.directory is not None
        group = core.groups.adopt(node.directory)
        if group is None:
            files = await self._published(node, path)
            _check(path, files, expect, "is published already")
            return CommitResult(path=path, published=True, files=files), 0
        if failed := await self._sent(group, path, telling):
            return failed
        if core.groups.get(group.id) is not group:
            return await self._commit(node, path, expect, telling)
        facts = await self._rooms.fs.sealing.examine(group)
        files = sum(not found.stale for found in facts.content.values())
        _check(path, files, expect, "not published")
        verdict = judge(replace(facts, commit=Expect(expect)))
        if verdict.decision is Decision.SEAL:
            core.groups.ask(group, -1 if expect is None else expect)
            return await self._sealed(group, verdict, path, files, telling)
        return _refused(verdict, path, files)

    async def _published(self, node: Node, path: str) -> int:
        """How many files the checkpoint `node` has, which is published; TierfsError: it is none."""
        fs = self._rooms.fs
        assert node.directory is not None
        names = fs.tree.path(node.directory)
        top = fs.core.groups.patterns.top(names)
        if top is None:
            raise TierfsError(
                f"{path}: its name is not that of a checkpoint ([[groups]] in the configuration)"
            )
        if top != len(names) - 1:
            whole = os.fsdecode(b"/".join(names[: top + 1]))
            name = os.path.join(self._rooms.mountpoint, whole)
            raise TierfsError(f"{path}: is a part of the checkpoint {name}")
        if not fs.core.places.exists(node.directory):
            raise TierfsError(f"{path}: its rename is not committed; see tierfs flush --wait")
        found = await fs.core.at(node.directory, fs.core.shared.walk)
        return sum(each.kind is not Kind.DIRECTORY for each in found)

    async def _sent(
        self, group: Group, path: str, telling: Telling
    ) -> tuple[CommitResult, int] | None:
        """Sends what is closed in `group`; why that cannot be done, None when it is done."""
        backlog = self._rooms.backlog
        ops = [op for op in backlog.under(group.id) if not backlog.is_held(op)]
        await self._report.until_released(ops, RELEASE_SECONDS)
        done = await self._waited(ops, telling, group.id)
        if done.stuck:
            names = ", ".join(self._report.path_of(op) for op in done.stuck[:3])
            reason = f"cannot be committed: {names}"
            return CommitResult(path=path, published=False, files=0, reason=reason), STUCK
        opened = done.open or [op for op in backlog.open_files(group.id) if op.mark is None]
        if opened:
            names = ", ".join(self._report.path_of(op) for op in opened[:3])
            reason = f"open for writing: {names}"
            return CommitResult(path=path, published=False, files=0, reason=reason), OPEN
        return None

    async def _waited(
        self, ops: list[Op], telling: Telling, directory: ObjectId | None = None
    ) -> WriteBackResult:
        """Waits for `ops` and tells what is left of them."""
        sealing = sum(op.kind is OpKind.SEAL for op in ops)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(telling.follow, self._rooms.backlog, ops, sealing)
            done = await self._rooms.writeback.wait(ops, directory=directory)
            nursery.cancel_scope.cancel()
        return done

    async def _sealed(
        self, group: Group, verdict: Verdict, path: str, files: int, telling: Telling
    ) -> tuple[CommitResult, int]:
        """Waits until the checkpoint, which has been asked for, is published."""
        table, sealing = self._rooms.fs.core.groups, self._rooms.fs.sealing
        while table.get(group.id) is group:
            now = await sealing.judge_again(group)
            if group.seal is not None:
                seal = group.seal
                done = await self._waited([seal], telling)
                if done.stuck or done.held or done.open:
                    reason = seal.error or self._rooms.backlog.explain(seal, time.monotonic())
                    result, _ = _refused(replace(verdict, reason=reason), path, files)
                    return result, STUCK if done.stuck else HELD
            elif now is not None and now.decision is not Decision.SEAL:
                if table.get(group.id) is group:
                    table.ask(group, None)
                return _refused(now, path, files)
        return CommitResult(path=path, published=True, files=files, missing=verdict.missing), 0

    # -- purge -------------------------------------------------------------------------------------

    async def purge(
        self, request: requests.Purge, peer: Peer, send: Send
    ) -> tuple[PurgeResult, int]:
        if not peer.is_root:
            raise TierfsError("purge: only root may let held removals go")
        tops = [self._report.components(path) for path in request.paths] or [()]
        held = [
            (op, reason) for op, reason in self._rooms.backlog.held()
            if op.kind is OpKind.TRASH
            and any(self._report.names_of(op)[: len(top)] == top for top in tops)
        ]  # fmt: skip
        told = await self._known.removals(held)
        freed = self._rooms.writeback.removals.purge(
            op for op, _ in held if op in self._rooms.backlog
        )
        self._rooms.writeback.wake()
        paths = {self._report.path_of(op) for op in freed}
        return PurgeResult(purged=tuple(each for each in told if each.path in paths)), 0


def _check(path: str, files: int, expect: int | None, so: str) -> None:
    if expect is not None and expect != files:
        raise TierfsError(f"{path}: {files} files are there, {expect} were expected; {so}")


def _refused(verdict: Verdict, path: str, files: int) -> tuple[CommitResult, int]:
    code = STUCK if verdict.decision is Decision.BROKEN else UNSEALED
    result = CommitResult(
        path=path, published=False, files=files, missing=verdict.missing, reason=verdict.reason
    )
    return result, code
