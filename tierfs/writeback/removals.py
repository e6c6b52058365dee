"""Removals of checkpoints that are held back because they would leave nothing whole (G4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import trio

from tierfs.model import ObjectId, Op, OpKind
from tierfs.writeback.rooms import Rooms
from tierfs.writeback.settings import WritebackSettings

FULL = frozenset({"ENOSPC", "EDQUOT"})
"""Reasons of failures that mean that the shared tier is full."""

TAKERS = frozenset({OpKind.PUT, OpKind.SYMLINK, OpKind.LINK, OpKind.RENAME})
"""Ops that need the name of a removed checkpoint for something that is none."""

LOOK_SECONDS = 5.0
"""How often the time that held removals have left is looked at."""


class Removals:
    """How long a removal is held, and what ends that."""

    def __init__(
        self, rooms: Rooms, settings: WritebackSettings, is_full: Callable[[], bool]
    ) -> None:
        self._rooms = rooms
        self.settings = settings
        self._is_full = is_full
        self._purged: set[int] = set()

    def let_go(self, op: Op) -> bool:
        """Whether the removal `op` goes even if it leaves nothing whole."""
        backlog = self._rooms.backlog
        if op.row in self._purged or backlog.is_going(op.scope):
            return True
        if any(one.kind in TAKERS for one in backlog.behind_at(op)):
            return True
        limit = self.settings.full_hold if self._is_full() else self.settings.delete_hold
        return time.time_ns() - op.timestamp_ns >= limit * 1e9

    def sealed(self, directory: ObjectId) -> None:
        """A checkpoint was sealed in `directory`: the removals of others in it may go."""
        backlog = self._rooms.backlog
        for op, _ in list(backlog.held()):
            if op.parent == directory:
                backlog.release_removal(op)

    def purge(self, ops: Iterable[Op]) -> list[Op]:
        """Let the removals among `ops` go now; those that were held."""
        backlog = self._rooms.backlog
        freed = []
        for op in ops:
            if op.kind is OpKind.TRASH:
                self._purged.add(op.row)
                if backlog.is_held(op):
                    backlog.release_removal(op)
                    freed.append(op)
        return freed

    def over(self, op: Op) -> None:
        """`op` is applied or dropped."""
        self._purged.discard(op.row)

    async def run(self, wake: Callable[[], None]) -> None:
        """Let go what has been held long enough, until cancelled."""
        backlog = self._rooms.backlog
        while True:
            await trio.sleep(LOOK_SECONDS)
            due = [op for op, _ in backlog.held() if self.let_go(op)]
            for op in due:
                backlog.release_removal(op)
            if due:
                wake()
