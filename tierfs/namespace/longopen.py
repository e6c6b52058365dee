"""Files that stay open long after their writer closed them (DESIGN 5, R2, `open_hold`).

A forked child that never touches it keeps a file open for hours: DataLoader workers do. What its
opener closed, and nobody changed since, is sent as a snapshot and counts as closed; whatever is
written later is a version of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping

import trio

from tierfs.journal import SaveObject, SaveOp
from tierfs.model import ObjectRecord, Op, OpState, Phase
from tierfs.namespace.core import Core
from tierfs.namespace.data import Data
from tierfs.namespace.nodes import Handle, LocalObject, Node
from tierfs.namespace.opening import Opening

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class LongOpen:
    """Looks now and then for files that are held open without being written."""

    def __init__(self, core: Core, data: Data, opening: Opening) -> None:
        self._core = core
        self._data = data
        self._opening = opening

    async def run(self, handles: Mapping[int, Handle]) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            limit = time.monotonic() - self._core.settings.open_hold
            for handle in list(handles.values()):
                obj = handle.object
                if handle.writable and obj is not None and closed_before(obj, limit):
                    try:
                        await self._send(handle.node, obj)
                    except OSError as error:
                        log.warning("%r is open and cannot be sent: %s", obj.put, error)

    async def _send(self, node: Node, obj: LocalObject) -> None:
        """Gives the pending op a frozen copy, and the open file an op of its own."""
        core, op = self._core, obj.put
        async with node.lock:
            before = await self._data.look(obj)
            clone = await self._data.reflink(node) if node.object is obj else None
            if op is None or clone is None:
                return
            self._data.judge(obj, await self._data.look(obj))
            changed = obj.dirty or obj.put is not op or op.phase is not Phase.QUEUED
            if changed or before.size != op.size or op.state is not OpState.CLOSED:
                core.spare.append(clone)
                return
            self._rebind(op, obj, clone)
            self._opening.issue_put(node, obj)
            obj.supersedes = op
        core.writeback.submit(op)
        log.info("%s is still open; what was closed of it is sent", os.fsdecode(op.name))

    def _rebind(self, op: Op, obj: LocalObject, clone: LocalObject) -> None:
        obj.pending -= 1
        obj.put = None
        clone.pending += 1
        clone.put = op
        op.object, op.state, op.durable = clone.id, OpState.PENDING, False
        self._core.backlog.update(op)
        record = ObjectRecord(clone.id, clone.kind, True, op.base_inode)
        self._core.journal.post(SaveObject(record), SaveOp(op))


def closed_before(obj: LocalObject, limit: float) -> bool:
    """Whether the content of `obj` was closed before `limit` and is still open somewhere."""
    op = obj.put
    closed = op is not None and op.state is OpState.CLOSED and op.mark is None
    return closed and not obj.dirty and 0 < obj.flushed_at <= limit
