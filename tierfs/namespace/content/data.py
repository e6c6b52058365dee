"""The content of files: which object answers for a node, its descriptors, copy-up.

All handles of a node share the node's one object, so what one writes the others read, whatever
became of the shared version meanwhile.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial

from tierfs.health import is_failure
from tierfs.local import ObjectStore
from tierfs.model import Attributes, CleanRecord, Kind, Name, ObjectId, Signature
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, Handle, LocalObject, Node
from tierfs.osio import OS
from tierfs.policies import PolicyKind

COPY_BYTES = 4 << 20


class Data:
    """Objects of nodes, and the bytes in them."""

    def __init__(self, core: Core, lookup: Lookup) -> None:
        self._core = core
        self._lookup = lookup
        self.copying: dict[ObjectId, tuple[Node, int, int]] = {}

    # -- descriptors ---------------------------------------------------------------------------

    async def acquire(self, obj: LocalObject, *, writing: bool = False) -> None:
        """One more handle uses `obj`; opens the descriptor that it needs for the first one.

        Where the kernel writes past us, none of ours is open for writing: a lease could not tell
        the end of writing.
        """
        obj.users += 1
        try:
            if writing and not self._core.direct.enabled:
                await self.writable(obj)
            elif obj.fd < 0:
                fd = await self._open(obj, os.O_RDONLY)
                if obj.fd < 0:
                    obj.fd = fd
                else:  # another opener was faster
                    await self._core.of_object(obj.id, self._core.os.close, "object.close", fd)
        except OSError:
            obj.users -= 1
            raise

    async def writable(self, obj: LocalObject) -> int:
        """A descriptor of `obj` that can be written to."""
        if obj.write_fd < 0 and obj.fd >= 0 and not obj.live:
            await self._widen(obj)
        if obj.write_fd < 0:
            fd = await self._open(obj, os.O_RDWR)
            if obj.write_fd < 0:
                obj.write_fd = fd
            else:
                await self._core.of_object(obj.id, self._core.os.close, "object.close", fd)
        return obj.write_fd

    async def _widen(self, obj: LocalObject) -> None:
        """Makes the descriptor of readers one for both: an open file takes one, not two."""
        fd = obj.fd
        await self._core.of_object(obj.id, change_mode, self._core, obj.id, fd, os.O_RDWR)
        if obj.fd == fd:
            obj.write_fd, obj.fd = fd, -1

    async def _open(self, obj: LocalObject, flags: int) -> int:
        return await self._core.of_object(obj.id, self._core.store.open_object, obj.id, flags)

    async def release(self, obj: LocalObject) -> None:
        """One user less; the last one closes the descriptors."""
        obj.users -= 1
        if obj.users == 0:
            obj.live = False
            await self._core.close_files(obj)
            self._core.freed.tell()

    async def end_writing(self, obj: LocalObject) -> None:
        """Nobody writes through us any more: whoever still has it open for writing is another."""
        if obj.write_fd < 0:
            return
        fd, obj.write_fd = obj.write_fd, -1
        if obj.fd >= 0 or obj.users <= 1:
            await self._core.of_object(obj.id, self._core.os.close, "object.close", fd)
        else:
            obj.fd = fd
            await self._core.of_object(obj.id, change_mode, self._core, obj.id, fd, os.O_RDONLY)

    async def attach(self, handle: Handle) -> None:
        """Lets `handle` read and write through the object of its node."""
        obj = handle.node.object
        assert obj is not None
        await self.acquire(obj, writing=handle.writable)
        if handle.writable:
            obj.writers += 1
        handle.object = obj

    async def switch(self, node: Node, obj: LocalObject) -> LocalObject | None:
        """`obj` answers for `node` from now on, for its open handles too; returns the old one."""
        old = self._core.tree.switch_object(node, obj)
        for handle in list(node.handles):
            before = handle.object
            await self.acquire(obj, writing=handle.writable)
            handle.object = obj
            self._core.memory.handle(handle)
            if handle.writable:
                obj.writers += 1
            if before is not None:
                if handle.writable:
                    before.writers -= 1
                await self.release(before)
        return old

    async def read_shared_instead(self, handle: Handle) -> bool:
        """Lets `handle` read the shared file of which it had a local copy; False: it had none."""
        core, obj = self._core, handle.object
        if obj is None or not obj.clean or obj.put is not None:
            return False
        fd, st = await self._lookup.open_committed(handle.node)
        if Signature.of(st) != obj.origin or handle.object is not obj:
            core.closing_shared.add(fd)
            return False
        handle.object, handle.shared_fd = None, fd
        core.memory.handle(handle)
        await self.release(obj)
        return True

    # -- content on its way to the local tier -----------------------------------------------------

    async def new_version(self, node: Node, *, keep: bool) -> LocalObject:
        """A data object for `node` with its owner, mode and xattrs, and its content if `keep`.

        It is not the node's object yet. Content comes by reflink from a local copy where
        possible, else it is copied (the shared file is read past nothing: progress in status).
        """
        obj = self._core.add_object(node.kind, Content.DATA)
        try:
            with nullcontext() if node.object is None else self._core.holding(node.object):
                await self._fill_somewhere(node, obj, keep)
        except BaseException:
            self._core.tree.objects.pop(obj.id, None)
            await self._core.of_object(obj.id, self._core.store.remove, obj.id)
            raise
        return obj

    async def _fill_somewhere(self, node: Node, obj: LocalObject, keep: bool) -> None:
        core, spread = self._core, self._core.store.spread
        if core.policy(node).kind is PolicyKind.DIRECT or spread.only_far:
            spread.place_far(obj.id)
        try:
            await self._fill(node, obj, keep)
            return
        except OSError as error:
            if spread.is_spilled(obj.id) or not await core.needs_spill(error):
                raise
        if not spread.only_far:
            await core.local(core.store.remove, obj.id)
        spread.place_far(obj.id)
        await self._fill(node, obj, keep)

    async def reflink(self, node: Node) -> LocalObject | None:
        """A data object that shares the content of the node's one; None: not possible here."""
        old = node.object
        assert old is not None
        obj = self._core.add_object(node.kind, Content.DATA)
        with self._core.holding(old):
            if await self._core.making(old.id, self._core.store.clone, old.id, obj.id):
                return obj
        self._core.tree.objects.pop(obj.id, None)
        return None

    async def snapshot(self, node: Node, *, copying: bool) -> LocalObject | None:
        """As `reflink`; where that is not possible, and with `copying`, a copy."""
        old = node.object
        assert old is not None
        clone = await self.reflink(node)
        if clone is not None or not copying:
            return clone
        core, obj = self._core, self._core.add_object(node.kind, Content.DATA)
        try:
            with core.holding(old):
                await self._duplicate(node, old, obj)
        except BaseException:
            core.tree.objects.pop(obj.id, None)
            await core.of_object(obj.id, core.store.remove, obj.id)
            raise
        return obj

    async def aside(self, node: Node, held: LocalObject) -> LocalObject:
        """A copy of `held` takes its id; returns an object for the file that `held` was so far.

        So what handles have open becomes the new version, and what was closed before stays what
        it is. Attributes are those of `node`.
        """
        core = self._core
        fresh = core.add_object(node.kind, Content.DATA)
        fresh.origin = held.origin if held.put is None else None
        fresh.committed_links = held.committed_links
        try:
            with core.holding(held):
                if not await core.making(held.id, core.store.clone, held.id, fresh.id):
                    await self._duplicate(node, held, fresh)
                await core.of_object(held.id, core.store.exchange, held.id, fresh.id)
        except BaseException:
            core.tree.objects.pop(fresh.id, None)
            await core.of_object(fresh.id, core.store.remove, fresh.id)
            raise
        held.changed()
        if held.put is not None:
            held.put.data_version += 1  # what is being read of it is the file that is written now
        if held is not node.object:
            fd, st, xattrs = await self.open_shared(node)
            await core.on_shared(core.os.close, "copyup.close", fd)
            attributes = await self._lookup.attributes(node, st)
            await core.making(fresh.id, apply_attributes, core.store, fresh.id, attributes, xattrs)
        return fresh

    async def _duplicate(self, node: Node, source: LocalObject, target: LocalObject) -> None:
        """What a reflink would make, where the file system has none."""
        core = self._core
        directory, name = node.a_name() or (ObjectId(0), b"")
        attributes = await core.of_object(source.id, core.store.attributes, source.id, source.kind)
        xattrs = await core.of_object(source.id, read_xattrs, core.store, source.id)
        if core.store.spread.is_spilled(source.id):
            core.store.spread.place_far(target.id)  # they are to exchange places
        await core.making(
            target.id, make_object, core.store, target.id, attributes, xattrs, directory, name
        )
        fd = await core.of_object(source.id, core.store.open_object, source.id, os.O_RDONLY)
        try:
            await self._copy(node, fd, target, attributes)
        finally:
            await core.local(core.os.close, "copyup.close", fd)

    async def _fill(self, node: Node, obj: LocalObject, keep: bool) -> None:
        core, old = self._core, node.object
        if old is None or old.content is not Content.DATA:
            await self._fill_from_shared(node, obj, keep)
            return
        if keep and old.clean and old.put is None:  # its last user has not left yet
            obj.origin, obj.committed_links = old.origin, old.committed_links
        if keep and await core.making(old.id, core.store.clone, old.id, obj.id):
            return
        fd = await core.of_object(old.id, core.store.open_object, old.id, os.O_RDONLY)
        async with self._closing(fd):
            attributes = await self._lookup.attributes(node)
            xattrs = await core.of_object(old.id, read_xattrs, core.store, old.id)
            await self.make(node, obj, attributes, xattrs, fd if keep else -1)

    async def _fill_from_shared(self, node: Node, obj: LocalObject, keep: bool) -> None:
        core, old = self._core, node.object
        try:
            fd, st, xattrs = await self.open_shared(node)
        except OSError as error:
            if not is_failure(error) or not await self._fill_unasked(node, obj, keep):
                raise
            return
        async with self._closing(fd):
            obj.origin = Signature.of(st)
            attributes = await self._lookup.attributes(node, st)
            if old is not None and old.content is Content.STUB:
                xattrs = await core.of_object(old.id, read_xattrs, core.store, old.id)
            clean = await core.journal.clean_copy(st.st_ino)
            usable = clean is not None and clean.signature == obj.origin and keep
            usable = usable and not core.store.spread.is_spilled(obj.id)
            if (
                usable
                and clean
                and await core.making(obj.id, clone_if_there, core.store, clean, obj.id)
            ):
                await core.making(obj.id, apply_attributes, core.store, obj.id, attributes, xattrs)
                return
            await self.make(node, obj, attributes, xattrs, fd if keep else -1)

    async def _fill_unasked(self, node: Node, obj: LocalObject, keep: bool) -> bool:
        """Fills `obj` from the local copy while the shared tier does not answer; whether it can."""
        core, clean = self._core, await self._lookup.instead.copy(node)
        if clean is None:
            return False
        attributes = await self._lookup.attributes(node)
        xattrs = await core.local(read_xattrs, core.store, clean.object)
        if node.object is not None and node.object.content is Content.STUB:
            xattrs = await core.of_object(node.object.id, read_xattrs, core.store, node.object.id)
        obj.origin = clean.signature
        if keep:
            if not await core.making(obj.id, clone_if_there, core.store, clean, obj.id):
                return False
            await core.making(obj.id, apply_attributes, core.store, obj.id, attributes, xattrs)
        else:
            await self.make(node, obj, attributes, xattrs, -1)
        return True

    async def make(
        self, node: Node, obj: LocalObject, attributes: Attributes, xattrs: dict[bytes, bytes],
        source: int,
    ) -> None:  # fmt: skip
        """Makes `obj` with the content of descriptor `source`; -1: empty, and changed now."""
        core = self._core
        directory, name = node.a_name() or (ObjectId(0), b"")
        if source < 0:
            attributes = dataclasses.replace(attributes, size=0, mtime_ns=time.time_ns())
        await core.making(
            obj.id, make_object, core.store, obj.id, attributes, xattrs, directory, name
        )
        if source >= 0:
            await self._copy(node, source, obj, attributes)

    @asynccontextmanager
    async def _closing(self, fd: int) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._core.on_shared(self._core.os.close, "copyup.close", fd)

    async def open_shared(self, node: Node) -> tuple[int, os.stat_result, dict[bytes, bytes]]:
        """The committed version of `node`: its descriptor, stat and xattrs."""
        core = self._core
        fd, st = await self._lookup.open_unless_copied(node)
        xattrs = await core.calls.content(core.shared.read_xattrs, fd)
        return fd, st, xattrs

    async def _copy(self, node: Node, source: int, obj: LocalObject, at: Attributes) -> None:
        core = self._core
        target = await core.of_object(obj.id, core.store.open_object, obj.id, os.O_RDWR)
        try:
            done = 0
            # a hole at the end is no range
            await core.of_object(obj.id, lambda: core.store.set_attributes(obj.id, size=at.size))
            ranges = await core.calls.content(
                lambda: list(core.os.data_ranges("copyup.ranges", source, at.size))
            )
            for start, end in ranges:
                while start < end:
                    self.copying[obj.id] = (node, done, at.size)
                    size = min(COPY_BYTES, end - start)
                    piece = partial(copy_piece, core.os, source, target, start, size)
                    await core.with_room(size, False, partial(core.calls.content, piece))
                    start += size
                    done += size
            await core.of_object(
                obj.id,
                lambda: core.store.set_attributes(
                    obj.id, atime_ns=at.atime_ns, mtime_ns=at.mtime_ns
                ),
            )
        finally:
            self.copying.pop(obj.id, None)
            await core.of_object(obj.id, core.os.close, "copyup.close", target)

    async def drop_copy(self, object_id: ObjectId) -> None:
        """A clean copy that another one has taken the place of goes, with its last user."""
        core = self._core
        obj = core.tree.objects.get(object_id)
        if obj is None:
            await core.local(core.store.remove, object_id)
            return
        obj.clean = False
        await core.dispose_unused(obj)

    async def look(self, obj: LocalObject) -> Attributes:
        """What the local tier says of `obj` now; remembered, for it is shown after a commit too."""
        fd, store = obj.fd if obj.fd >= 0 else obj.write_fd, self._core.store
        version = obj.version
        if fd >= 0 and not store.spread.is_spilled(obj.id):
            told = store.attributes_of(fd)
        else:
            told = await self._core.of_object(obj.id, store.attributes, obj.id, Kind.FILE)
        if obj.version == version and not obj.live:
            obj.attributes = told
        return told

    def judge(self, obj: LocalObject, now: Attributes) -> None:
        """Of a file that the kernel writes by itself: it was written if it is not as it was."""
        noted = now.size, now.mtime_ns, now.ctime_ns
        if obj.live and obj.noted != noted:
            self.touched(obj)
            obj.noted = noted

    def touched(self, obj: LocalObject) -> None:
        """The content of `obj` is changing: what is being sent of it is not its content."""
        obj.dirty = True
        obj.attributes = None
        obj.version += 1
        if obj.put is not None:
            obj.put.data_version += 1


def make_object(
    store: ObjectStore,
    id_: ObjectId,
    attributes: Attributes,
    xattrs: dict[bytes, bytes],
    parent: ObjectId,
    name: Name,
) -> None:
    """Creates a data object with the given owner, mode, times and xattrs. Blocking."""
    fd = store.create(
        id_, Kind.FILE, mode=attributes.mode, uid=attributes.uid, gid=attributes.gid,
        parent=parent, name=name,
    )  # fmt: skip
    os.close(fd)
    try:
        apply_attributes(store, id_, attributes, xattrs)
    except BaseException:
        store.remove(id_)
        raise


def clone_if_there(store: ObjectStore, clean: CleanRecord, target: ObjectId) -> bool:
    """Reflinks a clean copy; False when that is not possible or it was evicted. Blocking."""
    try:
        return store.clone(clean.object, target)
    except FileNotFoundError:
        return False


def apply_attributes(
    store: ObjectStore, id_: ObjectId, attributes: Attributes, xattrs: dict[bytes, bytes]
) -> None:
    """Gives an object the owner, mode, times and xattrs of what it stands for. Blocking."""
    for name, value in xattrs.items():
        store.set_xattr(id_, name, value)
    store.set_attributes(
        id_, mode=attributes.mode, uid=attributes.uid, gid=attributes.gid,
        atime_ns=attributes.atime_ns, mtime_ns=attributes.mtime_ns,
    )  # fmt: skip


def read_xattrs(store: ObjectStore, id_: ObjectId) -> dict[bytes, bytes]:
    """The application's xattrs of an object. Blocking."""
    found = {}
    for name in store.list_xattrs(id_):
        with suppress_missing():
            found[name] = store.get_xattr(id_, name)
    return found


@contextmanager
def suppress_missing() -> Iterator[None]:
    """Ignores ENODATA: the xattr was removed since it was listed."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


def change_mode(core: Core, object_id: ObjectId, fd: int, flags: int) -> None:
    """`fd` is from now on a descriptor with `flags` of this object, wherever it lies. Blocking."""
    fresh = core.store.open_object(object_id, flags)
    try:
        core.os.replace("object.mode", fresh, fd)
    finally:
        core.os.close("object.close", fresh)


def copy_piece(os_: OS, source: int, target: int, offset: int, size: int) -> None:
    """Copies one piece between two descriptors. Blocking."""
    data = os_.pread("copyup.read", source, size, offset)
    os_.pwrite_all("copyup.write", target, data, offset)
