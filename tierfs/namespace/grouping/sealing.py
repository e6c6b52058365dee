"""When an unsealed checkpoint is whole: looked at whenever that may have changed, then sealed."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import time
from collections.abc import Iterable

import trio

from tierfs.groups import (
    Decision,
    Expect,
    Facts,
    Verdict,
    flush_may_seal,
    followed,
    judge,
    number_of,
    older_markers,
    removal,
)
from tierfs.groups import Found as FoundFile
from tierfs.model import AS_IS, STALE, Kind, Mark, Name, ObjectId, OpKind, Phase
from tierfs.namespace.changing.decisions import Decisions
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.grouping.broken import Broken, inside
from tierfs.namespace.grouping.giving_up import GivingUp
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.grouping.leaving import give_up_seals
from tierfs.namespace.grouping.taking_part import TakingPart
from tierfs.shared import Place, Record
from tierfs.writeback.failures import path_of

log = logging.getLogger(__name__)

TICK_SECONDS = 5.0
"""How often pointers that cannot go are looked at, whatever happens."""

RETRY_SECONDS = 5.0
"""When to look again at a checkpoint that the shared tier did not show."""


class Sealing:
    """Judges unsealed checkpoints and issues their SEALs."""

    def __init__(self, core: Core, lookup: Lookup, decisions: Decisions) -> None:
        self._core = core
        self._decisions = decisions
        self._lookup = lookup
        self._table = core.groups
        self._table.changed = self._changed
        self._taking_part = TakingPart(core)
        self._giving_up = GivingUp(core, decisions)
        self._table.left = self._giving_up.at_once
        self._due: dict[ObjectId, float] = {}
        self._wakeup = trio.Event()

    def _changed(self, group: Group) -> None:
        self._due[group.id] = 0.0
        self._wakeup.set()
        self._taking_part.changed(group)

    async def run(self) -> None:
        """Look at what may have become whole, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._table.processes.run)
            nursery.start_soon(Broken(self._core).run)
            nursery.start_soon(self._taking_part.run)
            while True:
                self._wakeup = trio.Event()
                self._core.drop_obsolete_pointers()
                give_up_seals(self._core)
                self._take_back_seals()
                now = time.monotonic()
                for directory in [d for d, at in self._due.items() if at <= now]:
                    del self._due[directory]
                    group = self._table.get(directory)
                    if group is not None:
                        await self._look(group)
                pause = min(self._due.values(), default=math.inf) - time.monotonic()
                with trio.move_on_after(max(0.0, min(pause, TICK_SECONDS))):
                    await self._wakeup.wait()

    def ask(self, group: Group, processes: frozenset[int], called: float) -> None:
        """A flush wants `group` sealed as soon as it can be, on behalf of `processes`.

        It was `called` at that monotonic time, and says nothing of what was done in it since: that
        may be the half of a save.
        """
        if group.acted <= called:
            group.flushing = (group.flushing or frozenset()) | processes
            self._changed(group)

    async def flush(self, group: Group, processes: frozenset[int], called: float) -> Verdict | None:
        """Seal `group` if it can be, on behalf of the caller of a flush and its ancestors.

        None: its SEAL is pending, or it is sealed or gone already; else why it is not.
        """
        self.ask(group, processes, called)
        while self._table.get(group.id) is group and group.seal is None:
            judged = await self._look(group)
            if judged and group.seal is None and self._table.get(group.id) is group:
                return group.verdict
        return None

    async def judge_again(self, group: Group) -> Verdict | None:
        """Look at `group` now; None: it is being sealed, or is no unsealed checkpoint any more."""
        while not await self._look(group) and self._table.get(group.id) is group:
            await trio.lowlevel.checkpoint()
        return None if group.seal is not None else group.verdict

    async def examine(self, group: Group) -> Facts:
        """What is true of `group` now; OSError where the shared tier does not show it."""
        return await self._facts(group, whole=True)

    def _take_back_seals(self) -> None:
        """Judge those again that another node began to write before their SEAL had its turn."""
        for group in self._table:
            seal = group.seal
            if seal is None or seal.kind is not OpKind.SEAL or seal.phase is Phase.PUBLISHING:
                continue
            if self._core.writeback.found_others(seal):
                group.seal = None
                self._table.drop_seal(seal)
                self._changed(group)

    # -- looking -----------------------------------------------------------------------------------

    async def _look(self, group: Group) -> bool:
        """Judge `group`; False: it changed meanwhile, and its verdict is an older one."""
        if group.seal is not None or self._giving_up.at_once(group):
            return True
        await self._drop_stale(group)
        version = group.version
        try:
            facts = await self._facts(group)
        except OSError as error:
            if error.errno == errno.ESTALE and await self._is_gone(group):
                return True
            log.info("checkpoint %s: cannot be looked at: %s", os.fsdecode(group.name), error)
            group.verdict = self._unseen(group, error)
            self._due[group.id] = time.monotonic() + RETRY_SECONDS
            return True
        if self._table.get(group.id) is not group or group.seal is not None:
            return True
        if group.version != version:
            self._changed(group)
            return False
        group.verdict = verdict = judge(facts)
        if verdict.decision is Decision.SEAL:
            self._seal(group, verdict)
        elif self._giving_up.judged(group, facts, verdict):
            return True
        elif verdict.until_seconds is not None:
            self._due[group.id] = time.monotonic() + verdict.until_seconds + 0.01
        return True

    async def _is_gone(self, group: Group) -> bool:
        """Whether another node took `group` away while this one was; then it is one no more."""
        parent = self._core.tree.directories[group.parent]
        with contextlib.suppress(OSError):
            node = await self._lookup.find(parent, group.name)
            here = self._table.get(group.id) is group
            elsewhere = node is None or node.directory != group.id
            if here and elsewhere and not any(self._core.backlog.under(group.id)):
                log.info("checkpoint %s: was taken away elsewhere", os.fsdecode(group.name))
                self._table.end(group.id)
        return self._table.get(group.id) is not group

    async def _drop_stale(self, group: Group) -> None:
        """Forget what killed writers of an earlier generation left torn, and nobody wrote again."""
        for op in list(self._core.backlog.under(group.id)):
            if op.mark is Mark.TORN and STALE in op.fields and op in self._core.backlog:
                log.info("%s: torn, and its checkpoint is written anew: dropped", path_of(op))
                with contextlib.suppress(OSError):  # somebody opened it just now
                    await self._decisions.discard(op)

    def _unseen(self, group: Group, error: OSError) -> Verdict:
        """Of `group`, of which nobody knows what is in it: who waits goes on waiting."""
        return Verdict(
            decision=Decision.WAIT, profile=self._table.patterns.profile_of(group.name) or "",
            reason=f"it cannot be looked at: {error}", until_seconds=RETRY_SECONDS, will_seal=True,
        )  # fmt: skip

    def _seal(self, group: Group, verdict: Verdict) -> None:
        core = self._core
        parent = core.tree.directories[group.parent]
        log.info("checkpoint %s: is sealed: %s", os.fsdecode(group.name), verdict.reason)
        obj = core.directory_object(group.id)
        as_is = AS_IS if group.record.expect is not None else 0
        group.seal, _ = core.issue(OpKind.SEAL, obj, parent, group.name, flags=as_is)
        core.writeback.submit(group.seal)

    # -- facts -------------------------------------------------------------------------------------

    async def _facts(self, group: Group, *, whole: bool = False) -> Facts:
        """`whole`: also the content of one that cannot be sealed now whatever is in it."""
        core = self._core
        opened, pending, stuck = self.under_way(group)
        content: dict[Name, FoundFile] = {}
        negative = record = None
        busy: tuple[str, ...] = ()
        gone: tuple[str, ...] = ()
        if core.places.exists(group.id) and (whole or not (opened or pending or stuck)):
            record = await core.on_shared(core.shared.last_record, core.places.group(group.id))
            if record is not None and record.doubtful:
                with contextlib.suppress(BlockingIOError):  # somebody else does, or has
                    record = await core.on_shared(
                        core.shared.settle_doubts, core.places.group(group.id), record
                    )
            if record is not None:
                busy, gone = await core.on_shared(
                    core.shared.busy_ones, core.places.group(group.id), record
                )
            waits = record is not None and bool(record.doubtful or busy)
            if whole or not waits or group.record.expect is not None:
                content = await self._content(group, record)
            negative = await self.negative(group, content)
        newer = self._table.newer(group)
        expect = group.record.expect
        profile = self._table.patterns.profile_of(group.name)
        assert profile is not None
        return Facts(
            profile=profile, content=content, settle=self._table.settle,
            quiet_seconds=time.monotonic() - group.touched, open_files=opened, pending=pending,
            negative=negative, stuck=stuck, doubtful=bool(record and record.doubtful),
            busy=_members(busy), lost=_members(gone), broken=self._said_elsewhere(record),
            broken_files=() if record is None else record.files,
            pointer=bool(core.backlog.pointers_to(group.id)),
            commit=None if expect is None else Expect(expect if expect >= 0 else None),
            sibling=self._table.has_newer(group),
            followed=followed(group.writers, [each.writers for each in newer]),
            flush=group.flushing is not None,
            removal=removal(group.writers, group.flushing or ()),
            older_markers=older_markers(group.writers, group.flushing or ()),
            writers_gone=group.flushing is not None
            and flush_may_seal(group.writers, group.flushing),
            sibling_names=await self.sibling_names(group) if profile == "deepspeed" else None,
        )  # fmt: skip

    def _said_elsewhere(self, record: Record | None) -> str:
        """Why another member says that its checkpoint is broken; "" if none does."""
        return "" if record is None or record.member == self._core.store.member else record.broken

    def under_way(self, group: Group) -> tuple[list[Name], list[Name], list[Name]]:
        """What is open, pending, and stuck in `group`."""
        backlog = self._core.backlog
        top = len(self._core.tree.path(group.id))
        opened = [inside(op, top) for op in backlog.open_files(group.id)]
        pending, stuck = [], []
        for op in backlog.under(group.id):
            if op.log:
                continue
            if op.mark is not None:
                stuck.append(inside(op, top))
            elif not op.is_open and op.kind is not OpKind.SEAL:
                pending.append(inside(op, top))
        return opened, pending, stuck

    async def _content(self, group: Group, record: Record | None) -> dict[Name, FoundFile]:
        core = self._core
        found = await core.at(group.id, core.shared.walk)
        stale = record.stale if record is not None else frozenset()
        linked: frozenset[tuple[int, int]] = frozenset()
        if record is not None and record.generation > 1:
            before = record.generation - 1
            linked = await core.on_shared(
                core.shared.read_linked, core.places.group(group.id), before
            )
        back = {}
        if stale and linked:
            taken_back = core.shared.taken_back
            known = core.places.group(group.id)
            back = await core.at(group.parent, taken_back, group.name, known, stale)
        files = [each for each in found if each.kind is not Kind.DIRECTORY]
        return {
            each.path: FoundFile(
                each.size, each.inode, stale=each.incarnation in stale,
                linked=each.incarnation in linked, index=each.index,
            )
            for each in (back.get(each.path, each) for each in files)
        }  # fmt: skip

    async def negative(self, group: Group, content: Iterable[Name]) -> Name | None:
        """The name that says that `group`, which holds `content`, is not whole."""
        for name in content:
            if name == b".incomplete":
                return name
        parent = self._core.tree.directories[group.parent]
        for stem in dict.fromkeys((group.name, group.name.removesuffix(b".ckpt"))):
            name = stem + b"-unfinished"
            if await self._lookup.find(parent, name) is not None:
                return name
        return None

    async def sibling_names(self, group: Group) -> set[Name] | None:
        """The files of the newest sealed checkpoint beside `group`."""
        core = self._core
        is_one = self._table.patterns.profile_of
        sealed = await core.at(
            group.parent, core.shared.sealed_groups, lambda name: is_one(name) is not None
        )
        if not sealed:
            return None
        newest = max(sealed, key=number_of)
        entry = await core.at(group.parent, core.shared.lookup, newest)
        if entry is None:
            return None
        path = b"/".join(filter(None, (core.places.path(group.parent), newest)))
        found = await core.on_shared(core.shared.walk, Place(path, entry.st.st_ino))
        return {each.path for each in found if each.kind is not Kind.DIRECTORY}


def _members(members: Iterable[str]) -> str:
    return ", ".join(member[:8] for member in members)
