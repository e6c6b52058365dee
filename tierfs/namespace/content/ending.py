"""What becomes of a file that was written: numbered, and handed over when nobody writes any more.

The RELEASE of the last writer is not the end where the kernel still writes by itself (passthrough,
mappings): such a file is told to `on_unsettled` and looked at again.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tierfs.journal import SaveClean, SaveOp
from tierfs.model import UNDECIDED, Attributes, CleanRecord, Op, OpState, Phase
from tierfs.namespace.content.data import Data
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.finding.pointers import targets_of
from tierfs.namespace.overlay.nodes import LocalObject, Node
from tierfs.namespace.room.drive import Drive

LET_GO_TRIES = 5
LET_GO_SECONDS = 0.001
"""How often and how long apart it is asked whether the kernel has let go of a closed file."""


class Ending:
    """From the last close to the op that may be sent."""

    def __init__(
        self, core: Core, lookup: Lookup, data: Data, drive: Drive,
        on_unsettled: Callable[[Node, LocalObject], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._lookup = lookup
        self._data = data
        self._drive = drive
        self._on_unsettled = on_unsettled

    async def writers_left(self, node: Node, obj: LocalObject) -> None:
        """The last writer of `obj` is gone; a mapping may be left."""
        try:
            await self._data.end_writing(obj)
            if not obj.live or self.settled(obj):
                await self.written(node, obj)
            else:
                if not obj.settling:
                    obj.settling = True
                    obj.users += 1
                self._on_unsettled(node, obj)
        except OSError as error:
            self._drive.doubtful(obj, error)

    async def let_settle(self, node: Node) -> None:
        """Gives the kernel the moment that it needs to let go of a file that was just closed.

        What is opened again before that would count as never closed, and its content until then
        as never complete.
        """
        for handle in list(node.handles):
            if handle.leaving is not None:
                await handle.leaving.wait()
        obj = node.object
        for _ in range(LET_GO_TRIES):
            if obj is None or not obj.settling or obj.writers:
                return
            if await self.settle(node, obj, mapped=False):
                return
            await trio.sleep(LET_GO_SECONDS)

    def settled(self, obj: LocalObject) -> bool:
        """Whether the kernel does not write to `obj` any more, through a mapping either.

        RELEASE does not say so: stores through a mapping go on after it (KERNEL_PATH.md).
        """
        if not self._core.os.has_no_writer("settle.lease", obj.fd):
            return False
        attributes = self._core.store.attributes_of(obj.fd)
        self._data.judge(obj, attributes)
        obj.live, obj.attributes = False, attributes
        return True

    async def settle(self, node: Node, obj: LocalObject, *, mapped: bool) -> bool:
        """Looks again at a file of which `on_unsettled` was told; whether that is over.

        `mapped`: it was held for so long that it was a mapping, whose later stores leave no mtime.
        For somebody to decide on what is torn that says too little.
        """
        core = self._core
        async with node.lock:
            if not obj.settling:
                return True
            if obj.live and not obj.writers:
                try:
                    if not self.settled(obj):
                        return False
                    obj.dirty = obj.dirty or (mapped and not _is_undecided(obj))
                    await self.written(node, obj)
                except OSError as error:
                    self._drive.doubtful(obj, error)
            obj.settling = False
            await self._data.release(obj)
            await core.dispose_unused(obj)
        await core.discard_unused(node)
        return True

    async def written(self, node: Node, obj: LocalObject) -> None:
        """No writer is left: the op may go, or is dropped when nothing was changed."""
        core, op = self._core, obj.put
        if op is None:
            return
        if obj.dirty:
            attributes = await self._data.look(obj)
            if obj.writers or obj.put is not op:
                return
            obj.dirty = False
            self.number(op, attributes)
        if op.state is OpState.OPEN:
            await self._unchanged(node, obj, op)
            return
        op.targets = await targets_of(core, self._lookup, core.tree.directories[op.parent], op, obj)
        if obj.writers or obj.put is not op:
            return
        if op.state is OpState.CLOSED:
            op.state = OpState.PENDING
            core.groups.pointed(op.targets)
            core.backlog.update(op)
            core.journal.post(SaveOp(op), later=True)
            core.writeback.submit(op)
            self._drop_superseded(obj, op)
            core.groups.released(op.scope)

    def number(self, op: Op, attributes: Attributes, process: int = 0) -> None:
        """Gives a flushed file its place in the order (DESIGN 5: that of its last FLUSH)."""
        if (op.base_inode is not None or op.overwrites) and not op.log:
            self._core.groups.replace_in(op.scope, process)
        self._core.groups.note(op)
        op.size, op.durable = attributes.size, False
        if op.state is OpState.OPEN:
            op.state = OpState.CLOSED
        self._core.backlog.renumber(op, self._core.journal.number_behind(op.number))

    def _drop_superseded(self, obj: LocalObject, op: Op) -> None:
        """An older state may be skipped while nothing but this newer one waits for it."""
        old, obj.supersedes = obj.supersedes, None
        core = self._core
        if old is None or old not in core.backlog or old.phase is Phase.PUBLISHING:
            return
        if old.phase is not Phase.QUEUED and not old.attempts:
            return  # else what is written again and again would never be sent to its end
        if not core.backlog.depended(old, besides=op):
            core.drop_op(old)
            core.spare.append(core.tree.objects[old.object])

    async def _unchanged(self, node: Node, obj: LocalObject, op: Op) -> None:
        """Opened for writing and closed without a change: nothing to send, the copy is clean."""
        core = self._core
        if self._is_committed_as_it_is(obj, op):
            assert obj.origin is not None
            copy = await core.journal.clean_copy(obj.origin.inode)
            if obj.put is not op:
                return
            if self._is_committed_as_it_is(obj, op):
                self._clean_again(obj, op)
                if copy is not None and copy.object != obj.id:
                    await self._data.drop_copy(copy.object)
                return
        attributes = await core.of_object(obj.id, core.store.attributes, obj.id)
        if obj.writers or obj.put is not op:
            return
        self.number(op, attributes)
        op.state = OpState.PENDING
        before = obj.supersedes
        if before is not None and before.mark in UNDECIDED:
            op.mark, op.error = before.mark, before.error  # it still has what was not decided
        core.backlog.update(op)
        core.journal.post(SaveOp(op))
        core.writeback.submit(op)
        self._drop_superseded(obj, op)

    def _clean_again(self, obj: LocalObject, op: Op) -> None:
        core = self._core
        assert obj.origin is not None
        clean = CleanRecord(obj.origin, obj.id, None, obj.origin.size, op.timestamp_ns)
        obj.clean = not core.store.spread.is_spilled(obj.id)
        core.tree.directories[op.parent].drop(op.name)
        core.drop_op(op)
        if obj.clean:
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


def _is_undecided(obj: LocalObject) -> bool:
    """Whether `obj` is torn or suspect, or was opened on top of what is."""
    before, op = obj.supersedes, obj.put
    return any(each is not None and each.mark in UNDECIDED for each in (before, op))
