"""Making names, and giving a file one more: decided in one synchronous step, then journaled."""

from __future__ import annotations

import errno
import logging
import os

import trio

from tierfs.journal import SaveOp
from tierfs.model import SPECIAL, STAGED, Kind, Name, ObjectId, Op, OpKind, OpState
from tierfs.namespace.callers import Caller
from tierfs.namespace.clock import file_time_ns
from tierfs.namespace.content.files import Files
from tierfs.namespace.core import Core
from tierfs.namespace.finding.inheritance import Birth, Inheritance, make_newborn
from tierfs.namespace.finding.lookup import Lookup, missing
from tierfs.namespace.finding.pointers import cover_of_link, targets_as
from tierfs.namespace.overlay.nodes import Content, DirectoryState, Entry, LocalObject, Node
from tierfs.shared import staging_name

log = logging.getLogger(__name__)


class Making:
    """The part of `Names` that makes some."""

    def __init__(self, core: Core, lookup: Lookup, files: Files, inheritance: Inheritance) -> None:
        self._core = core
        self._tree = core.tree
        self._lookup = lookup
        self._files = files
        self._inheritance = inheritance

    async def mkdir(self, state: DirectoryState, name: Name, mode: int, caller: Caller) -> Node:
        """Makes a directory; waits a little for the shared tier so that other nodes see it."""
        core = self._core
        staged = core.groups.is_group(state, name)
        if staged and (left := await self._left_over(state, name)) is not None:
            left.lookups += 1
            assert left.directory is not None
            core.groups.enter(left.directory, caller.process, wrote=False)
            return left
        birth = await self._inheritance.of(state, Kind.DIRECTORY, mode, caller)
        obj = await self._make(state, name, Kind.DIRECTORY, birth)
        self._tree.add_directory(obj.id, state.id, name)
        core.pending_directory(obj.id, state.id, staging_name(name) if staged else name)
        if staged:
            core.groups.begin(state, name, obj.id, caller.process)
        else:
            core.groups.enter(state.id, caller.process)
        op = await self._announce(
            OpKind.MKDIR, obj, state, name, fields=(STAGED,) if staged else ()
        )
        with trio.move_on_after(0.0 if core.calls.changes.now else core.settings.mkdir_wait):
            await core.writeback.committed(op)
        return self._tree.by_object[obj.id]

    async def _left_over(self, state: DirectoryState, name: Name) -> Node | None:
        """The unsealed checkpoint `name` that nobody writes in any more: it is begun anew.

        OSError(EEXIST) if something else has the name.
        """
        node = await self._lookup.find(state, name)
        if node is None:
            return None
        if not self._core.groups.is_unlisted(node.directory):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        return node

    async def symlink(
        self, state: DirectoryState, name: Name, target: Name, caller: Caller
    ) -> Node:
        """Makes a symbolic link; it is published after all that its target leads to (G3)."""
        birth = await self._inheritance.of(state, Kind.SYMLINK, 0o777, caller)
        reach = await cover_of_link(self._core, self._lookup, state, target)
        obj = await self._make(state, name, Kind.SYMLINK, birth, target)
        await self._announce(OpKind.SYMLINK, obj, state, name, reach)
        return self._tree.by_object[obj.id]

    async def mknod(
        self, state: DirectoryState, name: Name, mode: int, rdev: int, caller: Caller
    ) -> Node:
        """Makes a file without opening it; fifos, sockets and devices stay on this node."""
        kind = Kind.of_mode(mode)
        if kind in SPECIAL:
            birth = await self._inheritance.of(state, kind, mode & 0o7777, caller)
            obj = await self._make(state, name, kind, birth, rdev=rdev)
            await self._announce(OpKind.MKNOD, obj, state, name)
            return self._tree.by_object[obj.id]
        if kind is not Kind.FILE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(name))
        handle = await self._files.create(state, name, mode & 0o7777, caller, internal=True)
        await self._files.flush(handle)
        await self._files.release(handle)
        return handle.node

    async def _make(
        self, state: DirectoryState, name: Name, kind: Kind, birth: Birth, target: bytes = b"",
        rdev: int = 0,
    ) -> LocalObject:  # fmt: skip
        core = self._core
        core.check_new_name(state, name, target)
        obj = core.add_object(kind, Content.DATA)
        await core.make(obj.id, make_newborn, core.store, obj, birth, state.id, name, target, rdev)
        obj.xattrs = birth.xattr_names
        await core.check_still_free(state, name, obj)
        return obj

    async def _announce(
        self, kind: OpKind, obj: LocalObject, state: DirectoryState, name: Name,
        targets: tuple[ObjectId, ...] = (), fields: tuple[str, ...] = (),
    ) -> Op:  # fmt: skip
        entry = state.entries.get(name)
        with self._core.step():
            op, ticket = self._core.issue(kind, obj, state, name, targets=targets, fields=fields)
        state.put(name, Entry(obj, op, entry.shared_inode if entry else None))
        node = self._tree.node_of_object(obj)
        node.names.add((state.id, name))
        node.lookups += 1
        await ticket.written()
        self._core.writeback.submit(op)
        if kind is OpKind.MKNOD:
            self._core.changed_here(state)
        return op

    async def link(self, node: Node, state: DirectoryState, name: Name) -> None:
        """Gives a file one more name, or its first one."""
        self._core.check_new_name(state, name)
        if node.a_name() is None or is_half_named(node, state, name):
            await self._give_first_name(node, state, name)
            return
        await self._core.made(node)
        node.last = await self._lookup.attributes(node)
        targets = await targets_as(self._core, self._lookup, state, name, node)
        if await self._lookup.find(state, name) is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        node.names.discard((state.id, name))  # it was remembered, and never journaled
        source = self._tree.a_name(node)
        if source is None or state.removed:
            raise missing(name)
        core = self._core
        obj = core.object_of(node)
        entry = state.entries.get(name)
        with core.step():
            if node.stays:
                op, ticket = core.issue(OpKind.MKNOD, obj, state, name)
            else:
                op, ticket = core.issue(
                    OpKind.LINK, obj, state, name,
                    source=(self._tree.directories[source[0]], source[1]),
                    base_inode=node.shared.inode if node.shared else None, targets=targets,
                )  # fmt: skip
        state.put(name, Entry(obj, op, entry.shared_inode if entry else None))
        node.names.add((state.id, name))
        node.lookups += 1
        node.linked_ns = file_time_ns()
        obj.changed()
        await ticket.written()
        core.writeback.submit(op)
        if node.stays:
            core.changed_here(state)

    async def _give_first_name(self, node: Node, state: DirectoryState, name: Name) -> None:
        """Names a file that was made without (O_TMPFILE): it counts as closed, as it is now.

        The kernel asks for no other one that has no name.
        """
        core, obj, ending = self._core, node.object, self._files.ending
        if obj is None or not (is_nameless(node) or node.names):
            raise missing(name)
        async with node.lock:
            before = await self._lookup.find(state, name)
            if before not in (None, node):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
            await self._relabel(obj, state, name)
            version, attributes = -1, None
            while attributes is None or obj.version != version:
                version, attributes = obj.version, await self._files.look(obj)
            if state.removed or not (is_nameless(node) or before is node):
                raise missing(name)
            opener = next((each.opener for each in node.handles if each.writable), 0)
            with core.step():
                if before is None:
                    self._name_first(node, obj, state, name, opener)
                if obj.put is not None:
                    obj.put.fields = tuple(dict.fromkeys((*obj.put.fields, "mode")))
                    obj.dirty = False
                    ending.number(obj.put, attributes, opener)
                    core.groups.closed(state.id, name, opener, over=False)
                    core.journal.post(SaveOp(obj.put))
            node.lookups += 1
            await core.journal.written()
            obj.made = None
            if obj.put is not None:
                core.writeback.submit(obj.put)
            if not obj.writers and not obj.settling:
                await ending.written(node, obj)
        if obj.scratch:
            core.changed_here(state)

    async def _relabel(self, obj: LocalObject, state: DirectoryState, name: Name) -> None:
        """Notes the new name at the object, also where the name waits behind what is being sent:
        salvage has nothing but labels.

        The rename has happened: it does not fail because that cannot be noted.
        """
        core = self._core
        with core.holding(obj):
            try:
                await core.making(obj.id, core.store.relabel, obj.id, state.id, name)
            except OSError as error:
                log.info("%s: a salvage would not know its new name: %s", os.fsdecode(name), error)

    def _name_first(
        self, node: Node, obj: LocalObject, state: DirectoryState, name: Name, opener: int
    ) -> None:
        core, entry = self._core, state.entries.get(name)
        shared_inode = entry.shared_inode if entry is not None else None
        core.groups.enter(state.id, opener)
        op = core.begin_file(obj, state, name, shared_inode)
        state.put(name, Entry(obj, op, shared_inode))
        node.names.add((state.id, name))
        node.unlinked = False
        node.linked_ns = file_time_ns()
        obj.changed()


def is_half_named(node: Node, state: DirectoryState, name: Name) -> bool:
    """Whether an earlier worker gave `node` that name, the first, and died before its row.

    The name was remembered; the kernel asks again.
    """
    put = node.object.put if node.object is not None else None
    open_ = put is not None and put.state is OpState.OPEN
    return open_ and node.names == {(state.id, name)} and node.shared is None


def is_nameless(node: Node) -> bool:
    """Whether `node` is content that nothing is pending of and that has no name."""
    obj = node.object
    if obj is None or obj.content is not Content.DATA or obj.clean or obj.pending:
        return False
    return node.unlinked and node.shared is None
