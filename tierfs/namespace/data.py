"""The content of files: which object answers for a node, copy-up, reads and writes.

All handles of a node share the node's one object, so what one writes the others read, whatever
became of the shared version meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext

from tierfs.local import ObjectStore
from tierfs.model import Attributes, CleanRecord, Kind, Name, ObjectId, Signature
from tierfs.namespace.core import Core
from tierfs.namespace.lookup import Lookup
from tierfs.namespace.nodes import Content, Handle, LocalObject, Node
from tierfs.osio import OS

COPY_BYTES = 4 << 20


class Data:
    """Objects of nodes, and the bytes in them."""

    def __init__(
        self, core: Core, lookup: Lookup, make_room: Callable[[int], Awaitable[bool]]
    ) -> None:
        self._core = core
        self._lookup = lookup
        self._make_room = make_room
        self.copying: dict[ObjectId, tuple[Node, int, int]] = {}

    # -- descriptors ---------------------------------------------------------------------------

    async def acquire(self, obj: LocalObject) -> None:
        """One more handle uses the descriptor of `obj`; opens it for the first one."""
        obj.users += 1
        if obj.fd >= 0:
            return
        try:
            fd = await self._core.local(self._core.store.open_object, obj.id, os.O_RDWR)
        except OSError:
            obj.users -= 1
            raise
        if obj.fd >= 0:  # another opener was faster
            await self._core.local(self._core.os.close, "object.close", fd)
        else:
            obj.fd = fd

    async def release(self, obj: LocalObject) -> None:
        """One handle less; the last one closes the descriptor and drops what nothing needs."""
        obj.users -= 1
        if obj.users:
            return
        if obj.fd >= 0:
            fd, obj.fd = obj.fd, -1
            await self._core.local(self._core.os.close, "object.close", fd)

    async def attach(self, handle: Handle) -> None:
        """Lets `handle` read and write through the object of its node."""
        obj = handle.node.object
        assert obj is not None
        await self.acquire(obj)
        if handle.writable:
            obj.writers += 1
        handle.object = obj

    async def switch(self, node: Node, obj: LocalObject) -> LocalObject | None:
        """`obj` answers for `node` from now on, for its open handles too; returns the old one."""
        old = self._core.tree.switch_object(node, obj)
        for handle in list(node.handles):
            before = handle.object
            await self.acquire(obj)
            handle.object = obj
            if handle.writable:
                obj.writers += 1
            if before is not None:
                if handle.writable:
                    before.writers -= 1
                await self.release(before)
        return old

    # -- content on its way to the local tier -----------------------------------------------------

    async def new_version(self, node: Node, *, keep: bool) -> LocalObject:
        """A data object for `node` with its owner, mode and xattrs, and its content if `keep`.

        It is not the node's object yet. Content comes by reflink from a local copy where
        possible, else it is copied (the shared file is read past nothing: progress in status).
        """
        obj = self._core.add_object(node.kind, Content.DATA)
        try:
            with nullcontext() if node.object is None else self._core.holding(node.object):
                await self._fill(node, obj, keep)
        except BaseException:
            self._core.tree.objects.pop(obj.id, None)
            await self._core.local(self._core.store.remove, obj.id)
            raise
        return obj

    async def reflink(self, node: Node) -> LocalObject | None:
        """A data object that shares the content of the node's one; None: not possible here."""
        old = node.object
        assert old is not None
        obj = self._core.add_object(node.kind, Content.DATA)
        with self._core.holding(old):
            if await self._core.local(self._core.store.clone, old.id, obj.id):
                return obj
        self._core.tree.objects.pop(obj.id, None)
        return None

    async def _fill(self, node: Node, obj: LocalObject, keep: bool) -> None:
        core, old = self._core, node.object
        directory, name = node.a_name() or (ObjectId(0), b"")
        if old is not None and old.content is Content.DATA:
            if keep and await core.local(core.store.clone, old.id, obj.id):
                return
            fd = await core.local(core.store.open_object, old.id, os.O_RDONLY)
            attributes = await self._lookup.attributes(node)
            xattrs = await core.local(read_xattrs, core.store, old.id)
        else:
            fd, st, xattrs = await self._open_shared(node)
            obj.origin = Signature.of(st)
            attributes = await self._lookup.attributes(node, st)
            if old is not None and old.content is Content.STUB:
                xattrs = await core.local(read_xattrs, core.store, old.id)
            clean = await core.journal.clean_copy(st.st_ino)
            usable = clean is not None and clean.signature == obj.origin and keep
            if usable and clean and await core.local(clone_if_there, core.store, clean, obj.id):
                await core.local(apply_attributes, core.store, obj.id, attributes, xattrs)
                await core.on_shared(core.os.close, "copyup.close", fd)
                return
        try:
            await core.local(make_object, core.store, obj.id, attributes, xattrs, directory, name)
            if keep:
                await self._copy(node, fd, obj, attributes)
        finally:
            await core.on_shared(core.os.close, "copyup.close", fd)

    async def _open_shared(self, node: Node) -> tuple[int, os.stat_result, dict[bytes, bytes]]:
        core = self._core
        fd, st = await self._lookup.open_committed(node)
        xattrs = await core.on_shared(core.shared.read_xattrs, fd)
        return fd, st, xattrs

    async def _copy(self, node: Node, source: int, obj: LocalObject, at: Attributes) -> None:
        core = self._core
        target = await core.local(core.store.open_object, obj.id, os.O_RDWR)
        try:
            done = 0
            ranges = await core.on_shared(
                lambda: list(core.os.data_ranges("copyup.ranges", source, at.size))
            )
            for start, end in ranges:
                while start < end:
                    self.copying[obj.id] = (node, done, at.size)
                    size = min(COPY_BYTES, end - start)
                    await core.on_shared(copy_piece, core.os, source, target, start, size)
                    start += size
                    done += size
            await core.local(
                lambda: core.store.set_attributes(
                    obj.id, atime_ns=at.atime_ns, mtime_ns=at.mtime_ns
                )
            )
        finally:
            self.copying.pop(obj.id, None)
            await core.local(core.os.close, "copyup.close", target)

    # -- reading and writing -------------------------------------------------------------------

    async def read(self, handle: Handle, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; short only at the end of the file."""
        obj, core = handle.object, self._core
        if obj is None:
            return await core.on_shared(
                core.os.pread, "read.shared", handle.shared_fd, size, offset
            )
        obj.users += 1  # the handle may be switched to another object meanwhile
        try:
            return await core.local(core.os.pread, "read.local", obj.fd, size, offset)
        finally:
            await self.release(obj)

    async def write(self, handle: Handle, offset: int, data: bytes) -> int:
        """Writes all of `data`; a full local tier first drops clean copies (G9)."""
        obj = handle.object
        if obj is None or not handle.writable:
            raise OSError(errno.EBADF, "not open for writing")
        obj.users += 1
        self.touched(obj)
        try:
            await self._write(obj.fd, offset, data)
        finally:
            self.touched(obj)
            await self.release(obj)
        return len(data)

    async def _write(self, fd: int, offset: int, data: bytes) -> None:
        core = self._core
        try:
            await core.local(core.os.pwrite_all, "write.local", fd, data, offset)
        except OSError as error:
            if error.errno != errno.ENOSPC or not await self._make_room(len(data)):
                raise
            await core.local(core.os.pwrite_all, "write.local", fd, data, offset)

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
    apply_attributes(store, id_, attributes, xattrs)


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


def copy_piece(os_: OS, source: int, target: int, offset: int, size: int) -> None:
    """Copies one piece between two descriptors. Blocking."""
    data = os_.pread("copyup.read", source, size, offset)
    os_.pwrite_all("copyup.write", target, data, offset)
