"""One op brought to the shared tier: checked, declared in the journal, applied, accounted for.

The order of the steps is the same for all kinds. Prepare what can be prepared; look, in one
synchronous step, whether the op may still go; declare it (`phase` and `state` PUBLISHING, the row
synced): from here on nobody takes it back; make the final call; put the directory times right;
then, in one synchronous step again, let everybody know.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import trio

from tierfs.errors import DirectoryGone, ObjectChanged
from tierfs.journal import Change, DropDirectory, SaveDirectory, SaveOp
from tierfs.model import (
    BLIND,
    REMOVALS,
    STAGED,
    Kind,
    Name,
    ObjectId,
    Op,
    OpKind,
    OpState,
    Phase,
)
from tierfs.shared import Staged, unstaged_name
from tierfs.writeback import group_steps, steps, taken
from tierfs.writeback.failures import path_of
from tierfs.writeback.rebuilding import rebuilt
from tierfs.writeback.removals import Removals
from tierfs.writeback.results import Applied, Held, NothingToDo, NotYet
from tierfs.writeback.retries import GONE_ATTEMPTS
from tierfs.writeback.rooms import LocalFailure, Rooms
from tierfs.writeback.staging import Stager
from tierfs.writeback.steps import Call, FinalCall
from tierfs.writeback.times import DirectoryTimes, Due, changed_directories

log = logging.getLogger(__name__)

DECLARED = frozenset(
    {OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.LINK, OpKind.RENAME, OpKind.SEAL}
)
"""Ops that a crash can leave in doubt. The others need no row for it: they can be repeated."""


MOVERS = frozenset({OpKind.MKDIR, OpKind.RENAME, OpKind.SEAL, OpKind.TRASH, OpKind.REOPEN})
"""Ops after which a directory stands elsewhere."""


class Actions:
    """Applies ops whose turn has come."""

    def __init__(
        self,
        rooms: Rooms,
        stager: Stager,
        removals: Removals,
        is_group: Callable[[Name], bool],
        edit: Callable[[ObjectId], bool],
        on_published: Callable[[ObjectId, os.stat_result], None],
    ) -> None:
        self._rooms = rooms
        self._stager = stager
        self._removals = removals
        self._is_group = is_group
        self._edit = edit
        self._on_published = on_published
        self._times = DirectoryTimes(rooms.backlog)
        self._late_send, self._late = trio.open_memory_channel[Due](math.inf)

    async def apply(self, op: Op) -> Applied:
        """Apply `op`.

        Raises NotYet when its turn went away, ObjectChanged when it has to be staged again,
        NothingToDo, LocalFailure, and OSError of the shared tier. `phase` is PUBLISHING after
        that only where it could not be found out whether the op has happened.
        """
        try:
            return await self._brought(op)
        except DirectoryGone:
            if await self._published_elsewhere(op):
                raise NotYet from None
            if not self._went_with_its_directory(op):
                raise
            applied = Applied(None)
            await self.put_times_right(op, applied)
            return applied

    def _went_with_its_directory(self, op: Op) -> bool:
        """Whether `op` takes away what is gone with its directory, of which the removal is pending.

        The process died when both had been made, before the journal heard of it. Not at once: a
        rename of this mount may just be moving the directory.
        """
        backlog = self._rooms.backlog
        if op.kind not in REMOVALS or op.attempts < GONE_ATTEMPTS - 1:
            return False
        return backlog.is_going(op.scope) and not any(
            other.kind in MOVERS and other.phase is Phase.PUBLISHING
            for directory in op.scope
            for other in backlog.ops_of_object(directory)
        )

    async def _published_elsewhere(self, op: Op) -> bool:
        """Whether the checkpoint of `op` has its final name since: another node gave it that.

        What is pending in it goes there.
        """
        places = self._rooms.places
        for directory in dict.fromkeys((*op.scope, *(op.scope2 or ()), op.object)):
            record = places.record(directory)
            name = None if record is None else unstaged_name(record.name)
            if record is None or name is None or record.inode is None:
                continue
            inode, look = record.inode, group_steps.published_elsewhere
            place = places.place(record.parent)
            found = await self._rooms.on_shared(look, self._rooms.shared, place, name, inode)
            known = places.record(directory)
            if found is not None and known is not None and known.inode == inode:
                if unstaged_name(known.name) is not None:
                    self._on_published(directory, found.st)
                return True
        return False

    async def _brought(self, op: Op) -> Applied:
        applied = await self._resume(op) if op.phase is Phase.PUBLISHING else None
        if applied is None:
            applied = await self._apply(op)
        if op.kind is OpKind.MKDIR and STAGED in op.fields and applied.st is not None:
            # else what stands there is what this node had, and is moving or removing
            fresh = self._rooms.backlog.is_only_of(op.object, op.parent, op.name)
            join = partial(group_steps.take_part, applied, fresh)
            applied = await self._rooms.on_shared(join, self._rooms.shared, self._call(op))
        await self.put_times_right(op, applied)
        return applied

    async def outcome(self, op: Op) -> Applied | None:
        """What became of an op that was declared: None when it has not happened."""
        try:
            call = self._call(op)
        except DirectoryGone:
            return None
        return await self._rooms.on_shared(steps.outcome, self._rooms.shared, call)

    async def put_times_right(self, op: Op, applied: Applied) -> None:
        """Give the directories that are finished with `op` the time of their last change."""
        self._times.committed(op, applied.before, applied.after)
        await self._note_asked_time(op)
        for due in self._times.due(op):
            await self._set_time(due)

    def left(self, op: Op) -> None:
        """`op` was dropped or taken back: directories that waited for it alone are finished."""
        self._times.left(op)
        for due in self._times.due(op):
            self._late_send.send_nowait(due)

    def changed(self, scope: tuple[ObjectId, ...], changed_ns: int) -> None:
        """The directory that `scope` ends with was changed, and no op says so."""
        self._times.changed(scope[-1], changed_ns)
        for due in self._times.due_in(reversed(scope)):
            self._late_send.send_nowait(due)

    def asked(self, directory: ObjectId, when_ns: int, mtime_ns: int) -> None:
        """`directory` was given a time, and no op says so."""
        self._times.asked_of(directory, when_ns, mtime_ns)

    async def run(self) -> None:
        """Put the times right that :meth:`left` left over, until cancelled."""
        async for due in self._late:
            await self._set_time(due)

    def settle(self, op: Op, applied: Applied) -> list[Change]:
        """`op` is applied: bring the shared tree and the ops behind it up to date. Synchronous."""
        places = self._rooms.places
        changes = self._teach(op, applied)
        known = places.record(op.object) is not None
        if op.other is not None and op.parent2 is not None and op.name2 is not None:
            changes += self._teach_other(op, applied)
            if (record := places.record(op.other)) is not None:
                places.move(op.other, op.parent2, op.name2)
                changes.append(SaveDirectory(record))
        if op.kind is OpKind.MKDIR and known and applied.st is not None:
            places.made(op.object, applied.st.st_ino, applied.tagged, applied.tag)
        elif op.kind in (OpKind.RENAME, OpKind.SEAL) and known:
            places.move(op.object, op.parent, op.name)
        elif op.kind is OpKind.RMDIR:
            places.forget(op.object)
            self._times.forget(op.object)
            changes.append(DropDirectory(op.object))
        record = places.record(op.object)
        if record is not None and applied.stands is not None:
            parent, name = applied.stands
            places.move(op.object, record.parent if parent is None else parent, name)
        for directory in applied.rebuilt:
            changes += rebuilt(places, op.object, directory)
        if record is not None and op.kind in MOVERS:
            changes.append(SaveDirectory(record))
        return changes

    # -- the kinds --------------------------------------------------------------------------------

    async def _apply(self, op: Op) -> Applied:
        match op.kind:
            case OpKind.PUT:
                return await self._put(op)
            case OpKind.MKDIR | OpKind.SYMLINK:
                return await self._make(op)
            case OpKind.RENAME:
                blind = BLIND in op.fields and not op.flags
                return await self._change_names(op, taken.rename if blind else steps.rename)
            case OpKind.LINK:
                return await self._change_names(op, steps.link)
            case OpKind.UNLINK | OpKind.RMDIR:
                self._check_edit(op)
                return await self._change_names(op, steps.remove)
            case OpKind.SETATTR:
                return await self._set_attributes(op)
            case OpKind.MKNOD:
                raise NothingToDo("special files stay on their node")
            case OpKind.SEAL:
                return await self._seal(op)
            case OpKind.TRASH:
                return await self._trash(op)
            case OpKind.REOPEN:
                return await self._change_names(op, group_steps.reopen(self._removed_in(op)))

    async def _put(self, op: Op) -> Applied:
        while True:
            self._check(op)
            ready = self._stager.ready(op)
            if ready is None or ready.data_version != op.data_version:
                self._stager.restage(op)
                raise ObjectChanged
            if ready.attr_version == op.attr_version:
                break
            await self._stager.renew_attributes(op, ready)
        staged = ready.staged
        op.digest = staged.digest
        try:
            applied = await self._publish(op, staged)
        except FileNotFoundError:
            self._stager.restage(op)  # somebody emptied the staging area
            raise
        except ObjectChanged:
            self._stager.restage(op)
            raise
        self._stager.used(op)
        if staged.in_place:
            self._rooms.store.spread.published.add(op.object)
        return applied

    async def _publish(self, op: Op, staged: Staged) -> Applied:
        """Give what was staged its name; ObjectChanged when it has to be staged beside it."""
        final: FinalCall = partial(steps.publish, staged)
        if BLIND in op.fields and op.kind is not OpKind.MKDIR:
            final = partial(taken.publish, staged, op.base_inode)
        try:
            return await self._final(op, final, staged.inode)
        except OSError as error:
            if error.errno != errno.EXDEV or staged.beside is not None:
                raise
            log.info("%s: its directory takes no renames from staging", path_of(op))
            raise ObjectChanged from error

    async def _make(self, op: Op) -> Applied:
        rooms = self._rooms
        kind = Kind.DIRECTORY if op.kind is OpKind.MKDIR else Kind.SYMLINK
        self._check(op)
        while True:
            await self._stager.remove_stale(op)
            version = op.attr_version
            found = await rooms.local(steps.look, rooms.store, op.object, kind)
            staged = await rooms.on_shared(steps.stage, rooms.shared, self._call(op), found)
            self._stager.abandon(op, staged)  # unless it is published
            self._check(op)
            if STAGED in op.fields:  # whoever finds it there finds who takes part
                record = group_steps.record_open
                await rooms.on_shared(record, rooms.shared, self._call(op), staged.inode)
                self._check(op)
            if op.attr_version == version:
                break
        applied = await self._publish(op, staged)
        self._stager.used(op)
        return applied

    async def _change_names(self, op: Op, final: FinalCall) -> Applied:
        self._check(op)
        inode = self._call(op).inode
        if inode is not None:
            try:
                return await self._final(op, final, inode)
            except OSError as error:
                if error.errno != errno.EXDEV or op.kind is not OpKind.LINK:
                    raise
            # its directory takes no renames from staging; that is known now
            self._check(op)
            return await self._final(op, final, inode)
        if op.kind in (OpKind.RENAME, OpKind.LINK):
            raise NothingToDo("what it names was never committed")
        return Applied(None)

    def _check_edit(self, op: Op) -> None:
        """Raise NotYet if the sealed checkpoint of `op` is to be unsealed before it is edited."""
        if op.kind is not OpKind.UNLINK or op.group is None:
            return
        if not self._rooms.backlog.is_going((op.group,)) and self._edit(op.group):
            raise NotYet

    async def _seal(self, op: Op) -> Applied:
        going = self._rooms.backlog.removal_of(op.parent, op.name)
        replaced = None if going is None else self._rooms.places.group(going.object)
        return await self._change_names(op, group_steps.seal(replaced))

    async def _trash(self, op: Op) -> Applied:
        """Raises Held where that would leave nothing whole."""
        self._check(op)
        if not self._removals.let_go(op):
            rooms = self._rooms
            if (pointer := rooms.backlog.held_pointer_before(op)) is not None:
                raise Held(f"{path_of(pointer)} was replaced before, and that is held")
            place = rooms.places.place(op.parent)
            going = frozenset(
                (one.name, Call.of(rooms.places, one, ()).inode) for one in self._removals.going(op)
            )
            look = partial(group_steps.other_sealed, self._is_group, going)
            if not await rooms.on_shared(look, rooms.shared, place):
                raise Held("it is the last whole checkpoint there")
            lead = partial(group_steps.leading_to, op.name)
            self._removals.check_pointers(op, await rooms.on_shared(lead, rooms.shared, place))
        return await self._change_names(op, group_steps.trash)

    async def _set_attributes(self, op: Op) -> Applied:
        rooms = self._rooms
        self._check(op)
        call = self._call(op)
        if call.inode is None:
            raise NothingToDo("what it names was never committed")
        self._enter(op, Phase.PUBLISHING)  # a change made from here on is an op of its own
        try:
            found = await rooms.local(steps.look, rooms.store, op.object, None)
            return await rooms.on_shared(steps.set_attributes, rooms.shared, call, found)
        except Exception:
            self._enter(op, Phase.QUEUED)
            raise

    # -- checking, declaring, calling -------------------------------------------------------------

    def _check(self, op: Op) -> None:
        """Raise NotYet unless `op` may be published now. Synchronous."""
        rooms = self._rooms
        if not rooms.alive(op) or op.mark is not None or not op.durable:
            raise NotYet
        if op.state not in (OpState.PENDING, OpState.PUBLISHING):
            raise NotYet
        if rooms.backlog.may_publish(op, rooms.clock()) is not None:
            raise NotYet

    def _call(self, op: Op) -> Call:
        return Call.of(self._rooms.places, op, changed_directories(op))

    async def _final(self, op: Op, final: FinalCall, inode: int) -> Applied:
        """Declare `op` and make its final call. After a failure, find out whether it happened."""
        before = op.phase
        if op.kind in DECLARED:
            op.state, op.staged_inode = OpState.PUBLISHING, inode
        self._enter(op, Phase.PUBLISHING)
        try:
            if op.kind in DECLARED:
                await self._rooms.journal.post(SaveOp(op)).synced()
            return await self._observed(op, final)
        except NothingToDo:
            raise
        except Exception:
            applied = await self.outcome(op)
            if applied is not None:
                return applied
            self._take_back(op, before)
            raise

    async def _observed(self, op: Op, final: FinalCall) -> Applied:
        call = self._call(op)
        tokens = self._times.begin(tuple(call.directories))
        try:
            applied = await self._rooms.on_shared(steps.observed, final, self._rooms.shared, call)
        finally:
            alone = self._times.end(tokens)
        return replace(applied, before={d: m for d, m in applied.before.items() if d in alone})

    async def _resume(self, op: Op) -> Applied | None:
        applied = await self.outcome(op)
        if applied is None:
            staged = op.kind is OpKind.PUT and self._stager.ready(op) is not None
            self._take_back(op, Phase.STAGED if staged else Phase.QUEUED)
        return applied

    def _take_back(self, op: Op, phase: Phase) -> None:
        """`op` has surely not happened: it is pending as before."""
        if op.kind in DECLARED:
            op.state, op.staged_inode = OpState.PENDING, None
            self._rooms.journal.post(SaveOp(op))
        self._enter(op, phase)

    def _enter(self, op: Op, phase: Phase) -> None:
        op.phase = phase
        self._rooms.backlog.update(op)

    async def _set_time(self, due: Due) -> None:
        shared = self._rooms.shared
        try:
            place = self._rooms.places.place(due.directory)
            await self._rooms.on_shared(
                steps.set_directory_time, shared, place, due.mtime_ns, due.expected_ns
            )
        except DirectoryGone:
            return
        except OSError as error:
            # everything is committed; the directory keeps the time of the commit
            log.info("directory time not set: %s", error)

    # -- consequences -----------------------------------------------------------------------------

    def _removed_in(self, op: Op) -> tuple[Name, ...]:
        """The files of the checkpoint of `op` that nobody wants any more: paths from its top."""
        depth = len(op.path)
        removed = self._rooms.backlog.unlinked_next(op, op.object)
        return tuple(b"/".join(one.path[depth:]) for one in removed)

    def _teach(self, op: Op, applied: Applied) -> list[Change]:
        """Tell the ops behind `op` which inode they mean now.

        Those on the same object mean what was made of it. A removal means whatever the ops before
        it put under the name, of whichever object that is.
        """
        if applied.st is None:
            return []
        made = (op.parent, op.name)
        backlog = self._rooms.backlog
        meant = [one for one in backlog.behind(op) if _subject(one) == made]
        meant += [one for one in backlog.behind_at(op) if one.kind in REMOVALS]
        changes: list[Change] = []
        for later in dict.fromkeys(meant):
            if later.kind is OpKind.PUT:
                continue
            if later.base_inode != applied.st.st_ino:
                later.base_inode = applied.st.st_ino
                changes.append(SaveOp(later))
        return changes

    def _teach_other(self, op: Op, applied: Applied) -> list[Change]:
        """The same for what an exchange moved the other way."""
        left = (op.parent2, op.name2)
        if applied.other is None or op.other is None:
            return []
        backlog = self._rooms.backlog
        meant = [one for one in backlog.ops_of_object(op.other) if _subject(one) == left]
        meant += [one for one in backlog.behind_at_source(op) if one.kind in REMOVALS]
        changes: list[Change] = []
        for later in dict.fromkeys(meant):
            if later is op or later.kind is OpKind.PUT:
                continue
            if later.base_inode != applied.other.st_ino:
                later.base_inode = applied.other.st_ino
                changes.append(SaveOp(later))
        return changes

    async def _note_asked_time(self, op: Op) -> None:
        if op.kind not in (OpKind.MKDIR, OpKind.SETATTR) or "times" not in op.fields:
            return
        if self._rooms.places.record(op.object) is None:
            return  # no directory
        store = self._rooms.store
        try:
            attributes = await self._rooms.local(store.attributes, op.object, Kind.DIRECTORY)
        except LocalFailure:
            return  # it is committed; only the last word on its time is lost
        self._times.asked(op, attributes.ctime_ns, attributes.mtime_ns)


def _subject(op: Op) -> tuple[ObjectId | None, bytes | None]:
    """The name under which an op finds what it is about."""
    if op.kind in (OpKind.RENAME, OpKind.LINK):
        return op.parent2, op.name2
    return op.parent, op.name
