"""What a crash left: staging of older generations, and ops whose final call may have happened."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TypeVar

import trio

from tierfs.errors import DirectoryGone
from tierfs.model import Op, OpState, Phase
from tierfs.writeback.actions import Actions
from tierfs.writeback.failures import judge, path_of, pause_seconds
from tierfs.writeback.results import Applied
from tierfs.writeback.retries import GONE_ATTEMPTS
from tierfs.writeback.rooms import Rooms
from tierfs.writeback.settings import WritebackSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

LAST_RETRY_SECONDS = 5.0
"""Everything else waits for it."""


class Recovery:
    """Settles the ops that were loaded in state PUBLISHING.

    First the staging of older generations is moved aside: a thread of a dead process that hangs in
    the kernel could rename out of it even now, and from then on it finds no source. Then each of
    the ops has happened or will never have, and the shared tier is asked which.
    """

    def __init__(self, rooms: Rooms, actions: Actions, settings: WritebackSettings) -> None:
        self._rooms = rooms
        self._actions = actions
        self._settings = settings
        self._unsettled: dict[int, Op] = {}

    def add(self, op: Op) -> None:
        """`op` was loaded in state PUBLISHING; it is not to be taken back any more."""
        op.phase = Phase.PUBLISHING
        self._unsettled[op.row] = op
        self._rooms.backlog.update(op)

    def concerns(self, op: Op) -> bool:
        """Whether it is still to be found out if `op` has happened."""
        return op.row in self._unsettled

    async def retire(self) -> None:
        """Move the staging of older generations aside; tried until it is done."""
        await self._insist("staging", self._rooms.shared.retire_old_generations)

    async def run(self, on_settled: Callable[[Op, Applied | None], None]) -> None:
        """Settle the ops in the order of their numbers, then delete what was moved aside.

        `on_settled(op, applied)` is called for each: `applied` is None when it has not happened;
        it is PENDING again then.
        """
        for op in sorted(self._unsettled.values(), key=lambda op: op.number):
            applied = await self._until_answered(op)
            del self._unsettled[op.row]
            if applied is None:
                op.state, op.phase, op.staged_inode = OpState.PENDING, Phase.QUEUED, None
            on_settled(op, applied)
        await self._insist("staging", self._rooms.shared.sweep)

    async def _until_answered(self, op: Op) -> Applied | None:
        attempts = 0
        while True:
            try:
                applied = await self._actions.outcome(op)
                if applied is not None:
                    await self._actions.put_times_right(op, applied)
                return applied
            except Exception as error:
                attempts += 1
                if isinstance(error, DirectoryGone) and attempts >= GONE_ATTEMPTS:
                    return None  # somebody else took the directory away, and it with it
                await self._pause(path_of(op), error, attempts)

    async def _insist(self, what: str, call: Callable[[], T]) -> T:
        attempts = 0
        while True:
            try:
                return await self._rooms.on_shared(call)
            except OSError as error:
                attempts += 1
                await self._pause(what, error, attempts)

    async def _pause(self, what: str, error: Exception, attempts: int) -> None:
        level = logging.WARNING if attempts == 1 else logging.DEBUG
        log.log(level, "recovery waits: %s", judge(error, what).text)
        settings = self._settings
        await trio.sleep(
            pause_seconds(
                attempts,
                settings.first_retry_seconds,
                min(LAST_RETRY_SECONDS, settings.last_retry_seconds),
                random.random(),
            )
        )
