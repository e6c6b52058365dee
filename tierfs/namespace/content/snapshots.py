"""Sending what is open: a frozen copy goes; what is written later is a version of its own.

For files that stay open (logs; those that a forked process holds), and for calls that return only
when what was written is committed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tierfs.journal import SaveObject, SaveOp
from tierfs.model import Attributes, Kind, ObjectRecord, Op, OpState, Phase
from tierfs.namespace.content.data import Data
from tierfs.namespace.content.opening import Opening
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.finding.pointers import targets_of
from tierfs.namespace.overlay.nodes import Handle, LocalObject, Node

ATTEMPTS = 20
"""How often a file that is opened, renamed and closed all the time is tried to be frozen."""

UNCLOSED = (OpState.OPEN, OpState.CLOSED)


class Snapshots:
    """Frozen copies of open files. `number` gives an op its place in the order, as a FLUSH does."""

    def __init__(
        self, core: Core, lookup: Lookup, data: Data, opening: Opening,
        number: Callable[[Op, Attributes, int], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._lookup = lookup
        self._data = data
        self._opening = opening
        self._number = number
        self._awaited: dict[int, Op] = {}

    async def commit(self, handle: Handle) -> None:
        """Returns when what was written through `handle` so far is committed.

        OSError: it is stuck, or the shared tier is full or read-only; it is pending all the same.
        """
        obj = handle.object
        if obj is None or not handle.writable or handle.node.unlinked:
            return
        op = await self._newest(handle, obj)
        if op is not None:
            self._awaited[handle.node.ino] = op
            try:
                await self._core.writeback.finish(op)
            finally:
                self._awaited.pop(handle.node.ino, None)

    def waits_its_turn(self, node: Node) -> bool:
        """Whether a call on `node` waits for a commit, and files are being sent."""
        op = self._awaited.get(node.ino)
        return (
            op is not None
            and op.phase is not Phase.PUBLISHING
            and self._core.writeback.is_sending()
        )

    async def _newest(self, handle: Handle, obj: LocalObject) -> Op | None:
        """The op that sends what `obj` holds now."""
        for _ in range(ATTEMPTS):
            self._data.judge(obj, await self._data.look(obj))
            op = obj.put
            if op is None or op.state not in UNCLOSED or op.mark is not None:
                return op
            if not is_unsent(obj, op):
                # what was closed before, perhaps under an earlier worker
                return self._core.backlog.before_at(op)
            if (taken := await self.take(handle.node, obj, copying=True)) is not None:
                return taken
        raise OSError(errno.EBUSY, "it is written to all the time", os.fsdecode(_name(handle.node)))

    async def take(
        self, node: Node, obj: LocalObject, *, still: bool = False, copying: bool = False
    ) -> Op | None:
        """Sends `obj`, which is open, as it is now; the op, or None where that cannot be now.

        It goes by reflink; where there is none, only with `copying`. `still`: not if it changed
        since its op was numbered.
        """
        core = self._core
        async with node.lock:
            op = obj.put
            self._data.judge(obj, await self._data.look(obj))
            version = obj.version
            if op is None or node.object is not obj or not self._may_go(obj, op, still=still):
                return None
            clone = await self._data.snapshot(node, copying=copying)
            if clone is None:
                return None
            attributes = await core.of_object(clone.id, core.store.attributes, clone.id, Kind.FILE)
            self._data.judge(obj, await self._data.look(obj))
            op.size = op.size or attributes.size  # what tells a pointer from an empty file
            state = core.tree.directories[op.parent]
            targets = await targets_of(core, self._lookup, state, op, clone)
            same = node.object is obj and obj.put is op
            if not same or not self._may_go(obj, op, still=still):
                core.spare.append(clone)
                return None
            if obj.dirty or op.state is OpState.OPEN:
                obj.dirty = obj.version != version
                self._number(op, attributes, 0)
            op.targets = targets
            core.groups.pointed(targets)
            self._rebind(op, obj, clone)
            self._opening.issue_put(node, obj)
            obj.supersedes = op
        core.writeback.submit(op)
        return op

    def _may_go(self, obj: LocalObject, op: Op, *, still: bool) -> bool:
        if still and (obj.dirty or op.state is not OpState.CLOSED):
            return False
        return op.state in UNCLOSED and op.phase is Phase.QUEUED and op.mark is None

    def _rebind(self, op: Op, obj: LocalObject, clone: LocalObject) -> None:
        obj.pending -= 1
        obj.put = None
        clone.pending += 1
        clone.put = op
        op.object, op.state, op.durable = clone.id, OpState.PENDING, False
        self._core.backlog.update(op)
        record = ObjectRecord(clone.id, clone.kind, True, op.base_inode)
        self._core.journal.post(SaveObject(record), SaveOp(op))


def is_unsent(obj: LocalObject, op: Op) -> bool:
    """Whether `op`, of the open file `obj`, has anything to send."""
    return obj.dirty or op.state is OpState.CLOSED


def _name(node: Node) -> bytes:
    place = node.a_name()
    return b"" if place is None else place[1]
