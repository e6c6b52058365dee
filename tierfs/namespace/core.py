"""What all modules of the namespace share: the rooms below, and the issue of ops.

Its calls on the two tiers are in `tiers`, what it knows of objects in `objects`.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import trio

from tierfs.capacity import Expectations, Promises
from tierfs.groups import Patterns
from tierfs.journal import (
    Change,
    DropDirectory,
    DropObject,
    DropOp,
    Journal,
    SaveDirectory,
    SaveObject,
    SaveOp,
    SaveRequest,
    Ticket,
)
from tierfs.local import ObjectStore
from tierfs.model import (
    BLIND,
    OLDER,
    REMOVALS,
    ROOT,
    DirectoryRecord,
    Name,
    ObjectId,
    ObjectRecord,
    Op,
    OpKind,
    OpState,
    Phase,
    Reopen,
)
from tierfs.namespace.clock import SETTLE_SECONDS, file_time_ns
from tierfs.namespace.closing import Closing
from tierfs.namespace.direct import Direct, NoDirect
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.grouping.table import GroupTable
from tierfs.namespace.objects import Objects
from tierfs.namespace.outage.announced import Announced
from tierfs.namespace.outage.calls import SharedCalls
from tierfs.namespace.overlay.links import COUNTED, LINKS, Links, subdirectories
from tierfs.namespace.overlay.nodes import (
    Content,
    DirectoryState,
    Entry,
    LocalObject,
    Location,
    Node,
)
from tierfs.namespace.overlay.tree import Tree
from tierfs.namespace.requests import current
from tierfs.namespace.restart.memory import Memory
from tierfs.namespace.room.pins import Pins
from tierfs.namespace.settings import NamespaceSettings
from tierfs.namespace.signal import Signal
from tierfs.namespace.tiers import WithRoom, never_lost, without_room
from tierfs.order import Backlog
from tierfs.osio import OS
from tierfs.policies import Policies, Policy, PolicyKind
from tierfs.shared import Places, SharedTier, is_hidden
from tierfs.threads import Pool
from tierfs.writeback import WriteBack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


UNTIMED = frozenset({OpKind.SETATTR, OpKind.SEAL, OpKind.REOPEN, OpKind.TRASH})
"""Ops that are no change that an application made in their directory."""

MAY_BE_BLIND = frozenset({OpKind.PUT, OpKind.SYMLINK, OpKind.LINK, OpKind.RENAME})

REPLACERS = frozenset({OpKind.RENAME, OpKind.LINK, OpKind.SYMLINK})
"""Ops that give a name to something else at once; a PUT does so when it is closed."""


class Core(Objects):
    """The rooms below the namespace, and the few steps that every change of a name takes.

    Attributes:
        issued: how many ops this process has issued.
        touched: directories whose own time is shown, see `DirectoryState.changed_ns`.
        doomed: directory objects whose files are about to be removed; a new object of the same
            directory has the same id and waits for that.
        direct: grants kernel passthrough.
        groups: the unsealed checkpoints.
        written_over: the published checkpoints that are written over, see `until_published`.
        memory: what the next worker of the mount has to know.
        scarce: the local tier is below its reserve.
        links: who loses a name by what is pending.
        spare: objects that were held over an await and may be needed by nothing now.
        announced: the directories in use, for an outage.
        closing, closing_shared: descriptors on the two tiers that nobody uses any more.
    """

    def __init__(
        self,
        os_: OS,
        store: ObjectStore,
        journal: Journal,
        backlog: Backlog,
        places: Places,
        shared: SharedTier,
        local_threads: Pool,
        shared_threads: Pool,
        reading_threads: Pool,
        settings: NamespaceSettings,
        patterns: Patterns,
        policies: Policies,
    ) -> None:
        self.os = os_
        self.store = store
        self.journal = journal
        self.backlog = backlog
        self.places = places
        self.shared = shared
        self.settings = settings
        self.policies = policies
        self.scratch: set[LocalObject] = set()
        self._local_threads = local_threads
        self.calls = SharedCalls(shared_threads, reading_threads, lambda: self.settings.tier_wait)
        root = places.record(ROOT)
        assert root is not None
        assert root.inode is not None
        self.announced = Announced()
        self.issued = 0
        self.touched: set[ObjectId] = set()
        self.spare: list[LocalObject] = []
        self.doomed: dict[ObjectId, trio.Event] = {}
        self.closing = Closing(os_, self.local)
        self.closing_shared = Closing(os_, self.on_shared)
        self.direct: Direct = NoDirect("not set up")
        self.promises = Promises(settings.reserve)
        self.expected = Expectations(settings.expect_bytes)
        self.freed = Signal()
        self.pins = Pins(journal)
        self.with_room: WithRoom = without_room
        self.is_drive_lost = never_lost
        self.tree = Tree(root.inode, self._directories_gone, self._directory_moved)
        self.links = Links()
        self.groups = GroupTable(
            self.tree, places, journal, backlog, patterns, settings.group_settle
        )
        self.groups.drop_seal, self.groups.reopen = self.drop_op, self._reopen
        self.groups.take_older = self._take_older
        self.written_over: dict[ObjectId, float] = {}
        self.memory = Memory(self.tree)
        journal.before_post = self.memory.flush
        self.writeback: WriteBack

    def _reopen(self, group: ObjectId, how: Reopen, number: int) -> Op:
        state = self.tree.directories[group]
        assert state.parent is not None
        if how is Reopen.LINKED:
            self.written_over[group] = math.inf
        op, _ = self.issue(
            OpKind.REOPEN, self.directory_object(group), self.tree.directories[state.parent],
            state.name, flags=how, number=number,
        )  # fmt: skip
        self.writeback.submit(op)
        return op

    def issue_trash_of_older(self, group: Group) -> Op:
        """The removal of the sealed generation that stands under the name of `group`."""
        op, _ = self.issue(
            OpKind.TRASH, self.directory_object(group.id), self.tree.directories[group.parent],
            group.name, base_inode=group.record.older, fields=(OLDER,),
        )  # fmt: skip
        return op

    def _take_older(self, group: Group) -> None:
        self.writeback.submit(self.issue_trash_of_older(group))

    @contextmanager
    def step(self, *, later: bool = False, early: bool = False) -> Iterator[None]:
        """All that is posted inside, and that the present request is carried out, survives or not.

        For the one synchronous step in which a call that changes names does it. `later`: what
        must be written follows (`Journal.post`); `early` as of `Journal.together`.
        """
        with self.journal.together(later=later, early=early):
            yield
            if (request := current()) is not None:
                self.journal.post(SaveRequest(request.unique))

    # -- ops -----------------------------------------------------------------------------------

    def issue(
        self,
        kind: OpKind,
        obj: LocalObject,
        parent: DirectoryState,
        name: Name,
        *,
        source: tuple[DirectoryState, Name] | None = None,
        state: OpState = OpState.PENDING,
        base_inode: int | None = None,
        overwrites: bool = False,
        fields: tuple[str, ...] = (),
        flags: int = 0,
        targets: tuple[ObjectId, ...] = (),
        number: int = 0,
        decided: bool = False,
    ) -> tuple[Op, Ticket]:
        """Issues an op, as the next `number` or that: in the backlog, its row posted; no await."""
        now = file_time_ns()
        self.issued += 1
        self.writeback.pace.touch()
        self.announced.issued(kind, parent.id, obj.id)
        if kind in MAY_BE_BLIND and self.announced.assumed(parent.id, name):
            fields = (*fields, BLIND)
        scope = self.tree.scope(parent.id)
        if kind in REPLACERS and (overwrites or self._has_shared(parent, name)):
            self.groups.replace_in(scope)
        op = Op(
            row=self.journal.next_row(), number=number or self.journal.next_number(), kind=kind,
            object=obj.id, parent=parent.id, name=name, timestamp_ns=now, state=state,
            changed_ns=0 if kind in UNTIMED else now, base_inode=base_inode,
            overwrites=overwrites, fields=fields, flags=flags, scope=scope,
            path=(*self.tree.path(parent.id), name), targets=targets, decided=decided,
        )  # fmt: skip
        op.log = self.is_log(op)
        if source is not None:
            op.parent2, op.name2 = source[0].id, source[1]
            op.scope2 = self.tree.scope(source[0].id)
            op.path2 = (*self.tree.path(source[0].id), source[1])
        if op.state is OpState.PENDING:
            op.first = op.number
        self.groups.note(op)
        self.groups.pointed(targets)
        for end in (op.scope, op.scope2):
            self.groups.disturbed(end, removal=kind in REMOVALS)
        obj.pending += 1
        obj.links += LINKS.get(kind, 0)
        if kind is OpKind.PUT:
            obj.put = op
        self.count_directories(op)
        changes = self._pin(op)
        changes.append(SaveObject(self._record(obj, base_inode)))
        changes.append(SaveOp(op))
        if kind is not OpKind.MKNOD:
            self.backlog.add(op)
        if op.changed_ns:
            for changed in (parent, source[0]) if source else (parent,):
                self.touch(changed, now)
        return op, self.journal.post(*changes)

    def count_directories(self, op: Op) -> None:
        """`op` will change how many directories there are in one; before it is in the backlog."""
        if op.kind not in COUNTED:
            return
        backlog = self.backlog
        op.subdirectories = subdirectories(
            op, self.tree.directories, backlog.of_name(op.parent, op.name),
            backlog.of_object(op.object),
        )  # fmt: skip
        for directory, change in op.subdirectories:
            if (state := self.tree.directories.get(directory)) is not None:
                state.subdirectories += change

    def is_log(self, op: Op) -> bool:
        """Whether `op` sends a file to whose path the policy for logs applies."""
        return op.kind is OpKind.PUT and self.policies.of(op.path).kind is PolicyKind.LOG

    def lay(self, obj: LocalObject, state: DirectoryState, name: Name) -> None:
        """Has a new object made on the tier on which the policy of its path wants it."""
        path = (*self.tree.path(state.id), name)
        if self.policies.of(path).kind is PolicyKind.DIRECT:
            self.store.spread.place_far(obj.id)

    def begin_file(
        self, obj: LocalObject, state: DirectoryState, name: Name, shared_inode: int | None
    ) -> Op:
        """Issues the op of a file that is made: it will be sent, or is scratch and stays here."""
        path = (*self.tree.path(state.id), name)
        if self.policies.of(path).kind is PolicyKind.SCRATCH:
            obj.scratch = True
            self.scratch.add(obj)
            op, obj.made = self.issue(OpKind.MKNOD, obj, state, name)
            return op
        op, obj.made = self.issue(
            OpKind.PUT, obj, state, name, state=OpState.OPEN, base_inode=shared_inode
        )
        return op

    def policy(self, node: Node) -> Policy:
        """What holds for the file `node`; once it has no name, what holds by default."""
        place = self.tree.a_name(node)
        if place is None:
            return self.policies.default
        return self.policies.of((*self.tree.path(place[0]), place[1]))

    def _has_shared(self, state: DirectoryState, name: Name) -> bool:
        entry = state.entries.get(name)
        return entry is not None and entry.shared_inode is not None

    def touch(self, state: DirectoryState, now_ns: int) -> None:
        """A name in `state` changed at `now_ns`: that is its mtime."""
        state.changed_ns = now_ns
        state.settled = time.monotonic() + SETTLE_SECONDS
        self.touched.add(state.id)

    def time_asked(self, state: DirectoryState, mtime_ns: int) -> None:
        """An application gave `state` this mtime: what is committed below it changes nothing."""
        state.changed_ns = 0
        if not self.backlog.nothing_but(None, state.id):
            self.touch(state, mtime_ns)

    def changed_here(self, state: DirectoryState) -> None:
        """A name in `state` changed and no op says so: its mtime has to go there all the same."""
        self.writeback.changed(self.tree.scope(state.id), state.changed_ns)

    def _record(self, obj: LocalObject, base_inode: int | None) -> ObjectRecord:
        return ObjectRecord(obj.id, obj.kind, obj.content is Content.DATA, base_inode)

    def _pin(self, op: Op) -> list[Change]:
        return self._saved(self.tree.pin(self.tree.needed(op)))

    def _saved(self, directories: Iterable[ObjectId]) -> list[Change]:
        records = [self.places.record(directory) for directory in directories if directory != ROOT]
        return [SaveDirectory(record) for record in records if record is not None]

    def _unpin(self, directories: set[ObjectId]) -> list[Change]:
        idle = [directory for directory in self.tree.unpin(directories) if directory != ROOT]
        for directory in idle:
            self.tree.release_directory(directory)
        return [DropDirectory(directory) for directory in idle]

    def _directory_moved(self, fresh: list[ObjectId], idle: list[ObjectId]) -> None:
        """A directory that ops need has another parent: so these need theirs, too, or no more."""
        dropped = [DropDirectory(directory) for directory in idle if directory != ROOT]
        self.journal.post(*self._saved(fresh), *dropped)

    def retarget(self, op: Op, parent: DirectoryState, name: Name, *, overwrites: bool) -> Ticket:
        """Gives a pending op another name (rename of what was not sent yet)."""
        needed = self.tree.needed(op)
        scope, path = self.tree.scope(parent.id), (*self.tree.path(parent.id), name)
        if overwrites and op.state is not OpState.OPEN and not op.log:
            self.groups.replace_in(scope)
        number = self.journal.next_number()
        op.overwrites = overwrites
        if self.announced.assumed(parent.id, name) and BLIND not in op.fields:
            op.fields = (*op.fields, BLIND)
        before, op.scope = op.scope, scope
        op.log = op.kind is OpKind.PUT and self.policies.of(path).kind is PolicyKind.LOG
        self.groups.note(op)
        for end in (before, scope):
            self.groups.disturbed(end)
        if op.kind is OpKind.MKNOD:
            op.parent, op.name, op.path, op.number = parent.id, name, path, number
        else:
            self.backlog.retarget(op, parent.id, name, scope, path, number)
        op.changed_ns = file_time_ns()
        self.touch(parent, op.changed_ns)
        changes = [*self._pin(op), *self._unpin(needed)]
        return self.journal.post(*changes, SaveOp(op))

    def close_op(self, op: Op) -> list[Change]:
        """`op` is committed or dropped: what the journal has to forget. Synchronous."""
        for scope in (op.scope, op.scope2):
            self.groups.settled(scope)
        for directory, change in op.subdirectories:
            if (state := self.tree.directories.get(directory)) is not None:
                state.subdirectories -= change
                state.counted += 1
        changes: list[Change] = [*self._unpin(self.tree.needed(op)), DropOp(op.row)]
        for obj in filter(None, map(self.tree.objects.get, filter(None, (op.object, op.other)))):
            obj.pending -= 1
            obj.links -= LINKS.get(op.kind, 0)
            if obj.put is op:
                obj.put = None
            if obj.pending == 0:
                changes.append(DropObject(obj.id))
        if (lost := self.links.over(op)) is not None and lost.pending == 0:
            self.spare.append(lost)
        return changes

    def drop_op(self, op: Op) -> Ticket:
        """Takes a pending op back (it cancels with a later one)."""
        if op in self.backlog:
            self.backlog.remove(op)
            self.writeback.cancel(op)
        return self.journal.post(*self.close_op(op))

    def droppable(self, op: Op) -> bool:
        """Whether `op` may be taken back: not being published, and nothing issued later waits for
        it. What is being sent of it is given up.
        """
        if op.kind is OpKind.MKNOD:
            return True
        if op.phase is Phase.PUBLISHING or self.groups.leaving(op.scope) is not None:
            return False
        return not self.backlog.depended(op)

    def drop_obsolete_pointers(self) -> None:
        """Takes back pointers to unsealed checkpoints that a later version has replaced.

        That one waits for them, and they for a seal that may never come.
        """
        for op in self.backlog.obsolete_pointers():
            obj = self.tree.objects[op.object]
            if op.kind is OpKind.RENAME and not self.backlog.behind_at_source(op):
                self._take_from_source(op, obj)
            self.drop_op(op)
            self.spare.append(obj)

    def _take_from_source(self, op: Op, obj: LocalObject) -> None:
        """What a rename that is not made would have moved goes from where it is."""
        state = self.tree.directories.get(op.parent2) if op.parent2 is not None else None
        if state is None or op.name2 is None:
            return
        entry = state.entries.get(op.name2)
        removal, _ = self.issue(OpKind.UNLINK, obj, state, op.name2, base_inode=op.base_inode)
        state.put(op.name2, Entry(None, removal, entry.shared_inode if entry else op.base_inode))
        self.writeback.submit(removal)

    def _directories_gone(self, gone: list[ObjectId]) -> None:
        for directory in gone:
            self.places.forget(directory)

    def start_of(self, directory: ObjectId, target: Name) -> tuple[ObjectId, Name]:
        """Where the way of a link in `directory` to `target` begins, and what is left of it.

        A way that begins outside the mount leads to nothing that is ordered here.
        """
        if not target.startswith(b"/"):
            return directory, target
        top = self.settings.mountpoint
        if top and (target == top or target.startswith(top + b"/")):
            return ROOT, target[len(top) :]
        return directory, b""

    def check_new_name(self, state: DirectoryState, name: Name, target: Name = b"") -> None:
        """Refuses a name that cannot be made in `state`: it is gone, or the name is reserved.

        So is a symbolic link whose `target` is longer than the shared tier takes.
        """
        if len(target) > self.shared.target_bytes:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(name))
        if state.removed:
            raise FileNotFoundError(errno.ENOENT, "the directory was removed", os.fsdecode(name))
        if is_hidden(b"/".join(self.tree.path(state.id)), name):
            raise OSError(errno.EPERM, "the name is reserved for tierfs", os.fsdecode(name))

    def pending_directory(self, directory: ObjectId, parent: ObjectId, name: Name) -> None:
        """Notes a directory that its MKDIR will make on the shared tier."""
        self.places.add(DirectoryRecord(directory, parent, name))

    def directory_record(
        self, directory: ObjectId, location: Location, *, tagged: bool, tag: ObjectId | None = None
    ) -> None:
        """Notes where a directory was seen on the shared tier, and which id it carries there."""
        known = self.places.record(directory)
        if known is not None and known.inode == location.inode:
            was, known.tag = known.tag, tag or known.tag
            moved = (known.parent, known.name) != (location.directory, location.name)
            if moved or was != known.tag:
                known.parent, known.name = location.directory, location.name
                if self.tree.directories[directory].pins:
                    self.journal.post(SaveDirectory(known))
            return
        record = DirectoryRecord(
            directory, location.directory, location.name, location.inode, tagged, tag
        )
        self.places.add(record)
