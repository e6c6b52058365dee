"""open to RELEASE: when a file's op is issued, numbered and handed to the write-back.

A write-open has an op from the start (state `open`). A FLUSH numbers it (`closed`), the RELEASE of
the last writer lets it go (`pending`). See docs/CONCURRENCY.md.
"""

from __future__ import annotations

import errno
import itertools
import os

from tierfs.journal import SaveClean, SaveOp
from tierfs.model import (
    Attributes,
    CleanRecord,
    Kind,
    Mark,
    Name,
    ObjectId,
    Op,
    OpKind,
    OpState,
    Phase,
    Signature,
)
from tierfs.namespace.callers import Caller
from tierfs.namespace.core import Core
from tierfs.namespace.data import Data
from tierfs.namespace.inheritance import Inheritance, make_newborn
from tierfs.namespace.lookup import Lookup
from tierfs.namespace.nodes import (
    UNKNOWN_INODE,
    Content,
    DirectoryState,
    Entry,
    Handle,
    LocalObject,
    Node,
)
from tierfs.namespace.pointers import targets_of
from tierfs.osio.processes import was_killed

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class Files:
    """Open files."""

    def __init__(self, core: Core, lookup: Lookup, data: Data, inheritance: Inheritance) -> None:
        self._core = core
        self._lookup = lookup
        self._data = data
        self._inheritance = inheritance
        self._numbers = itertools.count(1)
        self.handles: dict[int, Handle] = {}

    def handle(self, number: int) -> Handle:
        """The open file `number`; OSError(EBADF)."""
        try:
            return self.handles[number]
        except KeyError:
            raise OSError(errno.EBADF, "no such open file", str(number)) from None

    # -- open ----------------------------------------------------------------------------------

    async def open(self, node: Node, flags: int, caller: Caller) -> Handle:
        """Opens `node`; a write-open brings its content to the local tier first."""
        if node.kind is Kind.DIRECTORY:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        writable = bool(flags & WRITE_FLAGS)
        handle = Handle(next(self._numbers), node, writable, opener=caller.process)
        async with node.lock:
            if writable or flags & os.O_TRUNC:
                await self._prepare_write(node, truncate=bool(flags & os.O_TRUNC))
                await self._data.attach(handle)
            else:
                await self._open_for_reading(handle)
            self._add(handle)
        return handle

    def _add(self, handle: Handle) -> None:
        self.handles[handle.number] = handle
        handle.node.handles.add(handle)

    async def _open_for_reading(self, handle: Handle) -> None:
        node, core = handle.node, self._core
        if node.object is not None and node.object.content is Content.DATA:
            await self._data.attach(handle)
            return
        fd, st = await self._lookup.open_committed(node)
        signature = Signature.of(st)
        handle.shared_fd = fd
        if node.object is None and await self._use_clean_copy(handle, signature, st.st_nlink):
            handle.shared_fd = -1
            await core.on_shared(core.os.close, "open.close", fd)
        handle.keep_cache = node.seen == signature
        node.seen = signature

    async def _use_clean_copy(self, handle: Handle, signature: Signature, links: int) -> bool:
        """Reads go to the local copy while it is of the same state as the shared file (G10)."""
        core, node = self._core, handle.node
        clean = await core.journal.clean_copy(signature.inode)
        if clean is None or clean.signature != signature or node.object is not None:
            return False
        obj = core.tree.objects.get(clean.object)
        if obj is None:
            obj = core.add_object(node.kind, Content.DATA, clean.object)
            obj.origin, obj.clean = signature, True
        obj.committed_links = links
        handle.object = obj
        try:
            await self._data.acquire(obj)
        except OSError:
            handle.object = None
            core.unused(obj)
            return False
        core.touch_clean(signature.inode)
        return True

    async def _prepare_write(self, node: Node, *, truncate: bool) -> None:
        """Afterwards the node has a data object with an op that will send it."""
        obj = node.object
        if obj is None or obj.content is not Content.DATA:
            fresh = await self._data.new_version(node, keep=not truncate)
            await self._install(node, fresh, truncated=truncate)
            return
        op = obj.put
        if obj.writers or (op is not None and op.is_open):
            if truncate:
                await self._truncate_object(obj, 0)
            return
        if truncate or op is None:
            # never in place: a clean copy, and what was closed before, stay as they are
            fresh = await self._data.new_version(node, keep=not truncate)
            await self._install(node, fresh, truncate)
            return
        clone = await self._data.reflink(node)
        if clone is not None:
            await self._install(node, clone, False)
        elif op.phase is Phase.PUBLISHING:
            await self._core.writeback.committed(op)
            await self._prepare_write(node, truncate=truncate)
        elif obj.put is op:
            self._reopen(obj, op)

    async def _install(self, node: Node, fresh: LocalObject, truncated: bool) -> None:
        old = await self._data.switch(node, fresh)
        fresh.dirty = truncated
        if old is not None:
            fresh.supersedes = old.put
        self._issue_put(node, fresh)
        if old is not None and self._core.unused(old):
            await self._core.dispose(old)

    def _issue_put(self, node: Node, obj: LocalObject) -> None:
        name = node.a_name()
        if name is None:
            return  # nobody can ever find it again: nothing to send
        state = self._core.tree.directories[name[0]]
        entry = state.entries.get(name[1])
        shared_inode = node.shared.inode if node.shared else None
        if entry is not None:
            shared_inode = entry.shared_inode
        op, _ = self._core.issue(
            OpKind.PUT, obj, state, name[1], state=OpState.OPEN, base_inode=shared_inode,
            overwrites=shared_inode is not None or entry is not None,
        )  # fmt: skip
        op.changed_ns = 0  # the name was there before: its directory does not change
        state.put(name[1], Entry(obj, op, shared_inode))
        for other in node.names - {name}:
            self._link_again(obj, name, other)

    def _link_again(
        self, obj: LocalObject, source: tuple[ObjectId, Name], other: tuple[ObjectId, Name]
    ) -> None:
        """A new version is a new inode on the shared tier: its other names have to follow it."""
        core = self._core
        state = core.tree.directories[other[0]]
        entry = state.entries.get(other[1])
        op, _ = core.issue(
            OpKind.LINK,
            obj,
            state,
            other[1],
            source=(core.tree.directories[source[0]], source[1]),
            overwrites=True,
        )
        op.changed_ns = 0
        state.put(other[1], Entry(obj, op, entry.shared_inode if entry else UNKNOWN_INODE))
        core.writeback.submit(op)

    def _reopen(self, obj: LocalObject, op: Op) -> None:
        """Without reflink what was closed is superseded: its op waits for the next close."""
        obj.dirty = True
        op.state, op.first, op.mark, op.durable = OpState.OPEN, 0, None, False
        op.fields = tuple(field for field in op.fields if field != "mode")
        op.data_version += 1
        self._core.backlog.update(op)
        self._core.journal.post(SaveOp(op))

    # -- create --------------------------------------------------------------------------------

    async def create(
        self, state: DirectoryState, name: Name, mode: int, flags: int, caller: Caller
    ) -> Handle:
        """Makes a file and opens it for writing; OSError(EEXIST) when the name is taken.

        The node comes with one lookup more: the kernel's.
        """
        core = self._core
        core.check_new_name(state, name)
        birth = await self._inheritance.of(state, Kind.FILE, mode, caller)
        obj = core.add_object(Kind.FILE, Content.DATA)
        obj.fd = await core.local(make_newborn, core.store, obj, birth, state.id, name)
        obj.xattrs = birth.xattr_names
        entry = state.entries.get(name)
        if state.removed or (entry is not None and entry.object is not None):
            core.unused(obj)
            await core.dispose(obj)
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        shared_inode = entry.shared_inode if entry is not None else None
        op, _ = core.issue(
            OpKind.PUT, obj, state, name, state=OpState.OPEN,
            base_inode=shared_inode, overwrites=False,
        )  # fmt: skip
        state.put(name, Entry(obj, op, shared_inode))
        node = core.tree.node_of_object(obj)
        node.names.add((state.id, name))
        node.lookups += 1
        handle = Handle(next(self._numbers), node, True, obj, opener=caller.process)
        obj.users = obj.writers = 1
        obj.dirty = True
        self._add(handle)
        return handle

    # -- changes of an open file -----------------------------------------------------------------

    async def truncate(self, node: Node, size: int, handle: Handle | None, caller: Caller) -> None:
        """Sets the size; without a handle this is open, truncate, close."""
        opened = handle is None or not handle.writable
        if opened:
            flags = os.O_RDWR | (os.O_TRUNC if size == 0 else 0)
            handle = await self.open(node, flags, caller)
        assert handle is not None
        assert handle.object is not None
        try:
            await self._truncate_object(handle.object, size)
        finally:
            if opened:
                await self.flush(handle)
                await self.release(handle)

    async def _truncate_object(self, obj: LocalObject, size: int) -> None:
        self._data.touched(obj)
        await self._core.local(lambda: self._core.store.set_attributes(obj.id, size=size))
        self._data.touched(obj)

    # -- close ---------------------------------------------------------------------------------

    async def flush(self, handle: Handle) -> None:
        """One descriptor was closed: what was written survives the process from here on (G6)."""
        obj = handle.object
        if not handle.writable or obj is None:
            return
        first = not handle.flushed
        handle.flushed = True
        killed = first and handle.opener and await self._core.local(was_killed, handle.opener)
        attributes = await self._core.local(self._core.store.attributes, obj.id)
        op = obj.put
        if op is None or op.phase is Phase.PUBLISHING:
            return
        if killed and obj.dirty:
            op.mark = Mark.TORN
            op.error = "its writer was killed in the middle; rewrite it, or accept or discard it"
        elif obj.dirty and op.mark is Mark.TORN:
            op.mark = op.error = None
        if obj.dirty:
            obj.dirty = False
            self._number(op, attributes)
            await self._core.journal.post(SaveOp(op)).written()
            self._core.writeback.submit(op)

    def _number(self, op: Op, attributes: Attributes) -> None:
        """Gives a flushed file its place in the order (DESIGN 5: that of its last FLUSH)."""
        op.size, op.durable = attributes.size, False
        if op.state is OpState.OPEN:
            op.state = OpState.CLOSED
        self._core.backlog.renumber(op, self._core.journal.next_number())

    async def release(self, handle: Handle) -> None:
        """The last descriptor of an open file is gone."""
        core, node = self._core, handle.node
        self.handles.pop(handle.number, None)
        if handle.shared_fd >= 0:
            fd, handle.shared_fd = handle.shared_fd, -1
            await core.on_shared(core.os.close, "release.close", fd)
        async with node.lock:
            obj = handle.object
            node.handles.discard(handle)
            if obj is not None:
                if handle.writable:
                    obj.writers -= 1
                    if obj.writers == 0:
                        await self._written(node, obj)
                await self._data.release(obj)
                if core.unused(obj):
                    await core.dispose(obj)
        unused = core.tree.discard_if_unused(node)
        if unused is not None:
            await core.dispose(unused)

    async def _written(self, node: Node, obj: LocalObject) -> None:
        """No writer is left: the op may go, or is dropped when nothing was changed."""
        core, op = self._core, obj.put
        if op is None:
            return
        if obj.dirty:
            attributes = await core.local(core.store.attributes, obj.id)
            if obj.writers or obj.put is not op:
                return
            obj.dirty = False
            self._number(op, attributes)
        if op.state is OpState.OPEN:
            await self._unchanged(node, obj, op)
            return
        op.targets = await targets_of(core, self._lookup, core.tree.directories[op.parent], op, obj)
        if obj.writers or obj.put is not op:
            return
        if op.state is OpState.CLOSED:
            op.state = OpState.PENDING
            core.backlog.update(op)
            core.journal.post(SaveOp(op))
            core.writeback.submit(op)
            self._drop_superseded(obj, op)

    def _drop_superseded(self, obj: LocalObject, op: Op) -> None:
        """An older state may be skipped while nothing but this newer one waits for it."""
        old, obj.supersedes = obj.supersedes, None
        core = self._core
        if old is None or old.phase is not Phase.QUEUED or old not in core.backlog:
            return
        if not core.backlog.depended(old, besides=op):
            core.drop_op(old)

    async def _unchanged(self, node: Node, obj: LocalObject, op: Op) -> None:
        """Opened for writing and closed without a change: nothing to send, the copy is clean."""
        core = self._core
        if not self._is_committed_as_it_is(obj, op):
            self._number(op, await core.local(core.store.attributes, obj.id))
            if obj.writers or obj.put is not op:
                return
            op.state = OpState.PENDING
            core.backlog.update(op)
            core.journal.post(SaveOp(op))
            core.writeback.submit(op)
            return
        assert obj.origin is not None
        clean = CleanRecord(obj.origin, obj.id, None, obj.origin.size, op.timestamp_ns)
        obj.clean = True
        core.tree.directories[op.parent].drop(op.name)
        core.drop_op(op)
        core.journal.post(SaveClean(clean))

    def _is_committed_as_it_is(self, obj: LocalObject, op: Op) -> bool:
        """Whether the shared tier has under the name of `op` what `obj` was copied from.

        It has not while anything is pending on the name (a rename, a SETATTR, content closed
        before), nor when the file was renamed while it was open.
        """
        entry = self._core.tree.entry(op.parent, op.name)
        if entry is None or entry.op is not op or obj.origin is None:
            return False
        alone = self._core.backlog.alone(op) and not self._core.backlog.depended(op)
        return alone and entry.shared_inode == obj.origin.inode

    async def fsync(self, handle: Handle) -> None:
        """Content, attributes and all journal rows so far are on the local drive (G6)."""
        obj = handle.object
        if obj is not None and handle.writable:
            try:
                await self._core.local(self._core.store.sync, obj.id)
            except OSError:
                if obj.put is not None and obj.put.phase is not Phase.PUBLISHING:
                    obj.put.mark = Mark.SUSPECT
                    obj.put.error = "fsync of the local copy failed"
                    self._core.backlog.update(obj.put)
                    self._core.journal.post(SaveOp(obj.put))
                raise
        await self._core.journal.sync()

    # -- decisions of an operator ------------------------------------------------------------------

    def accept(self, op: Op) -> None:
        """A torn, suspect or stuck file is to be committed as it is."""
        op.mark = op.error = None
        op.attempts = 0
        if op.state is OpState.OPEN:
            op.state = OpState.PENDING
        self._core.backlog.update(op)
        self._core.journal.post(SaveOp(op))
        self._core.writeback.submit(op)

    async def discard(self, op: Op) -> None:
        """The pending content is forgotten; the name shows what the shared tier has, if anything.

        OSError(EBUSY) while it is open or its place in the order is already needed by others.
        """
        core = self._core
        obj = core.tree.objects[op.object]
        state = core.tree.directories[op.parent]
        if obj.users:
            raise OSError(errno.EBUSY, "the file is open", os.fsdecode(op.name))
        node = core.tree.by_object.get(obj.id)
        core.drop_op(op)
        if node is not None:
            node.names.discard((op.parent, op.name))
            node.unlinked = not node.names
        entry = state.entries.get(op.name)
        if entry is not None and entry.op is op:
            if entry.shared_inode is None:
                state.forget(op.name)
            else:
                state.drop(op.name)
        if core.unused(obj):
            await core.dispose(obj)
