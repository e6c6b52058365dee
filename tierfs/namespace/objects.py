"""The objects that ops are about: made, named, held, given up when nothing needs them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from tierfs.journal import Journal, TouchClean
from tierfs.model import Kind, Name, ObjectId, Op, Phase, new_object_id
from tierfs.namespace.closing import Closing
from tierfs.namespace.overlay.links import changing
from tierfs.namespace.overlay.nodes import Content, DirectoryState, LocalObject, Node
from tierfs.namespace.overlay.tree import Tree
from tierfs.namespace.signal import Signal
from tierfs.namespace.tiers import Tiers
from tierfs.osio import OS


class Objects(Tiers):
    """The part of `Core` that knows which objects there are."""

    os: OS
    journal: Journal
    tree: Tree
    closing: Closing
    freed: Signal
    spare: list[LocalObject]
    doomed: dict[ObjectId, trio.Event]

    def linking(self, obj: LocalObject) -> Op | None:
        """An op that may just be changing how many names the committed version of `obj` has."""
        ops = changing(obj, self.backlog.ops_of_object(obj.id))
        return next((op for op in ops if op.phase is Phase.PUBLISHING), None)

    def add_object(self, kind: Kind, content: Content, id_: ObjectId | None = None) -> LocalObject:
        """A new object; its files, if it has any, are made by the caller."""
        obj = LocalObject(id_ or new_object_id(), kind, content)
        self.tree.objects[obj.id] = obj
        return obj

    def object_of(self, node: Node) -> LocalObject:
        """The object that ops on `node` name; a reference when it has none yet."""
        if node.object is None:
            # ops on a directory may have come before the kernel knew it (again)
            known = self.tree.objects.get(node.directory) if node.directory is not None else None
            obj = known or self.add_object(node.kind, Content.NONE, node.directory)
            self.tree.switch_object(node, obj)
            return obj
        return node.object

    def directory_object(self, directory: ObjectId) -> LocalObject:
        """The object that ops on a known directory name; a reference when it has none yet."""
        node = self.tree.by_object.get(directory)
        if node is not None:
            return self.object_of(node)
        known = self.tree.objects.get(directory)
        return known or self.add_object(Kind.DIRECTORY, Content.NONE, directory)

    async def dispose(self, obj: LocalObject) -> None:
        """Removes the files of an object that no name, handle or op needs."""
        try:
            await self.close_files(obj)
            if obj.content is not Content.NONE and not (obj.clean or self.is_gone(obj)):
                # first its rows: a kill in between must not leave an op without its object
                await self.journal.written()
                if obj.id in self.store.spread.published:
                    await self._unlink_published(obj)
                await self.of_object(obj.id, self.store.remove, obj.id)
                self.freed.tell()
        finally:
            if (removed := self.doomed.pop(obj.id, None)) is not None:
                removed.set()

    def is_gone(self, obj: LocalObject) -> bool:
        """Whether its files went with the local drive: nothing can be done to them."""
        return self.store.spread.is_gone(obj.id)

    async def dispose_unused(self, obj: LocalObject | None) -> None:
        """Removes the files of `obj`, if it has any and nothing needs it any more."""
        if obj is not None and self.unused(obj):
            await self.dispose(obj)

    async def discard_unused(self, node: Node) -> None:
        """Forgets `node`, and removes the files of its object, if nothing needs it any more."""
        if (obj := self.tree.discard_if_unused(node)) is not None:
            await self.dispose(obj)

    async def check_still_free(self, state: DirectoryState, name: Name, obj: LocalObject) -> None:
        """After the await that made the files of `obj`, which is to be called `name` in `state`.

        OSError(EEXIST) if the name was taken meanwhile, OSError(ENOENT) if the directory was
        removed: `obj` goes. Otherwise it returns within the same step.
        """
        entry = state.entries.get(name)
        if state.removed or (entry is not None and entry.object is not None):
            code = errno.ENOENT if state.removed else errno.EEXIST
            await self.dispose_unused(obj)
            raise OSError(code, os.strerror(code), os.fsdecode(name))

    async def made(self, node: Node) -> None:
        """Returns when the row that made `node` is written, which its CREATE does not wait for.

        Whoever changes its names waits for that first: of a change that is not journaled the next
        worker must find what it changes, and the name that it had.
        """
        obj = node.object
        if obj is not None and obj.made is not None:
            await obj.made.written()
            obj.made = None

    async def remove_orphan(self, id_: ObjectId) -> None:
        """Removes the files of what no row names, unless it is made just now: a directory's is."""
        if id_ in self.tree.objects or id_ in self.doomed:
            return
        self.doomed[id_] = removed = trio.Event()
        try:
            await self.local(self.store.remove, id_)
        finally:
            if self.doomed.get(id_) is removed:  # who disposes of the object may have ended first
                del self.doomed[id_]
            removed.set()

    async def _unlink_published(self, obj: LocalObject) -> None:
        """The spilled file of `obj` keeps its final name alone: no change of an application."""
        ctimes = await self.on_shared(self.store.spread.remove_published, obj.id)
        for inode, before, after in ctimes:
            node = self.tree.by_shared.get(inode)
            if node is not None and node.ctimes is not None and node.ctimes[0] == before:
                node.ctimes = (after, node.ctimes[1])

    async def close_files(self, obj: LocalObject) -> None:
        """Closes the descriptors of `obj`; one that is read-only some moments later."""
        read_fd, write_fd = obj.fd, obj.write_fd
        obj.fd = obj.write_fd = -1
        if read_fd >= 0:
            spilled = self.store.spread.is_spilled(obj.id)
            (self.closing_shared if spilled else self.closing).add(read_fd)
        if write_fd >= 0:  # a lease is refused as long as it is open
            await self.of_object(obj.id, self.os.close, "object.close", write_fd)

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
