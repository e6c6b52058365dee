"""The request handlers of pyfuse3."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pyfuse3

from tierfs.kernel.answers import BLOCK_BYTES, Answers, Entry
from tierfs.kernel.boundary import handler, silent
from tierfs.kernel.resent import Requests
from tierfs.kernel.wire import Opcode
from tierfs.namespace.callers import Caller
from tierfs.namespace.changing.attributes import Changes
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.finding.listing import DOTS
from tierfs.namespace.overlay.nodes import Handle
from tierfs.namespace.requests import Request, carrying_out
from tierfs.osio.processes import is_member, process_of


class Operations(pyfuse3.Operations):
    """Serves one file system. Each handler converts, calls and converts back."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = True

    def __init__(self, fs: FileSystem, requests: Requests | None = None) -> None:
        super().__init__()
        self._fs = fs
        self._answers = Answers(fs)
        self._requests = requests or Requests((), lambda _: None)

    def _carrying(
        self, opcode: Opcode, nodeid: int, name: bytes
    ) -> AbstractContextManager[Request | None]:
        return carrying_out(self._requests.take(opcode, nodeid, name))

    # -- names ---------------------------------------------------------------------------------

    @handler
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return entry_attributes(await self._answers.lookup(parent_inode, name, ctx.pid))

    @silent
    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for ino, count in inode_list:
            self._fs.forget(ino, count)

    @handler
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        with self._carrying(Opcode.MKDIR, parent_inode, name):
            state = self._fs.tree.directory(parent_inode)
            node = await self._fs.names.mkdir(state, name, mode & 0o7777, opener(ctx))
        return entry_attributes(await self._answers.known(node))

    @handler
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        with self._carrying(Opcode.MKNOD, parent_inode, name):
            state = self._fs.tree.directory(parent_inode)
            node = await self._fs.names.mknod(state, name, mode, rdev, caller(ctx))
        return entry_attributes(await self._answers.known(node))

    @handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        with self._carrying(Opcode.SYMLINK, parent_inode, name):
            state = self._fs.tree.directory(parent_inode)
            node = await self._fs.names.symlink(state, name, target, caller(ctx))
        return entry_attributes(await self._answers.known(node))

    @handler
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._fs.lookup.target(self._fs.tree.node(inode))

    @handler
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        with self._carrying(Opcode.LINK, new_parent_inode, new_name):
            node = self._fs.tree.node(inode)
            await self._fs.names.link(node, self._fs.tree.directory(new_parent_inode), new_name)
        return entry_attributes(await self._answers.known(node))

    @handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        with self._carrying(Opcode.UNLINK, parent_inode, name):
            state = self._fs.tree.directory(parent_inode)
            await self._fs.unlink(state, name, ctx.pid)

    @handler
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        with self._carrying(Opcode.RMDIR, parent_inode, name):
            await self._fs.names.rmdir(self._fs.tree.directory(parent_inode), name)

    @handler
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        tree = self._fs.tree
        with self._carrying(Opcode.RENAME, parent_inode_old, name_old):
            old, new = tree.directory(parent_inode_old), tree.directory(parent_inode_new)
            await self._fs.names.rename(old, name_old, new, name_new, flags)

    # -- attributes ----------------------------------------------------------------------------

    @handler
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return entry_attributes(await self._answers.getattr(inode))

    @handler
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._fs.tree.node(inode)
        handle = self._fs.files.handle(fh) if fh is not None else None
        asked = changes(attr, fields)
        if asked == Changes() and not fields.update_ctime:
            # all that is left of a write by another user to a passthrough file (KERNEL_PATH.md)
            await self._fs.attributes.kill_privileges(
                node, lambda gid: is_member(ctx.pid, gid, ctx.gid)
            )
        else:
            # truncate(2) by a path is open, ftruncate, close: who does that writes
            who = opener(ctx) if asked.size is not None else caller(ctx)
            await self._fs.attributes.setattr(node, asked, handle, who)
        return entry_attributes(await self._answers.entry(node))

    @handler
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._answers.getxattr(inode, name)

    @handler
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        await self._fs.attributes.setxattr(self._fs.tree.node(inode), name, value)

    @handler
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        names = await self._fs.attributes.listxattr(self._fs.tree.node(inode))
        # as on a local file system: trusted.* is not shown to users (xattr(7))
        return [name for name in names if ctx.uid == 0 or not name.startswith(b"trusted.")]

    @handler
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._fs.attributes.removexattr(self._fs.tree.node(inode), name)

    @handler
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return statvfs_data(await self._fs.space.statfs())

    # -- open files ----------------------------------------------------------------------------

    @handler
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        request = self._requests.take(Opcode.CREATE, parent_inode, name)
        handle, entry = await self._answers.create(
            request, parent_inode, name, mode, flags, opener(ctx)
        )
        return file_info(handle), entry_attributes(entry)

    @handler
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return file_info(await self._answers.open(inode, flags, opener(ctx)))

    @handler
    async def read(self, fh: int, off: int, size: int) -> bytes:
        return await self._fs.ranges.read(self._fs.files.handle(fh), off, size)

    @handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self._fs.ranges.write(self._fs.files.handle(fh), off, buf)

    @handler
    async def flush(self, fh: int) -> None:
        handle = self._fs.files.handle(fh)
        await self._fs.flush(handle, handle.opener)

    @handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._fs.files.fsync(self._fs.files.handle(fh))

    @handler
    async def release(self, fh: int) -> None:
        await self._fs.files.release(self._fs.files.handle(fh))

    # -- open directories ------------------------------------------------------------------------

    @handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return self._fs.listings.open(self._fs.tree.directory(inode)).number

    @handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._fs.listings.get(fh)
        position = start_id
        while batch := await self._fs.listings.batch(listing, position):
            for position, name in batch:
                told = listing.ahead.pop(position, None)
                if told is not None and name in DOTS:
                    reply = dot_attributes(told.ino)
                elif told is None or told.node is None or told.attributes is None:
                    continue  # gone since the listing was made
                else:
                    reply = entry_attributes(Entry.of(told.node, told.attributes))
                if not pyfuse3.readdir_reply(token, name, reply, position + 1):
                    listing.ahead[position] = told
                    return
            position += 1

    @handler
    async def releasedir(self, fh: int) -> None:
        self._fs.listings.release(fh)

    @handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._fs.core.journal.sync()


def caller(ctx: pyfuse3.RequestContext) -> Caller:
    """Who asks."""
    return Caller(ctx.uid, ctx.gid, 0, ctx.umask)


def opener(ctx: pyfuse3.RequestContext) -> Caller:
    """Who writes: whether its process lives, and how it ends, counts."""
    return Caller(ctx.uid, ctx.gid, process_of(ctx.pid), ctx.umask)


def file_info(handle: Handle) -> pyfuse3.FileInfo:
    """The reply to open and create."""
    return pyfuse3.FileInfo(fh=handle.number, keep_cache=handle.keep_cache)


def entry_attributes(found: Entry) -> pyfuse3.EntryAttributes:
    """What the kernel is told of a node."""
    attributes = found.attributes
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = found.node.ino
    entry.generation = 0
    entry.entry_timeout, entry.attr_timeout = found.seconds, found.attr_seconds
    entry.st_mode = attributes.kind.type_bits | attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid, entry.st_gid = attributes.uid, attributes.gid
    entry.st_rdev = attributes.rdev
    entry.st_size = attributes.size
    entry.st_blksize = BLOCK_BYTES
    entry.st_blocks = attributes.blocks
    entry.st_atime_ns = attributes.atime_ns
    entry.st_mtime_ns = attributes.mtime_ns
    entry.st_ctime_ns = attributes.ctime_ns
    return entry


def dot_attributes(ino: int) -> pyfuse3.EntryAttributes:
    """What a listing says of `.` and `..`; the kernel takes no more of them."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino, entry.st_mode = ino, stat.S_IFDIR
    return entry


def changes(attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> Changes:
    """What a setattr asks for."""
    return Changes(
        mode=attr.st_mode & 0o7777 if fields.update_mode else None,
        uid=attr.st_uid if fields.update_uid else None,
        gid=attr.st_gid if fields.update_gid else None,
        size=attr.st_size if fields.update_size else None,
        atime_ns=attr.st_atime_ns if fields.update_atime else None,
        mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
    )


def statvfs_data(st: os.statvfs_result) -> pyfuse3.StatvfsData:
    """The reply to statfs."""
    data = pyfuse3.StatvfsData()
    data.f_bsize, data.f_frsize = st.f_bsize, st.f_frsize
    data.f_blocks, data.f_bfree, data.f_bavail = st.f_blocks, st.f_bfree, st.f_bavail
    data.f_files, data.f_ffree, data.f_favail = st.f_files, st.f_ffree, st.f_favail
    data.f_namemax = st.f_namemax
    return data
