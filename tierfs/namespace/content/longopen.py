"""Files that stay open: logs, and what a forked process holds (DESIGN 4 and 5, R2, `open_hold`).

A forked child that never touches it keeps a file open for hours: DataLoader workers do. What its
opener closed, and nobody changed since, is sent as a snapshot and counts as closed; whatever is
written later is a version of its own. A log is sent in the same way whenever it has grown.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping

import trio

from tierfs.model import ObjectId, OpState
from tierfs.namespace.content.data import Data
from tierfs.namespace.content.snapshots import Snapshots, is_unsent
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Handle, LocalObject, Node

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class LongOpen:
    """Looks now and then for files that are held open without being written, and for logs."""

    def __init__(self, core: Core, data: Data, snapshots: Snapshots) -> None:
        self._core = core
        self._data = data
        self._snapshots = snapshots
        self._sent: dict[LocalObject, float] = {}

    async def run(self, handles: Mapping[int, Handle]) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            limit = now - self._core.settings.open_hold
            opened = written(handles.values())
            self._sent = {obj: self._sent.get(obj, now) for obj in opened}
            for obj, node in opened.items():
                if is_log(obj):
                    due = self._sent[obj] <= now - self._core.settings.log_interval
                    if due and self._is_sent(obj):  # or there would be more and more of them
                        await self._send_log(node, obj)
                elif closed_before(obj, limit):
                    await self._send_closed(node, obj)

    async def send_logs(self, handles: Iterable[Handle], top: ObjectId) -> None:
        """Sends the logs below the directory `top` that have grown since they were last sent."""
        tree = self._core.tree
        for obj, node in written(handles).items():
            if is_log(obj) and any(tree.is_within(each, top) for each, _ in tree.known_names(node)):
                await self._send_log(node, obj)

    def _is_sent(self, obj: LocalObject) -> bool:
        return obj.supersedes is None or obj.supersedes not in self._core.backlog

    async def _send_log(self, node: Node, obj: LocalObject) -> None:
        self._sent[obj] = time.monotonic()
        try:
            self._data.judge(obj, await self._data.look(obj))
            if obj.put is not None and is_unsent(obj, obj.put):
                await self._snapshots.take(node, obj)
        except OSError as error:
            log.warning("%r is open and cannot be sent: %s", obj.put, error)

    async def _send_closed(self, node: Node, obj: LocalObject) -> None:
        try:
            op = await self._snapshots.take(node, obj, still=True)
        except OSError as error:
            log.warning("%r is open and cannot be sent: %s", obj.put, error)
            return
        if op is not None:
            log.info("%s is still open; what was closed of it is sent", os.fsdecode(op.name))


def written(handles: Iterable[Handle]) -> dict[LocalObject, Node]:
    """The objects that `handles` have open for writing."""
    return {h.object: h.node for h in handles if h.writable and h.object is not None}


def is_log(obj: LocalObject) -> bool:
    """Whether `obj` is a log that is open."""
    return obj.put is not None and obj.put.log


def closed_before(obj: LocalObject, limit: float) -> bool:
    """Whether the content of `obj` was closed before `limit` and is still open somewhere."""
    op = obj.put
    closed = op is not None and op.state is OpState.CLOSED and op.mark is None
    return closed and not obj.dirty and 0 < obj.flushed_at <= limit
