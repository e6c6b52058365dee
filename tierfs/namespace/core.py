"""What all modules of the namespace share: the rooms below, threads, and the issue of ops."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

import trio

from tierfs.errors import DirectoryGone
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
    TouchClean,
)
from tierfs.local import ObjectStore
from tierfs.model import (
    ROOT,
    DirectoryRecord,
    Kind,
    Name,
    ObjectId,
    ObjectRecord,
    Op,
    OpKind,
    OpState,
    Phase,
    new_object_id,
)
from tierfs.namespace.clock import SETTLE_SECONDS, file_time_ns
from tierfs.namespace.closing import Closing
from tierfs.namespace.direct import Direct, NoDirect
from tierfs.namespace.links import LINKS, Links, changing
from tierfs.namespace.memory import Memory
from tierfs.namespace.nodes import Content, DirectoryState, Handle, LocalObject, Location, Node
from tierfs.namespace.requests import current
from tierfs.namespace.tree import Tree
from tierfs.order import Backlog
from tierfs.osio import OS
from tierfs.shared import Place, Places, SharedTier, is_hidden
from tierfs.threads import Pool
from tierfs.writeback import WriteBack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """Times in seconds.

    Attributes:
        mountpoint: where absolute symbolic links into the mount begin.
        open_hold: after how long a closed file that is still open somewhere is sent as a snapshot.
        mkdir_wait: how long mkdir waits for the shared tier before it is queued (DESIGN 4).
        watermark: share of the local tier above which clean copies are evicted.
        reserve: share of the local tier that is kept from writes past the daemon.
    """

    mountpoint: bytes = b""
    open_hold: float = 600.0
    mkdir_wait: float = 0.2
    watermark: float = 0.85
    reserve: float = 0.05


class Core:
    """The rooms below the namespace, and the few steps that every change of a name takes.

    Attributes:
        touched: directories whose own time is shown, see `DirectoryState.changed_ns`.
        doomed: directory objects whose files are about to be removed; a new object of the same
            directory has the same id and waits for that.
        direct: grants kernel passthrough.
        memory: what the next worker of the mount has to know.
        scarce: the local tier is below its reserve.
        links: who loses a name by what is pending.
        spare: objects that were held over an await and may be needed by nothing now.
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
        settings: NamespaceSettings,
    ) -> None:
        self.os = os_
        self.store = store
        self.journal = journal
        self.backlog = backlog
        self.places = places
        self.shared = shared
        self.settings = settings
        self._local_threads = local_threads
        self._shared_threads = shared_threads
        root = places.record(ROOT)
        assert root is not None
        assert root.inode is not None
        self.touched: set[ObjectId] = set()
        self.spare: list[LocalObject] = []
        self.doomed: dict[ObjectId, trio.Event] = {}
        self.closing = Closing(os_, self.local)
        self.closing_shared = Closing(os_, self.on_shared)
        self.direct: Direct = NoDirect("not set up")
        self.scarce = False
        self.tree = Tree(root.inode, self._directories_gone, self._directory_moved)
        self.links = Links()
        self.memory = Memory(self.tree)
        journal.before_post = self.memory.flush
        self.writeback: WriteBack

    # -- threads -------------------------------------------------------------------------------

    async def local(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Runs a blocking call on the local tier in one of its threads.

        What is missing there was lost: that is an error of the tier, never a missing name (G10).
        """
        try:
            return await self._local_threads.run(call, *args)
        except FileNotFoundError as error:
            raise OSError(
                errno.EIO, "the local tier lost a file that it needs", error.filename
            ) from error

    async def on_shared(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Runs a blocking call on the shared tier in one of its threads."""
        return await self._shared_threads.run(call, *args)

    async def on_shared_file(self, handle: Handle, call: Callable[[int], T]) -> T:
        """Runs a blocking call on the shared file that `handle` has open, however long it lasts."""
        handle.uses += 1
        try:
            return await self.on_shared(call, handle.shared_fd)
        finally:
            handle.uses -= 1
            self.close_shared_file(handle)

    def close_shared_file(self, handle: Handle) -> None:
        """Closes the shared file of a released handle, once nothing uses it any more."""
        if handle.closed and not handle.uses and handle.shared_fd >= 0:
            fd, handle.shared_fd = handle.shared_fd, -1
            self.closing_shared.add(fd)

    def place(self, directory: ObjectId) -> Place:
        """Where `directory` stands on the shared tier now, to be checked when it is opened."""
        record = self.places.record(directory)
        if record is None or record.inode is None:
            raise OSError(errno.ESTALE, "directory is not on the shared tier", str(directory))
        return self.places.place(directory)

    async def at(self, directory: ObjectId, call: Callable[[Place, *Ts], T], *args: *Ts) -> T:
        """Runs a blocking call on a directory of the shared tier, wherever it stands by then.

        OSError(ESTALE) when somebody else moved or removed it.
        """
        while True:
            place = self.place(directory)
            try:
                return await self.on_shared(call, place, *args)
            except DirectoryGone:
                if not await self._moved_by_us(directory, place):
                    raise

    async def _moved_by_us(self, directory: ObjectId, place: Place) -> bool:
        """Whether our own rename explains that `directory` is not at `place` any more."""
        at = directory
        while at != ROOT:
            if await self.rename_under_way(at):
                return True
            record = self.places.record(at)
            if record is None:
                return False
            at = record.parent
        return self.places.exists(directory) and place != self.place(directory)

    async def rename_under_way(self, object_id: ObjectId) -> bool:
        """Waits for the rename of `object_id` that is being published; False: there is none."""
        op = self.publishing(object_id, OpKind.RENAME)
        if op is not None:
            await self.writeback.decided(op)
        return op is not None

    def publishing(self, object_id: ObjectId, *kinds: OpKind) -> Op | None:
        """An op of `object_id` that may have happened on the shared tier, or may not have yet."""
        for op in self.backlog.ops_of_object(object_id):
            if op.kind in kinds and op.phase is Phase.PUBLISHING:
                return op
        return None

    def linking(self, obj: LocalObject) -> Op | None:
        """An op that may just be changing how many names the committed version of `obj` has."""
        ops = changing(obj, self.backlog.ops_of_object(obj.id))
        return next((op for op in ops if op.phase is Phase.PUBLISHING), None)

    # -- objects -------------------------------------------------------------------------------

    def add_object(self, kind: Kind, content: Content, id_: ObjectId | None = None) -> LocalObject:
        """A new object; its files, if it has any, are made by the caller."""
        obj = LocalObject(id_ or new_object_id(), kind, content)
        self.tree.objects[obj.id] = obj
        return obj

    def object_of(self, node: Node) -> LocalObject:
        """The object that ops on `node` name; a reference when it has none yet."""
        if node.object is None:
            obj = self.add_object(node.kind, Content.NONE, node.directory)
            self.tree.switch_object(node, obj)
            return obj
        return node.object

    async def dispose(self, obj: LocalObject) -> None:
        """Removes the files of an object that no name, handle or op needs."""
        try:
            await self.close_files(obj)
            if obj.content is not Content.NONE and not obj.clean:
                # first its rows: a kill in between must not leave an op without its object
                await self.journal.post().written()
                await self.local(self.store.remove, obj.id)
        finally:
            if (removed := self.doomed.pop(obj.id, None)) is not None:
                removed.set()

    async def close_files(self, obj: LocalObject) -> None:
        """Closes the descriptors of `obj`; one that is read-only some moments later."""
        read_fd, write_fd = obj.fd, obj.write_fd
        obj.fd = obj.write_fd = -1
        if read_fd >= 0:
            self.closing.add(read_fd)
        if write_fd >= 0:  # a lease is refused as long as it is open
            await self.local(self.os.close, "object.close", write_fd)

    def touch_clean(self, inode: int) -> None:
        """The clean copy of shared inode `inode` was used just now."""
        self.journal.post(TouchClean(inode, time.time_ns()))

    @contextmanager
    def holding(self, obj: LocalObject) -> Iterator[None]:
        """Keeps the files of `obj` over an await, whatever is committed meanwhile."""
        obj.pending += 1
        try:
            yield
        finally:
            obj.pending -= 1
            if not obj.pending:
                self.spare.append(obj)

    def unused(self, obj: LocalObject) -> bool:
        """Whether nothing needs `obj` any more; if so it is taken out of the tree."""
        if obj.pending or obj.users or self.tree.objects.get(obj.id) is not obj:
            return False
        node = self.tree.by_object.get(obj.id)
        if node is not None and node.object is obj:
            if node.shared is None and (node.lookups or node.handles):
                return False  # unlinked, and the kernel still asks for it
            self.tree.switch_object(node, None)
        self.tree.objects.pop(obj.id, None)
        if obj.kind is Kind.DIRECTORY and obj.content is not Content.NONE:
            self.doomed[obj.id] = trio.Event()
        return True

    @contextmanager
    def step(self, *, later: bool = False) -> Iterator[None]:
        """All that is posted inside, and that the present request is carried out, survives or not.

        For the one synchronous step in which a call that changes names does it. `later`: what
        must be written follows (`Journal.post`).
        """
        with self.journal.together(later=later):
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
    ) -> tuple[Op, Ticket]:
        """Issues an op: it is in the backlog and its row is posted; no await in between."""
        now = file_time_ns()
        self.writeback.pace.touch()
        scope = self.tree.scope(parent.id)
        op = Op(
            row=self.journal.next_row(), number=self.journal.next_number(), kind=kind,
            object=obj.id, parent=parent.id, name=name, timestamp_ns=now, state=state,
            changed_ns=0 if kind is OpKind.SETATTR else now, base_inode=base_inode,
            overwrites=overwrites, fields=fields, flags=flags, scope=scope,
            path=(*self.tree.path(parent.id), name), targets=targets,
        )  # fmt: skip
        if source is not None:
            op.parent2, op.name2 = source[0].id, source[1]
            op.scope2 = self.tree.scope(source[0].id)
            op.path2 = (*self.tree.path(source[0].id), source[1])
        if op.state is OpState.PENDING:
            op.first = op.number
        obj.pending += 1
        obj.links += LINKS.get(kind, 0)
        if kind is OpKind.PUT:
            obj.put = op
        changes = self._pin(op)
        changes.append(SaveObject(self._record(obj, base_inode)))
        changes.append(SaveOp(op))
        if kind is not OpKind.MKNOD:
            self.backlog.add(op)
        if op.changed_ns:
            for changed in (parent, source[0]) if source else (parent,):
                self.touch(changed, now)
        return op, self.journal.post(*changes)

    def touch(self, state: DirectoryState, now_ns: int) -> None:
        """A name in `state` changed at `now_ns`: that is its mtime."""
        state.changed_ns = now_ns
        state.settled = time.monotonic() + SETTLE_SECONDS
        self.touched.add(state.id)

    def changed_here(self, state: DirectoryState) -> None:
        """A name in `state` changed and no op says so: its mtime has to go there all the same."""
        self.writeback.changed(self.tree.scope(state.id), state.changed_ns)

    def _record(self, obj: LocalObject, base_inode: int | None) -> ObjectRecord:
        return ObjectRecord(obj.id, obj.kind, obj.content is Content.DATA, base_inode)

    def _pin(self, op: Op) -> list[Change]:
        return self._saved(self.tree.pin(op))

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
        before = self.tree.needed(op)
        number = self.journal.next_number()
        scope, path = self.tree.scope(parent.id), (*self.tree.path(parent.id), name)
        op.overwrites = overwrites
        if op.kind is OpKind.MKNOD:
            op.parent, op.name, op.scope, op.path, op.number = parent.id, name, scope, path, number
        else:
            self.backlog.retarget(op, parent.id, name, scope, path, number)
        op.changed_ns = file_time_ns()
        self.touch(parent, op.changed_ns)
        changes = [*self._pin(op), *self._unpin(before)]
        return self.journal.post(*changes, SaveOp(op))

    def close_op(self, op: Op) -> list[Change]:
        """`op` is committed or dropped: what the journal has to forget. Synchronous."""
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
        """Whether `op` may be taken back: not begun, and nothing issued later waits for it."""
        if op.kind is OpKind.MKNOD:
            return True
        return op.phase is Phase.QUEUED and not self.backlog.depended(op)

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

    def check_new_name(self, state: DirectoryState, name: Name) -> None:
        """Refuses a name that cannot be made in `state`: it is gone, or the name is reserved."""
        if state.removed:
            raise FileNotFoundError(errno.ENOENT, "the directory was removed", os.fsdecode(name))
        if is_hidden(b"/".join(self.tree.path(state.id)), name):
            raise OSError(errno.EPERM, "the name is reserved for tierfs", os.fsdecode(name))

    def pending_directory(self, directory: ObjectId, parent: ObjectId, name: Name) -> None:
        """Notes a directory that its MKDIR will make on the shared tier."""
        self.places.add(DirectoryRecord(directory, parent, name))

    def directory_record(self, directory: ObjectId, location: Location, *, tagged: bool) -> None:
        """Notes where a directory was seen on the shared tier."""
        known = self.places.record(directory)
        if known is not None and known.inode == location.inode:
            if (known.parent, known.name) != (location.directory, location.name):
                known.parent, known.name = location.directory, location.name
                if self.tree.directories[directory].pins:
                    self.journal.post(SaveDirectory(known))
            return
        record = DirectoryRecord(
            directory, location.directory, location.name, location.inode, tagged
        )
        self.places.add(record)
