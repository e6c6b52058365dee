"""What an open file reads and writes: which object, which version, by the kernel or by us."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import NoReturn

from tierfs.capacity import Written
from tierfs.health import is_failure
from tierfs.journal import SaveOp
from tierfs.model import (
    STALE,
    CleanRecord,
    Mark,
    Name,
    ObjectId,
    Op,
    OpKind,
    OpState,
    Phase,
    Signature,
)
from tierfs.namespace.content.data import Data
from tierfs.namespace.core import Core
from tierfs.namespace.direct import Refusal
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import UNKNOWN_INODE, Content, Entry, Handle, LocalObject, Node
from tierfs.namespace.room.spilling import Spilling
from tierfs.policies import PolicyKind


class Opening:
    """Finds or makes what a handle works on. Its node is locked by the caller.

    Attributes:
        promote: told of each file of policy `cache` that is read from the shared tier.
        promise: finds room on the local tier for what the kernel will write by itself
            (`Eviction.promise`).
    """

    promise: Callable[[int, int, int], Awaitable[bool]]

    def __init__(self, core: Core, lookup: Lookup, data: Data, spilling: Spilling) -> None:
        self._core = core
        self._lookup = lookup
        self._data = data
        self._spilling = spilling
        self.promote: Callable[[Node, Signature], None] = lambda node, signature: None

    async def for_reading(self, handle: Handle) -> None:
        node, core = handle.node, self._core
        if node.object is not None and node.object.content is Content.DATA:
            await self._data.attach(handle)
            return
        inode = node.shared.inode if node.shared is not None else 0
        copy = core.journal.clean_copy_soon(inode)  # while the shared file is opened
        try:
            fd, st = await self._lookup.open_unless_copied(node)
        except OSError as error:
            if not is_failure(error) or not await self._read_unasked(handle):
                raise
            return
        signature = Signature.of(st)
        handle.shared_fd = fd
        clean = await copy.get()
        if node.backing:
            await self._join(handle, signature)
        elif node.object is None and await self._use_clean_copy(
            handle, signature, st.st_nlink, clean
        ):
            handle.shared_fd = -1
            core.closing_shared.add(fd)
        elif signature.size and core.policy(node).kind is PolicyKind.CACHE:
            self.promote(node, signature)
        handle.keep_cache = node.seen == signature
        node.seen = signature

    async def _read_unasked(self, handle: Handle) -> bool:
        """Reads go to the local copy although the shared tier cannot be asked (`outage_reads`)."""
        node = handle.node
        clean = await self._lookup.instead.copy(node)
        if clean is None:
            return False
        held = held_by(node) if node.backing else None
        if held is not None:
            handle.object = held
            await self._data.acquire(held)
        elif node.backing or not await self._use_clean_copy(handle, clean.signature, 1, clean):
            return False
        handle.keep_cache = node.seen == clean.signature
        node.seen = clean.signature
        return True

    async def _join(self, handle: Handle, signature: Signature) -> None:
        """Reads from where the open handles of its node read; OSError(ESTALE) if that is old."""
        core, node = self._core, handle.node
        held = held_by(node)
        if held is None:
            return  # they have the shared file open, too: it is the same inode
        fd, handle.shared_fd = handle.shared_fd, -1
        core.closing_shared.add(fd)
        if held.origin != signature or core.store.spread.is_gone(held.id):
            self._set_aside(node)
        handle.object = held
        await self._data.acquire(held)

    async def _use_clean_copy(
        self, handle: Handle, signature: Signature, links: int, clean: CleanRecord | None
    ) -> bool:
        """Reads go to the local copy while it is of the same state as the shared file (G10)."""
        core, node = self._core, handle.node
        written = node.object is not None and node.object.content is Content.DATA
        if clean is None or clean.signature != signature or written:
            return False
        if core.store.spread.only_far:
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

    async def for_writing(self, node: Node, *, truncate: bool) -> None:
        """Afterwards the node has a data object with an op that will send it."""
        obj = node.object
        if obj is not None and obj.content is Content.DATA and is_in_place(obj):
            if truncate:
                await self.truncate_object(obj, 0)
        elif node.backing:
            await self._write_beside_readers(node, truncate=truncate)
        elif obj is None or obj.content is not Content.DATA or truncate or obj.put is None:
            # never in place: a clean copy, and what was closed before, stay as they are
            fresh = await self._data.new_version(node, keep=not truncate)
            await self._install(node, fresh, dirty=truncate, begun=truncate)
        else:
            await self._reopen_pending(node, obj, obj.put)

    async def _write_beside_readers(self, node: Node, *, truncate: bool) -> None:
        """The kernel reads for open handles, all of the same file: it becomes the new version.

        OSError(ESTALE) when that cannot be, as it is the shared file: the kernel looks the name
        up again and finds another node; those that have the old one open keep what they see.
        """
        held = node.object if node.object is not None else held_by(node)
        gone = held is not None and self._core.store.spread.is_gone(held.id)
        if held is None or held.content is not Content.DATA or gone:
            self._set_aside(node)
        if held is not node.object and held.origin != await self._committed_signature(node):
            self._set_aside(node)
        fresh = await self._data.aside(node, held)
        await self._install(node, fresh, begun=truncate)
        await self._core.dispose_unused(held)
        if truncate:
            await self.truncate_object(fresh, 0)

    def _set_aside(self, node: Node) -> NoReturn:
        self._core.tree.succeed(node)
        raise OSError(errno.ESTALE, "others have an older version of it open")

    async def _committed_signature(self, node: Node) -> Signature:
        return Signature.of((await self._lookup.committed_entry(node)).st)

    async def _reopen_pending(self, node: Node, obj: LocalObject, op: Op) -> None:
        clone = await self._data.reflink(node)
        if clone is not None:
            await self._install(node, clone)
        elif op.phase is Phase.PUBLISHING:
            await self._core.writeback.decided(op)
            await self.for_writing(node, truncate=False)
        elif obj.put is op:
            self._reopen(obj, op)

    async def _install(
        self, node: Node, fresh: LocalObject, *, dirty: bool = False, begun: bool = False
    ) -> None:
        """`begun`: it is, or will be, empty; what that is for comes when the open is answered."""
        old = await self._data.switch(node, fresh)
        fresh.dirty = dirty
        if old is not None:
            fresh.supersedes = old.put
        if begun:
            self._core.memory.begun(fresh.id)
        self.issue_put(node, fresh)
        await self._core.dispose_unused(old)

    def put_again(self, node: Node) -> None:
        """The content of a node that is open for writing will be sent."""
        obj = node.object
        gone = node.unlinked or (obj is not None and obj.scratch)
        if obj is None or not obj.writers or obj.put is not None or gone:
            return
        if (name := node.a_name()) is not None and obj.supersedes is None:
            before = self._core.tree.entry(*name)
            if before is not None and before.object not in (None, obj):
                # its row was not written when the worker died: it is on top of that all the same
                obj.supersedes = before.object.put
        self.issue_put(node, obj)

    def issue_put(self, node: Node, obj: LocalObject) -> None:
        """Issues the op that will send `obj` under the names of `node`: it is open."""
        name = self._core.tree.a_name(node) or node.a_name()
        if name is None:
            return  # nobody can ever find it again: nothing to send
        state = self._core.tree.directories[name[0]]
        entry = state.entries.get(name[1])
        shared_inode = node.shared.inode if node.shared else None
        if entry is not None:
            shared_inode = entry.shared_inode
        overwrites = shared_inode is not None or (entry is not None and is_sent(entry.op))
        others = set(self._core.tree.known_names(node)) - {name}
        if others and overwrites:  # they follow it, so it goes where it is issued, not at its close
            self._core.groups.replace_in(self._core.tree.scope(state.id))
        op, _ = self._core.issue(
            OpKind.PUT, obj, state, name[1], state=OpState.OPEN, base_inode=shared_inode,
            overwrites=overwrites,
        )  # fmt: skip
        op.changed_ns = 0  # the name was there before: its directory does not change
        state.put(name[1], Entry(obj, op, shared_inode))
        for other in others:
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
        if op.mark is not Mark.TORN:  # else it is as it was until something is written
            obj.dirty, obj.left, op.mark = True, None, None
        op.state, op.first, op.durable = OpState.OPEN, 0, False
        op.fields = tuple(field for field in op.fields if field not in ("mode", STALE))
        op.data_version += 1
        self._core.backlog.update(op)
        self._core.journal.post(SaveOp(op))

    # -- passthrough -----------------------------------------------------------------------------

    async def grant(self, handle: Handle) -> None:
        """The kernel gets `handle`: decides whether it reads and writes the file by itself.

        All handles of a node that are open at one time go the same way.
        """
        node, direct, obj = handle.node, self._core.direct, handle.object
        promised = await self._promised(handle)
        first, handle.granted = node.opened == 0, True
        node.opened += 1
        if first and direct.enabled:
            if obj is not None and self._core.store.spread.is_spilled(obj.id):
                direct.refused(Refusal.SPILLED)
            elif not promised:
                direct.refused(Refusal.RESERVE)
            else:
                node.backing = direct.open(obj.fd if obj is not None else handle.shared_fd)
        handle.backing = node.backing
        self.promise_again(handle)
        if direct.enabled and not handle.backing:
            handle.keep_cache = False  # the kernel may have written past these pages before
        if handle.backing and handle.writable and obj is not None and not obj.live:
            obj.live, obj.attributes = True, None
            if not obj.dirty:
                self._data.judge(obj, await self._data.look(obj))
                obj.dirty = False

    def promise_again(self, handle: Handle) -> None:
        """The kernel writes `handle` by itself, or it does not: so it has a promise, or not."""
        promises, node = self._core.promises, handle.node
        if not node.backing:
            promises.over(node.ino, 0)
        elif handle.writable and not promises.has(node.ino):
            promises.take(node.ino, *self._expected(handle))

    async def _promised(self, handle: Handle) -> bool:
        """Whether there is room for all that the kernel would write for `handle` by itself."""
        node = handle.node
        if node.opened or not handle.writable or not self._core.direct.enabled:
            return True
        return await self.promise(node.ino, *self._expected(handle))

    def _expected(self, handle: Handle) -> tuple[int, int]:
        """Bytes that the file is expected to have at its close, and those that it has."""
        core, obj = self._core, handle.object
        path = core.tree.path_of(handle.node)
        expected = core.expected.otherwise if path is None else core.expected.of(path)
        return expected, 0 if obj is None or handle.born is not None else written(core, obj).size

    def let_go(self, handle: Handle) -> None:
        """The kernel has closed `handle`."""
        node = handle.node
        if handle.object is not None and not any(each.writable for each in node.handles):
            self._core.promises.over(node.ino, self._closed_with(handle.object))
        if handle.granted:
            handle.granted = False
            node.opened -= 1
            if node.opened == 0 and node.backing:
                backing, node.backing = node.backing, 0
                # written down first: what is closed must not be given out again
                self._core.memory.handle(handle)
                self._core.memory.flush()
                self._core.direct.close(backing)
            self._core.memory.handle(handle)

    def _closed_with(self, obj: LocalObject) -> int:
        """Its size; 0 where a drive that has failed does not tell: it is closed all the same."""
        try:
            return written(self._core, obj).size
        except OSError:
            return 0

    async def truncate_object(self, obj: LocalObject, size: int) -> None:
        """Sets the size of what is open for writing."""
        self._data.touched(obj)
        await self._spilling.entered(obj)
        with self._spilling.changing(obj):
            await self._core.making(
                obj.id, lambda: self._core.store.set_attributes(obj.id, size=size)
            )
        self._data.touched(obj)


def written(core: Core, obj: LocalObject) -> Written:
    """How an object with open files is now, as the kernel has it in memory."""
    fd = obj.fd if obj.fd >= 0 else obj.write_fd
    if fd < 0:
        return Written(0, 0)
    st = core.os.fstat("room.size", fd)
    return Written(st.st_size, st.st_blocks * 512)


def is_in_place(obj: LocalObject) -> bool:
    """Whether who opens `obj` for writing changes that object itself."""
    return obj.scratch or is_written(obj)


def is_sent(op: Op) -> bool:
    """Whether `op` is one that the shared tier gets."""
    return op.kind is not OpKind.MKNOD


def is_written(obj: LocalObject) -> bool:
    """Whether somebody may be writing to `obj`, a mapping without a handle included."""
    return obj.writers > 0 or obj.settling or (obj.put is not None and obj.put.is_open)


def held_by(node: Node) -> LocalObject | None:
    """The object that the open handles of a passthrough node read, None if the shared file."""
    return next((each.object for each in node.handles if each.object is not None), None)
