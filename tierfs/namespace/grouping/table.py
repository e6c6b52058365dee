"""The unsealed checkpoints that this member writes in. Synchronous.

Whether a directory is an unsealed checkpoint is told by where it stands on the shared tier: it is
one while its name there is `.staging_NAME`. The table holds what cannot be seen there, and is kept
in the journal: a seal that is due when the daemon dies is due after that, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tierfs.groups import POINTER, UNKNOWN, Patterns, Process, State, Writers
from tierfs.journal import (
    Change,
    DropDirectory,
    DropGroup,
    Journal,
    SaveDirectory,
    SaveGroup,
    SaveOp,
)
from tierfs.model import (
    REMOVALS,
    ROOT,
    STAGED,
    STALE,
    GroupRecord,
    Mark,
    Name,
    ObjectId,
    Op,
    OpKind,
    Phase,
    Reopen,
)
from tierfs.namespace.grouping.generation import first_number, how_to_edit
from tierfs.namespace.grouping.group import Group, know, records_of
from tierfs.namespace.grouping.processes import Processes
from tierfs.namespace.grouping.unlinkers import Unlinkers
from tierfs.namespace.overlay.nodes import DirectoryState
from tierfs.namespace.overlay.tree import Tree
from tierfs.order import Backlog
from tierfs.shared import Places, unstaged_name

REBUILDS = (OpKind.REOPEN, OpKind.TRASH, OpKind.RMDIR)
"""What is pending of a checkpoint that is removed, or written again."""

LEAVERS = (OpKind.RENAME, OpKind.RMDIR)
"""What ends the life of an unsealed checkpoint as one."""


class GroupTable:
    """Unsealed checkpoints by directory id.

    Attributes:
        patterns: which names are those of checkpoints.
        settle: seconds without a change after which it is quiet in a checkpoint.
        changed: called with a group when something happened that may let it be sealed.
        drop_seal: takes a SEAL back that is not under way.
        reopen: issues a REOPEN.
        take_older: has the sealed generation of a checkpoint removed, of which this is the next.
        left: called with a group when a process that wrote it has ended, or a file of it is closed.
        sealed: called with the directory in which a checkpoint was sealed.
        last_removed: by parent, the files of the unsealed checkpoint that was last removed there by
            one who wrote it.
    """

    def __init__(
        self, tree: Tree, places: Places, journal: Journal, backlog: Backlog,
        patterns: Patterns, settle: float,
    ) -> None:  # fmt: skip
        self._tree = tree
        self._places = places
        self._journal = journal
        self._backlog = backlog
        self.patterns = patterns
        self.settle = settle
        self._newest: dict[ObjectId, int] = {}
        self.processes = Processes(self._ended)
        self.unlinkers = Unlinkers(backlog, journal)
        self.changed: Callable[[Group], None] = lambda group: None
        self.drop_seal: Callable[[Op], object] = lambda op: None
        self.reopen: Callable[[ObjectId, Reopen, int], Op]
        self.take_older: Callable[[Group], object]
        self.left: Callable[[Group], object] = lambda group: None
        self.sealed: Callable[[ObjectId], None] = lambda directory: None
        self.last_removed: dict[ObjectId, frozenset[Name]] = {}
        self._groups: dict[ObjectId, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, directory: ObjectId) -> Group | None:
        """The unsealed checkpoint `directory`, if this member writes in it."""
        return self._groups.get(directory)

    # -- what a directory is ---------------------------------------------------------------------

    def is_group(self, state: DirectoryState, name: Name) -> bool:
        """Whether a directory `name` in `state` is a checkpoint: the topmost on its path."""
        if self.patterns.profile_of(name) is None:
            return False
        return self.patterns.top(self._tree.path(state.id)) is None

    def is_unsealed(self, directory: ObjectId) -> bool:
        """Whether `directory` is an unsealed checkpoint."""
        if directory in self._groups:
            return True
        if not self._is_staged(directory):
            return False
        # one that is being renamed or removed is none any more in the mount
        return not any(STAGED in op.fields or op.kind is OpKind.RMDIR
                       for op in self._backlog.ops_of_object(directory)
                       if op.kind in LEAVERS)  # fmt: skip

    def _is_staged(self, directory: ObjectId) -> bool:
        record = self._places.record(directory)
        return record is not None and unstaged_name(record.name) is not None

    def unsealed_in(self, scope: Iterable[ObjectId]) -> ObjectId | None:
        """The unsealed checkpoint among the directories `scope`."""
        return next(filter(self.is_unsealed, scope), None)

    def sealed_in(self, scope: tuple[ObjectId, ...]) -> ObjectId | None:
        """The sealed checkpoint that the last of `scope` lies in now, or is.

        A directory above it may have been renamed since `scope` led there.
        """
        top = self.patterns.top(self._tree.path(scope[-1]))
        if top is None:
            return None
        found = self._tree.scope(scope[-1])[top + 1]
        return None if self.is_unsealed(found) or self._is_staged(found) else found

    def concerns(self, scope: tuple[ObjectId, ...]) -> bool:
        """Whether there is anything that `note` would note of an op there."""
        return self.unsealed_in(scope) is not None or self.sealed_in(scope) is not None

    def note(self, op: Op) -> None:
        """Notes in `op` the checkpoint that it lies in, sealed or not."""
        ends = (op.scope, op.scope2) if op.scope2 else (op.scope,)
        op.unsealed = all(self.unsealed_in(scope) is not None for scope in ends)
        op.group = self.sealed_in(op.scope2 if op.kind is OpKind.RENAME else op.scope)
        if op.group is not None and self._became_one_after(op.group, op.number):
            op.group = None
        if op.kind in REMOVALS and (leaving := self.leaving(op.scope)) is not None:
            op.unsealed, op.group = False, leaving.id
        self.unlinkers.sign(op)

    def _became_one_after(self, sealed: ObjectId, number: int) -> bool:
        """Whether a directory is renamed into place as a checkpoint by an op after `number`."""
        return any(
            op.kind is OpKind.RENAME and op.number > number and self.patterns.top(op.path2) is None
            for op in self._backlog.ops_of_object(sealed)
        )

    def written_in(self, scope: Iterable[ObjectId]) -> Group | None:
        """The unsealed checkpoint among `scope`, if this member writes in it."""
        return self._groups.get(self.unsealed_in(scope) or ROOT) if self._groups else None

    def leaving(self, scope: Iterable[ObjectId]) -> Group | None:
        """The finished checkpoint among `scope` that is being removed (finishing.py)."""
        group = self.written_in(scope)
        return group if group is not None and group.leaving else None

    def around(self, directory: ObjectId) -> tuple[ObjectId, ...]:
        """What a pointer to `directory` leads to: it, and the unsealed checkpoint it lies in."""
        found = self.unsealed_in(self._tree.scope(directory))
        return (directory,) if found in (None, directory) else (directory, found)

    def seen(
        self, state: DirectoryState, name: Name, directory: ObjectId, *, unsealed: bool
    ) -> None:
        """The directory `name` in `state` was seen on the shared tier, unsealed or not."""
        if unsealed:
            state.unsealed[name] = directory
        elif state.unsealed.get(name) == directory and self._backlog.of_object(directory) is None:
            del state.unsealed[name]
            self.end(directory)  # another member sealed it

    def listed(self, directory: ObjectId) -> bool:
        """Whether the unsealed checkpoint `directory` is shown in listings.

        While one who writes it lives, or if there is a sealed generation of that name.
        """
        group = self._groups.get(directory)
        return group is not None and (group.record.older is not None or self._is_written(group))

    def _is_written(self, group: Group) -> bool:
        return group.is_written(len(self._backlog.open_files(group.id)), self.settle)

    def is_unlisted(self, directory: ObjectId | None) -> bool:
        """Whether `directory` is an unsealed checkpoint that listings do not show."""
        return directory is not None and self.is_unsealed(directory) and not self.listed(directory)

    def newer(self, group: Group) -> list[Group]:
        """The unsealed checkpoints beside `group` that were made after it."""
        beside = (each for each in self._groups.values() if each.parent == group.parent)
        return [each for each in beside if each.record.made > group.record.made]

    def has_newer(self, group: Group) -> bool:
        """Whether a checkpoint was made beside `group` after it, sealed by now or not."""
        return self._newest.get(group.parent, 0) > group.record.made

    # -- changes -----------------------------------------------------------------------------------

    def begin(self, state: DirectoryState, name: Name, directory: ObjectId, process: int) -> None:
        """`process` makes the checkpoint `directory`, in the tree as `name` in `state`."""
        group = self._enlist(GroupRecord(directory, self._journal.next_number()))
        assert (group.parent, group.name) == (state.id, name)
        group.act()
        group.writers.made(self.follow(process))
        self._save(group)

    def replace_in(self, scope: tuple[ObjectId, ...], process: int = 0) -> None:
        """A name in the last directory of `scope` is about to be given to something else.

        In a sealed checkpoint that begins a new generation of it: as a whole it stays what it was
        until the new one is whole, too.
        """
        # an unsealed one that came into the sealed one with its directory is no part of that
        sealed = self.sealed_in(scope) if self.unsealed_in(scope) is None else None
        record = None if sealed is None else self._places.record(sealed)
        if sealed is None or record is None or record.inode is None:
            return
        group = self._begin_next(sealed, Reopen.LINKED, self.unlinkers.pending(sealed))
        if process:
            group.writers.wrote(self.follow(process))
            self._save(group)

    def edit(self, sealed: ObjectId) -> bool:
        """What was removed from the checkpoint `sealed` is about to be removed from its files.

        True: a new generation of it begins first.
        """
        if sealed in self._groups or any(
            op.kind in REBUILDS for op in self._backlog.ops_of_object(sealed)
        ):
            return False
        removed, killed = self.unlinkers.pending(sealed), self.unlinkers.killed(sealed)
        how = how_to_edit(self._backlog, sealed, removed, killed=killed)
        if how is not None:
            with self._journal.together():
                group = self._begin_next(sealed, how, removed)
                if killed and group.record.older is not None:
                    self.take_older(group)
                    group.record = replace(group.record, older=None)
                    self._save(group)
        return how is not None

    def take_up_removals(self) -> None:
        """To be called when the backlog is restored: a removal may have been cut off."""
        for sealed in self.unlinkers.restore(self.processes.follow):
            self.edit(sealed)

    def _begin_next(self, sealed: ObjectId, how: Reopen, removed: list[Op]) -> Group:
        record = self._places.record(sealed)
        older = record.inode if record is not None and how is Reopen.LINKED else None
        following = self._journal.next_number()
        since = first_number(self._backlog, sealed, removed, following)
        self.reopen(sealed, how, since)
        made = self._journal.next_number()
        group = self._enlist(GroupRecord(sealed, made, older=older), since)
        for op in list(self._backlog.under(sealed)):
            self.note(op)
            self._backlog.update(op)
        for op in removed:
            self._backlog.release_hold(op)
        return group

    def enter(self, directory: ObjectId, process: int, *, wrote: bool = True) -> None:
        """`process` is about to write in `directory`, or to make a directory there.

        If all who wrote before in the unsealed checkpoint are gone, and not all of them ended well,
        a new generation begins, and what they left counts no more.
        """
        scope = self._tree.scope(directory)
        self.unlinkers.goes_on(process, scope)
        if (found := self.unsealed_in(scope)) is None:
            return
        group, who = self._groups.get(found), self.follow(process)
        again = group is None or self.is_abandoned(group)
        if group is None:
            group = self._enlist(GroupRecord(found, self._journal.next_number()))
        elif again:
            group.writers = Writers()
            group.writers.wrote_over(who)  # a pointer of theirs says nothing of what comes now
            group.record, group.stays = replace(group.record, expect=None), False
            self._go_on(group)
        known = group.writers.who_wrote() if wrote else group.writers.processes()
        if again or who not in known:
            (group.writers.wrote if wrote else group.writers.made)(who)
            self._save(group)
        if again:
            self.reopen(found, Reopen.UNLISTED, self._journal.next_number())
            self._give_up_torn(group)

    def closed(self, directory: ObjectId, name: Name, process: int, *, over: bool) -> None:
        """`process` closed the file `name` that it wrote in `directory`; `over` an older one."""
        group = self.written_in(self._tree.scope(directory))
        if group is None:
            return
        group.act()
        who = self.follow(process)
        self._given(group, directory, name, over={who} if over else ())
        if who in group.writers.who_closed():
            return
        group.writers.closed(who)
        self._save(group)
        for each in self._groups.values():
            if each.parent == group.parent:
                self.changed(each)

    def renamed(self, directory: ObjectId, name: Name, *, over: bool) -> None:
        """A file in `directory` got that `name`, `over` another; who did it is not known."""
        group = self.written_in(self._tree.scope(directory))
        if group is not None:
            living = group.writers.processes(State.LIVING) & group.writers.who_wrote()
            self._given(group, directory, name, over=living if over else ())

    def _given(
        self, group: Group, directory: ObjectId, name: Name, over: Iterable[Process]
    ) -> None:
        """A file in `directory` of `group` is there as `name` now; `over`: who changed one."""
        before = records_of(group.writers)
        group.writers.wrote_over(*over)
        if directory == group.id:
            group.writers.marked(name)
        if records_of(group.writers) != before:
            self._save(group)

    def pointed(self, targets: Iterable[ObjectId]) -> None:
        """A pointer, or a symbolic link, leads to `targets` from now on."""
        for group in filter(None, map(self._groups.get, targets)):
            self._given(group, group.id, POINTER, over=())
            self.changed(group)  # nothing else in it need have changed

    def removes(self, group: Group, process: Process) -> None:
        """`process` is about to remove a file of `group`."""
        if process not in group.writers.who_removed():
            group.writers.removed(process)
            self._save(group)

    def settled(self, scope: tuple[ObjectId, ...]) -> None:
        """An op in the last directory of `scope` is over."""
        group = self.written_in(scope)
        if group is not None:
            group.version += 1
            self.changed(group)

    def released(self, scope: tuple[ObjectId, ...]) -> None:
        """Nobody has a file in the last directory of `scope` open for writing any more."""
        if (group := self.written_in(scope)) is not None:
            self.left(group)
            self.changed(group)

    def disturbed(self, scope: tuple[ObjectId, ...], *, removal: bool = False) -> None:
        """An op is issued in the last directory of `scope`: a `removal`, or another."""
        group = self.written_in(scope)
        if group is None:
            return
        if not removal:
            group.names, leaving, group.leaving = None, group.leaving, False
            if leaving:
                self.note_again(group)
            if group.writers.who_removed():
                group.writers.written_again()
                self._save(group)
        group.act()
        group.verdict = None
        self._go_on(group)
        self.changed(group)

    def note_again(self, group: Group) -> None:
        """What is pending in `group` counts as in a sealed checkpoint now, or no more."""
        for op in list(self._backlog.under(group.id)):
            self.note(op)
            self._backlog.sealed_around(op)

    def adopt(self, directory: ObjectId) -> Group | None:
        """The unsealed checkpoint `directory`, also if nobody here ever wrote in it; else None."""
        group = self._groups.get(directory)
        if group is None and self.is_unsealed(directory):
            group = self._enlist(GroupRecord(directory, self._journal.next_number()))
        return group

    def ask(self, group: Group, expect: int | None) -> None:
        """`tierfs commit`: it is whole as it is, if it has `expect` files (-1: any number).

        None takes that back.
        """
        group.record = replace(group.record, expect=expect)
        self._save(group)
        self.changed(group)

    def went_on(self, before: Group) -> None:
        """Who wrote on in `before`, which ended, writes in the generation begun since, if any."""
        group = self._groups.get(before.id)
        if group is not None and not self.is_abandoned(before):
            group.writers = before.writers
            self._save(group)

    def end(self, directory: ObjectId) -> None:
        """The checkpoint is sealed, removed, or renamed: it is like any other directory now."""
        self._forget_name(directory)
        group = self._groups.pop(directory, None)
        if group is None:
            return
        self._go_on(group)
        self._backlog.group_sealed(directory)
        self._journal.post(*self._unpin(group), DropGroup(directory))

    def restore(self, records: Iterable[GroupRecord]) -> None:
        """What the journal holds; directories and places are restored already."""
        for record in records:
            if record.id in self._tree.directories:
                self._enlist(record)
            else:
                self._backlog.group_sealed(record.id)
                self._journal.post(DropGroup(record.id))

    # -- inside ------------------------------------------------------------------------------------

    def _forget_name(self, directory: ObjectId) -> None:
        known = self._tree.directories.get(directory)
        parent = known.parent if known is not None else None
        state = self._tree.directories.get(parent) if parent is not None else None
        if known is not None and state is not None and state.unsealed.get(known.name) == directory:
            del state.unsealed[known.name]

    def _go_on(self, group: Group) -> None:
        """What is to end this generation of `group` is taken back, if it has surely not begun."""
        seal = group.seal
        if seal is None or seal.phase is Phase.PUBLISHING:
            return
        if seal.kind is OpKind.SEAL or not seal.attempts:
            group.seal = None
            self.drop_seal(seal)

    def _give_up_torn(self, group: Group) -> None:
        """`group` is written anew: what its dead writers left torn in it counts no more."""
        for op in list(self._backlog.under(group.id)):
            if op.mark is Mark.TORN and STALE not in op.fields:
                op.fields = (*op.fields, STALE)
                self._journal.post(SaveOp(op))
        self.changed(group)

    def is_abandoned(self, group: Group) -> bool:
        """Whether all who wrote in `group` are gone, and not all of them ended well."""
        return bool(group.writers.processes(State.KILLED)) and not self._is_written(group)

    def _enlist(self, record: GroupRecord, since: int = 0) -> Group:
        state = self._tree.directories[record.id]
        assert state.parent is not None
        group = Group(record, state.parent, state.name, touched=time.monotonic())
        for each in record.writers:
            know(group.writers, each, self.processes)
        self._groups[record.id] = group
        self._tree.directories[group.parent].unsealed[group.name] = record.id
        self._backlog.group_unsealed(record.id, group.name, since)
        self._journal.post(*self._pin(group))
        self._save(group)
        for older in self._groups.values():
            if older.parent == group.parent:
                self.changed(older)
        return group

    def follow(self, process: int) -> Process:
        """The process `process`, followed from now on."""
        return Process(process, self.processes.follow(process)) if process else UNKNOWN

    def _save(self, group: Group) -> None:
        if group.writers.processes():  # else it was only edited
            newest = self._newest.get(group.parent, 0)
            self._newest[group.parent] = max(newest, group.record.made)
        group.record = replace(group.record, writers=records_of(group.writers))
        self._journal.post(SaveGroup(group.record))

    def _ended(self, process: int, started: int, well: bool) -> None:
        who = Process(process, started)
        for sealed in self.unlinkers.ended(who, killed=not well):
            self.edit(sealed)
        for group in self:
            if who in group.writers.processes():
                group.writers.ended(who, killed=not well)
                self._save(group)
                self.left(group)
                self.changed(group)

    def _pin(self, group: Group) -> list[Change]:
        records = [self._places.record(each) for each in self._tree.pin((group.id,))]
        return [SaveDirectory(each) for each in records if each is not None and each.id != ROOT]

    def _unpin(self, group: Group) -> list[Change]:
        idle = [each for each in self._tree.unpin((group.id,)) if each != ROOT]
        for directory in idle:
            self._tree.release_directory(directory)
        return [DropDirectory(directory) for directory in idle]
