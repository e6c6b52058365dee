"""open to RELEASE: when a file's op is issued.

A write-open has an op from the start (state `open`). A FLUSH numbers it (`closed`), the RELEASE of
the last writer lets it go (`pending`), see `ending` and docs/CONCURRENCY.md.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterable

import trio

from tierfs.capacity import Written
from tierfs.journal import SaveOp
from tierfs.model import (
    Attributes,
    Kind,
    Mark,
    Name,
    ObjectId,
    Phase,
)
from tierfs.namespace.callers import Caller
from tierfs.namespace.content.closers import Closer, closer
from tierfs.namespace.content.data import Data
from tierfs.namespace.content.descriptors import Descriptors
from tierfs.namespace.content.ending import Ending
from tierfs.namespace.content.opening import Opening, written
from tierfs.namespace.core import Core
from tierfs.namespace.finding.inheritance import Birth, Inheritance, make_newborn
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.grouping.published import until_published
from tierfs.namespace.overlay.nodes import (
    Content,
    DirectoryState,
    Entry,
    Handle,
    LocalObject,
    Node,
)
from tierfs.namespace.requests import current
from tierfs.namespace.room.drive import Drive
from tierfs.osio.processes import most_open_files

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class Files:
    """Open files.

    Attributes:
        ending: what becomes of a file that was written.
        commit: returns when what was written through a handle is committed (policies).
    """

    def __init__(
        self, core: Core, lookup: Lookup, data: Data, opening: Opening, inheritance: Inheritance,
        drive: Drive, on_unsettled: Callable[[Node, LocalObject], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._lookup = lookup
        self._data = data
        self._opening = opening
        self._drive = drive
        self.ending = Ending(core, lookup, data, drive, on_unsettled)
        self._inheritance = inheritance
        self._numbers = itertools.count(1)
        self.handles: dict[int, Handle] = {}
        self._descriptors = Descriptors(most_open_files())
        self.commit: Callable[[Handle], Awaitable[None]]
        self._answers: dict[int, Handle] = {}

    def handle(self, number: int) -> Handle:
        """The open file `number`; OSError(EBADF)."""
        try:
            return self.handles[number]
        except KeyError:
            raise OSError(errno.EBADF, "no such open file", str(number)) from None

    def written_of(self, numbers: Iterable[int]) -> dict[int, Written]:
        """How the open files of those nodes of `numbers` are now that have one."""
        found = {}
        for number in numbers:
            node = self._core.tree.nodes.get(number)
            if node is not None and node.object is not None:
                found[number] = written(self._core, node.object)
        return found

    # -- open ----------------------------------------------------------------------------------

    async def open(
        self, node: Node, flags: int, caller: Caller, *, internal: bool = False
    ) -> Handle:
        """Opens `node`; a write-open brings its content to the local tier first.

        `internal`: for a call of our own; the kernel does not get it. OSError(ESTALE): look the
        name up again (KERNEL_PATH.md, "pyfuse3 facts").
        """
        if node.kind is Kind.DIRECTORY:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not internal:
            self._descriptors.check(self.handles.values())
        if self._core.written_over:
            await until_published(self._core, *(directory for directory, _ in node.names))
        writable = bool(flags & (WRITE_FLAGS | os.O_TRUNC))
        if writable:
            await self.ending.let_settle(node)
        handle = Handle(next(self._numbers), node, writable, opener=caller.process)
        try:
            async with node.lock:
                if writable:
                    for directory, _ in self._core.tree.known_names(node):
                        self._core.groups.enter(directory, caller.process)
                    await self._opening.for_writing(node, truncate=bool(flags & os.O_TRUNC))
                    await self._data.attach(handle)
                    await self._leave_as_it_is(handle)
                else:
                    await self._opening.for_reading(handle)
                self._add(handle)
                if not internal:
                    await self._opening.grant(handle)
        except OSError:
            if handle.number in self.handles:
                await self.release(handle)
            raise
        return handle

    async def _leave_as_it_is(self, handle: Handle) -> None:
        """What its first writer opens is known to the next worker as it is: not written to."""
        obj = handle.object
        if obj is None or obj.dirty or obj.settling or obj.writers > 1 or obj.left is not None:
            return
        if self._core.memory.remembers:
            found = await self._data.look(obj)
            obj.left = found.size, found.mtime_ns

    def restore(self, handles: Iterable[tuple[Handle, int]], highest: int) -> None:
        """The files that were open in an earlier worker; `highest` number was given out.

        A write-open whose op was not journaled in time gets it now. Synchronous.
        """
        self._numbers = itertools.count(highest + 1)
        for handle, unique in handles:
            self.handles[handle.number] = handle
            self._core.memory.opened(handle, unique)
            self._answers[unique] = handle
            if handle.writable:
                self._opening.put_again(handle.node)
            self._opening.promise_again(handle)

    def _add(self, handle: Handle) -> None:
        self.handles[handle.number] = handle
        handle.node.attach(handle)
        if handle.writable:
            self._core.writeback.pace.opened(handle.number)

    # -- create --------------------------------------------------------------------------------

    async def create(
        self, state: DirectoryState, name: Name, mode: int, caller: Caller, *,
        internal: bool = False,
    ) -> Handle:  # fmt: skip
        """Makes a file and opens it for writing; OSError(EEXIST) when the name is taken.

        The node comes with one lookup more: the kernel's.
        """
        core = self._core
        core.check_new_name(state, name)
        if not internal:
            self._descriptors.check(self.handles.values())
        birth = await self._inheritance.of(state, Kind.FILE, mode, caller)
        obj = core.add_object(Kind.FILE, Content.DATA)
        core.lay(obj, state, name)
        born = await core.make(obj.id, self._make, obj, birth, state.id, name)
        obj.xattrs = birth.xattr_names
        await core.check_still_free(state, name, obj)
        entry = state.entries.get(name)
        shared_inode = entry.shared_inode if entry is not None else None
        if not internal:
            core.memory.begun(obj.id)
        with core.step(later=True):
            core.groups.enter(state.id, caller.process)
            op = core.begin_file(obj, state, name, shared_inode)
        state.put(name, Entry(obj, op, shared_inode))
        node = core.tree.node_of_object(obj)
        node.names.add((state.id, name))
        return await self._born(node, obj, born, caller, internal=internal)

    async def create_nameless(
        self, state: DirectoryState, mode: int, caller: Caller, *, internal: bool = False
    ) -> Handle:
        """O_TMPFILE: makes a file in `state` without a name, and opens it for writing.

        Nothing of it is journaled or sent before `Names.link` gives it one. The node comes with
        one lookup more: the kernel's.
        """
        core = self._core
        core.check_new_name(state, b"")
        if not internal:
            self._descriptors.check(self.handles.values())
        birth = await self._inheritance.of(state, Kind.FILE, mode, caller)
        obj = core.add_object(Kind.FILE, Content.DATA)
        born = await core.make(obj.id, self._make, obj, birth, ObjectId(0), b"")
        obj.xattrs = birth.xattr_names
        node = core.tree.node_of_object(obj)
        node.unlinked = True
        born = dataclasses.replace(born, nlink=0)
        return await self._born(node, obj, born, caller, internal=internal)

    async def _born(
        self, node: Node, obj: LocalObject, born: Attributes, caller: Caller, *, internal: bool
    ) -> Handle:
        """The open file of who made it."""
        node.lookups += 1
        handle = Handle(next(self._numbers), node, True, obj, opener=caller.process, born=born)
        obj.users = obj.writers = 1
        obj.dirty = True
        self._add(handle)
        if not internal:
            await self._opening.grant(handle)
        return handle

    async def create_again(self, state: DirectoryState, name: Name, caller: Caller) -> Handle:
        """Answers a create that an earlier worker has carried out and not answered."""
        request = current()
        handle = self.answer(request.unique) if request is not None else None
        if handle is not None:
            return handle
        node = await self._lookup.resolve(state, name)
        node.lookups += 1
        handle = await self.open(node, os.O_RDWR, caller)
        if (obj := handle.object) is not None:  # made by this open, and whole when it is closed
            obj.dirty, obj.left = True, None
            handle.born = await self._data.look(obj)
        return handle

    def answer(self, unique: int) -> Handle | None:
        """The open file with which an earlier worker answered request `unique`, perhaps in vain."""
        handle = self._answers.get(unique)
        return handle if handle is not None and handle.number in self.handles else None

    def _make(self, obj: LocalObject, birth: Birth, parent: ObjectId, name: Name) -> Attributes:
        """Makes the object of a new file with the descriptor that it needs. Blocking."""
        os_ = self._core.os
        fd = make_newborn(self._core.store, obj, birth, parent, name)
        if not self._core.direct.enabled:
            obj.write_fd = fd
            return self._core.store.attributes_of(fd)
        try:
            obj.fd = os_.reopen("create.reopen", fd, os.O_RDONLY)
            return self._core.store.attributes_of(fd)
        finally:
            os_.close("create.close", fd)

    # -- changes of an open file -----------------------------------------------------------------

    async def truncate(self, node: Node, size: int, handle: Handle | None, caller: Caller) -> None:
        """Sets the size; without a handle this is open, truncate, close."""
        opened = handle is None or not handle.writable
        if opened:
            flags = os.O_RDWR | (os.O_TRUNC if size == 0 else 0)
            handle = await self.open(node, flags, caller, internal=True)
            handle.flushed = True  # it is over as a whole, however the caller ends meanwhile
        assert handle is not None
        assert handle.object is not None
        try:
            await self._opening.truncate_object(handle.object, size)
        finally:
            if opened:
                await self.flush(handle)
                await self.release(handle)

    # -- close ---------------------------------------------------------------------------------

    async def flush(self, handle: Handle, thread: int = 0) -> None:
        """`thread` closed a descriptor: what was written survives the process from here on (G6).

        OSError where its policy has close wait for the commit, and that is refused.
        """
        await self._flush(handle, thread)
        through = self._core.policy(handle.node).close_committed or self._drive.look()
        if handle.writable and through:
            await self.commit(handle)

    async def _flush(self, handle: Handle, thread: int) -> None:
        obj = handle.object
        if not handle.writable or obj is None:
            return
        # Who was killed has closed nothing, however often the kernel asks: for each of his
        # descriptors, and of the next worker again what this one does not live to answer.
        who = Closer.OPENER if handle.flushed else closer(handle.opener, thread)
        handle.flushed = who is Closer.OPENER
        self._core.writeback.pace.closed(handle.number)
        self._core.memory.handle(handle)
        if obj.put is not None:
            self._drive.check(obj)
        attributes = await self.look(obj)
        if (path := self._core.tree.path_of(handle.node)) is not None:
            self._core.expected.note(path, attributes.size)
        op = obj.put
        if op is None or op.phase is Phase.PUBLISHING or not obj.dirty:
            return
        if who is Closer.DEAD_SHARER:
            return
        if who is Closer.KILLED and not op.log:
            op.mark = Mark.TORN
            op.error = "its writer was killed in the middle; rewrite it, or accept or discard it"
        elif who is Closer.OPENER and op.mark is Mark.TORN:
            op.mark = op.error = None
        obj.dirty = who is Closer.SHARER  # what its opener leaves is still to be judged
        obj.flushed_at = time.monotonic()
        self.ending.number(op, attributes, handle.opener)
        if who is not Closer.SHARER:
            over = handle.born is None
            self._core.groups.closed(op.parent, op.name, handle.opener, over=over)
        await self._core.journal.post(SaveOp(op)).written()
        if not obj.dirty:
            self._left(handle, obj, attributes)
        obj.made = None
        self._core.writeback.submit(op)

    def _left(self, handle: Handle, obj: LocalObject, now: Attributes) -> None:
        """What was closed, and journaled, is so for whoever else has it open for writing.

        Of the opener who closed it himself nothing becomes torn.
        """
        obj.left = now.size, now.mtime_ns
        for other in handle.node.handles - {handle}:
            self._core.memory.handle(other)

    async def look(self, obj: LocalObject) -> Attributes:
        """What `obj` is now; then it is known, too, whether the kernel wrote to it by itself."""
        attributes = await self._data.look(obj)
        self._data.judge(obj, attributes)
        return attributes

    def leave(self, number: int) -> None:
        """The RELEASE of open file `number` has come: what is opened from now on is later."""
        handle = self.handles.get(number)
        if handle is not None and handle.writable:
            handle.leaving = trio.Event()

    async def release(self, handle: Handle) -> None:
        """The last descriptor of an open file is gone."""
        try:
            await self._release(handle)
        finally:
            if handle.leaving is not None:
                handle.leaving.set()

    async def _release(self, handle: Handle) -> None:
        core, node = self._core, handle.node
        self.handles.pop(handle.number, None)
        handle.closed = True
        if handle.writable:
            core.writeback.pace.closed(handle.number)
        core.close_shared_file(handle)
        async with node.lock:
            obj = handle.object
            node.detach(handle)
            self._opening.let_go(handle)
            if obj is not None:
                if handle.writable:
                    obj.writers -= 1
                    if obj.writers == 0:
                        await self.ending.writers_left(node, obj)
                await self._data.release(obj)
                await core.dispose_unused(obj)
        await core.discard_unused(node)

    async def fsync(self, handle: Handle) -> None:
        """Content, attributes and all journal rows so far are on the local drive (G6)."""
        obj = handle.object
        if obj is not None and handle.writable:
            try:
                await self._core.of_object(obj.id, self._core.store.sync, obj.id)
            except OSError:
                if obj.put is not None and obj.put.phase is not Phase.PUBLISHING:
                    obj.put.mark = Mark.SUSPECT
                    obj.put.error = "fsync of the local copy failed"
                    self._core.backlog.update(obj.put)
                    self._core.journal.post(SaveOp(obj.put))
                raise
        await self._core.journal.sync()
        through = self._core.policy(handle.node).fsync_committed or self._drive.look()
        if handle.writable and through:
            await self.commit(handle)
