"""Waiting for one op on behalf of a call that returns only when it is committed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import trio

from tierfs.model import Op, Phase
from tierfs.writeback.failures import path_of
from tierfs.writeback.flush import Flushes
from tierfs.writeback.pace import Pace
from tierfs.writeback.retries import Retries
from tierfs.writeback.rooms import Rooms

LOOK_SECONDS = 0.5

ANSWERS = frozenset({"ENOSPC", "EDQUOT", "EROFS"})
"""Failures that are no passing trouble but what the shared tier says: the call says so, too."""


class Through:
    """Waits, and finds the error that the call is to return.

    `changed` gives the event of the next step of any op.
    """

    def __init__(
        self, rooms: Rooms, flushes: Flushes, retries: Retries, pace: Pace,
        changed: Callable[[], trio.Event],
    ) -> None:  # fmt: skip
        self._rooms = rooms
        self._flushes = flushes
        self._retries = retries
        self._pace = pace
        self._changed = changed

    async def finish(self, op: Op) -> None:
        """See :meth:`WriteBack.finish`."""
        with self._pace.rush():
            while self._rooms.alive(op):
                self._raise_refusal(op)
                changed = self._changed()
                result = await self._flushes.wait([op], LOOK_SECONDS, None)
                if result.held or result.open:
                    if op.phase >= Phase.STAGED:
                        return
                    with trio.move_on_after(LOOK_SECONDS):
                        await changed.wait()

    def _raise_refusal(self, op: Op) -> None:
        refused = self._refused(op)
        if refused is None:
            return
        number = getattr(errno, self._retries.reason(refused), errno.EIO)
        said = refused.error or str(refused.mark)
        raise OSError(number, f"{said}; it is tried again", path_of(op))

    def _refused(self, op: Op) -> Op | None:
        """`op`, or one that it waits for, if the call is not to wait for it any longer."""
        at: Op | None = op
        seen: set[int] = set()
        while at is not None and self._rooms.alive(at) and at.row not in seen:
            if self._retries.reason(at) in ANSWERS or (at is op and at.mark is not None):
                return at
            seen.add(at.row)
            blocked = self._rooms.backlog.may_publish(at, self._rooms.clock())
            at = None if blocked is None else blocked.by
        return None
