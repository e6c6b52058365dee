"""setattr and xattrs: what is pending is changed itself, of what is committed they are ops."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable

from tierfs.journal import SaveOp, Ticket
from tierfs.model import ROOT, XATTR_FIELD, Kind, Op, OpKind, OpState, Phase
from tierfs.namespace.callers import Caller
from tierfs.namespace.clock import file_time_ns
from tierfs.namespace.content.files import Files
from tierfs.namespace.core import Core
from tierfs.namespace.finding.bare import Bare
from tierfs.namespace.finding.inheritance import ACCESS, DEFAULT, Inheritance
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, Entry, Handle, LocalObject, Node
from tierfs.shared import AttributeChange

HIDDEN = b"user.tierfs."
CAPABILITY = b"security.capability"
NOBODY = Caller(0, 0, 0, 0)
MAKERS = (OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK)
"""Ops that bring an object's attributes along; changes before they are published fold into them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What a setattr asks for; None: leave it."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a SETATTR op that carries this out."""
        wanted = {
            "mode": self.mode is not None,
            "owner": self.uid is not None or self.gid is not None,
            "times": self.atime_ns is not None or self.mtime_ns is not None,
        }
        return tuple(field for field, changed in wanted.items() if changed)


class AttributeCalls:
    """The calls that change what stat(2) and getxattr(2) say."""

    def __init__(self, core: Core, lookup: Lookup, files: Files, inheritance: Inheritance) -> None:
        self._core = core
        self._lookup = lookup
        self._files = files
        self._inheritance = inheritance
        self.bare = Bare(core)

    async def setattr(
        self, node: Node, changes: Changes, handle: Handle | None, caller: Caller
    ) -> None:
        """Changes owner, mode, times and size."""
        if changes.size is not None:
            if node.kind is not Kind.FILE:
                raise OSError(errno.EINVAL, "only files have a size that can be set")
            await self._files.truncate(node, changes.size, handle, caller)
        if not changes.fields:
            return
        store = self._core.store

        def apply(obj: LocalObject) -> None:
            store.set_attributes(
                obj.id, mode=changes.mode, uid=changes.uid, gid=changes.gid,
                atime_ns=changes.atime_ns, mtime_ns=changes.mtime_ns,
            )  # fmt: skip

        if node.directory == ROOT:
            await self._change_root(changes)
            return
        await self._change(node, changes.fields, apply)
        if node.directory is not None and changes.mtime_ns is not None:
            self._core.time_asked(self._core.tree.directories[node.directory], changes.mtime_ns)

    async def kill_privileges(self, node: Node, belongs: Callable[[int], bool]) -> None:
        """Takes setuid, setgid and capabilities off a file that another user writes to.

        The kernel leaves it to us (FUSE_HANDLE_KILLPRIV_V2), as setattr_should_drop_suidgid does
        it on a local file system: setgid without the right of the group to execute stays where the
        writer `belongs` to the group.
        """
        if node.kind is not Kind.FILE:
            return
        found = await self._lookup.attributes(node)
        mode = found.mode
        stays = not mode & 0o010 and (not mode & 0o2000 or belongs(found.gid))
        kept = mode & ~(0o4000 if stays else 0o6000)
        if kept != mode:
            await self.setattr(node, Changes(mode=kept), None, NOBODY)
        if CAPABILITY in await self.listxattr(node):
            await self.removexattr(node, CAPABILITY)

    async def kill_setgid(self, node: Node) -> None:
        """Takes setgid off what gets an ACL of an owner who is not in its group.

        The kernel leaves it to us (FUSE_SETXATTR_EXT), as posix_acl_update_mode does it on a
        local file system.
        """
        mode = (await self._lookup.attributes(node)).mode
        if mode & 0o2000:
            await self.setattr(node, Changes(mode=mode & ~0o2000), None, NOBODY)

    async def setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        """Sets an xattr; those of tierfs itself are refused."""
        refuse_ours(name)
        refuse_user_on_special(node, name)
        if node.directory == ROOT:
            await self._apply_to_root(AttributeChange(xattrs={name: value}))
            return
        # an access ACL brings the mode along (acl(5)), and only the mode where it says no more
        fields = (field_of(name), "mode") if name == ACCESS else (field_of(name),)
        await self._change(
            node, fields, lambda obj: self._core.store.set_xattr(obj.id, name, value)
        )

    async def removexattr(self, node: Node, name: bytes) -> None:
        """Removes an xattr; OSError(ENODATA) when there is none, and it is no ACL."""
        refuse_ours(name)
        if name not in await self.listxattr(node):
            if name in (ACCESS, DEFAULT):  # to take away what is not there is no error, as on XFS
                return
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        if node.directory == ROOT:
            await self._apply_to_root(AttributeChange(xattrs={name: None}))
            return
        await self._change(
            node, (field_of(name),), lambda obj: self._core.store.remove_xattr(obj.id, name)
        )

    def surely_without(self, node: Node, name: bytes) -> bool:
        """Whether it is known that `node` has no such xattr.

        The kernel asks for security.capability before the first write to every file.
        """
        obj = node.object
        if obj is None:
            return self.bare.knows(node)
        if obj.content is Content.NONE or obj.xattrs is None:
            return False
        return name not in obj.xattrs

    async def getxattr(self, node: Node, name: bytes) -> bytes:
        """The value of an xattr; OSError(ENODATA)."""
        obj = node.answering()
        if obj is not None and obj.content is not Content.NONE:
            if self.surely_without(node, name):
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            with self._core.holding(obj):
                return await self._core.of_object(obj.id, self._core.store.get_xattr, obj.id, name)
        await self.bare.look(node)
        if self.bare.knows(node):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        try:
            return (await self._shared_xattrs(node))[name]
        except KeyError:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None

    async def listxattr(self, node: Node) -> list[bytes]:
        """The names of all xattrs but those of tierfs itself."""
        obj = node.answering()
        if obj is not None and obj.content is not Content.NONE:
            with self._core.holding(obj):
                names = await self._core.of_object(obj.id, self._core.store.list_xattrs, obj.id)
            obj.xattrs = frozenset(names)
            return names
        return list(await self._shared_xattrs(node))

    async def _shared_xattrs(self, node: Node) -> dict[bytes, bytes]:
        core = self._core
        for handle in node.handles:
            if handle.shared_fd >= 0:
                return await core.on_shared_file(handle, core.shared.read_xattrs)
        return await self._lookup.xattrs(node)

    async def _change_root(self, changes: Changes) -> None:
        change = AttributeChange(
            mode=changes.mode,
            uid=changes.uid,
            gid=changes.gid,
            atime_ns=changes.atime_ns,
            mtime_ns=changes.mtime_ns,
        )
        core, when_ns = self._core, file_time_ns()
        while True:
            busy = not core.backlog.nothing_but(None, ROOT)
            await self._apply_to_root(change)
            if changes.mtime_ns is None:
                return
            if not busy or not core.backlog.nothing_but(None, ROOT):
                break  # else the end of the last op may have given it another time
        core.writeback.asked(ROOT, when_ns, changes.mtime_ns)
        core.time_asked(core.tree.directories[ROOT], changes.mtime_ns)

    async def _apply_to_root(self, change: AttributeChange) -> None:
        """The root was there before every op: it is changed on the shared tier at once."""
        await self._core.at(ROOT, self._core.shared.set_attributes, b"", None, change)
        self._core.tree.directories[ROOT].known_until = 0.0
        self._inheritance.changed(ROOT)

    # -- how a change is carried out -------------------------------------------------------------

    async def _change(
        self, node: Node, fields: tuple[str, ...], apply: Callable[[LocalObject], None]
    ) -> None:
        async with node.lock:
            obj = node.answering()
            if obj is None or obj.content is Content.NONE:
                obj = await self._stub(node)
            with self._core.holding(obj):
                await self._core.making(obj.id, apply, obj)
            obj.changed()
            self.bare.changed(node)
            if node.directory is not None:
                self._inheritance.changed(node.directory)
                self._core.tree.directories[node.directory].ctime_ns = file_time_ns()
            maker = self._maker(node, obj)
            if maker is not None:
                maker.attr_version += 1
                maker.fields = tuple(dict.fromkeys((*maker.fields, *fields)))
                # open for writing, and perhaps never written to: a change it is all the same
                obj.dirty = obj.dirty or maker.state is OpState.OPEN
                ticket = self._core.journal.post(SaveOp(maker))
            elif node.stays:
                return
            elif node.names or node.directory is not None:
                ticket = self._issue(node, obj, fields)
            else:
                return
        await ticket.written()

    def _maker(self, node: Node, obj: LocalObject) -> Op | None:
        op = obj.put or self._core.backlog.of_object(obj.id)
        if op is None or op.kind not in MAKERS or op.phase is Phase.PUBLISHING:
            return None
        return op

    def _issue(self, node: Node, obj: LocalObject, fields: tuple[str, ...]) -> Ticket:
        core = self._core
        last = core.backlog.of_object(obj.id)
        if last is not None and (last.kind is not OpKind.SETATTR or not core.droppable(last)):
            last = None
        if last is not None:  # of several names its own: the overlay speaks of that
            directory, name = last.parent, last.name
            fields = tuple(dict.fromkeys((*last.fields, *fields)))
        elif node.directory is not None:
            here = core.tree.directories[node.directory]
            assert here.parent is not None
            directory, name = here.parent, here.name
        else:
            directory, name = core.tree.a_name(node) or next(iter(node.names))
        state = core.tree.directories[directory]
        entry = state.entries.get(name)
        if last is not None:
            core.drop_op(last)
        inode = node.shared.inode if node.shared else None
        op, ticket = core.issue(OpKind.SETATTR, obj, state, name, base_inode=inode, fields=fields)
        state.put(name, Entry(obj, op, entry.shared_inode if entry else inode))
        core.writeback.submit(op)
        return ticket

    async def _stub(self, node: Node) -> LocalObject:
        """Gives a committed node a local object that carries its attributes."""
        core = self._core
        attributes = await self._lookup.attributes(node)
        xattrs = await self._shared_xattrs(node)
        target = await self._lookup.target(node) if node.kind is Kind.SYMLINK else b""
        if node.directory is not None and (doomed := core.doomed.get(node.directory)) is not None:
            await doomed.wait()
        obj = core.object_of(node)
        obj.pending += 1  # held over the await
        directory, name, _ = self._lookup.shared_location(node)
        try:
            await core.make(
                obj.id, core.store.create_stub, obj.id, attributes, xattrs, directory, name,
                target,
            )  # fmt: skip
        finally:
            obj.pending -= 1
        obj.content, obj.committed_links = Content.STUB, attributes.nlink - obj.links
        return obj


def field_of(name: bytes) -> str:
    """How a SETATTR op names an xattr."""
    return XATTR_FIELD + os.fsdecode(name)


def refuse_ours(name: bytes) -> None:
    """OSError(EPERM) for the xattrs in which tierfs itself speaks."""
    if name.startswith(HIDDEN):
        raise OSError(errno.EPERM, "user.tierfs.* is read-only", os.fsdecode(name))


def refuse_user_on_special(node: Node, name: bytes) -> None:
    """user.* xattrs are for files and directories only (xattr(7))."""
    if name.startswith(b"user.") and node.kind not in (Kind.FILE, Kind.DIRECTORY):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
