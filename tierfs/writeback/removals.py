"""Removals: those of checkpoints that are held back (G4), those that are to make room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

import trio

from tierfs.model import Name, ObjectId, Op, OpKind
from tierfs.writeback.results import Held
from tierfs.writeback.rooms import Rooms
from tierfs.writeback.settings import WritebackSettings

FULL = frozenset({"ENOSPC", "EDQUOT"})
"""Reasons of failures that mean that the shared tier is full."""

LOOK_SECONDS = 5.0
"""How often the time that held removals have left is looked at."""


class Removals:
    """How long a removal is held, and what ends that."""

    def __init__(
        self, rooms: Rooms, settings: WritebackSettings, is_full: Callable[[], bool],
        is_group: Callable[[Name], bool],
    ) -> None:  # fmt: skip
        self._rooms = rooms
        self._is_group = is_group
        self.settings = settings
        self._is_full = is_full
        self._purged: set[int] = set()
        self._named_by: dict[int, Name] = {}
        self._newer: dict[int, set[ObjectId]] = {}

    def let_go(self, op: Op) -> bool:
        """Whether the removal `op` goes even if it leaves nothing whole."""
        backlog = self._rooms.backlog
        if op.row in self._purged or backlog.is_going(op.scope):
            return True
        if op.kind is OpKind.TRASH and backlog.is_needed(op):
            return True
        limit = self.settings.full_hold if self._is_full() else self.settings.delete_hold
        return time.time_ns() - op.timestamp_ns >= limit * 1e9

    def told(self, op: Op, reason: str) -> str:
        """`reason`, for which `op` is held; when the shared tier is full also for how long still,
        and what to do: its room may be all that is missing.
        """
        if not self._is_full():
            return reason
        left = max(0.0, self.settings.full_hold - (time.time_ns() - op.timestamp_ns) / 1e9)
        return (
            f"{reason}; the shared tier is full: it goes in {left:.0f} s, by tierfs purge at once"
        )

    def check_pointers(self, op: Op, pointers: Iterable[Name]) -> None:
        """Raise Held while one of `pointers`, which lead to what `op` removes, is to change.

        Its next version may have come after the removal, when one issued before was given up for
        it: without this the pointer would lead to nothing until then.
        """
        for name in pointers:
            if self._rooms.backlog.of_name(op.parent, name) is not None:
                self._named_by[op.row] = name
                raise Held(f"{os.fsdecode(name)} names it, and its next version is not committed")

    def going(self, op: Op) -> list[Op]:
        """The removals beside `op` of what is not to be counted on when `op` asks for another.

        Not of what was sealed after `op` was issued: its own removal is held when `op` has gone.
        That can be no matter of what this process has seen where both have one name: the later
        one waits for `op`, so `op` could not be held for its sake.
        """
        newer = self._newer.get(op.row, ())
        return [
            one for one in self._rooms.backlog.trashes_in(op.parent)
            if one.object not in newer and not (one.name == op.name and one.number > op.number)
        ]  # fmt: skip

    def published(self, made: Op) -> None:
        """`made` is committed: if that publishes a checkpoint, the removals beside it may go."""
        renamed = made.kind is OpKind.RENAME and self._is_group(made.name)
        if made.kind is not OpKind.SEAL and not renamed:
            return
        backlog, directory = self._rooms.backlog, made.parent
        for op in backlog.trashes_in(directory):
            if op.number < made.number:
                self._newer.setdefault(op.row, set()).add(made.object)
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
        self._named_by.pop(op.row, None)
        self._newer.pop(op.row, None)
        if not self._named_by:
            return
        ends = {(op.parent, op.name), (op.parent2, op.name2)}
        backlog = self._rooms.backlog
        for held, _ in list(backlog.held()):
            if (held.parent, self._named_by.get(held.row)) in ends:
                del self._named_by[held.row]
                backlog.release_removal(held)

    async def run(self, wake: Callable[[], None]) -> None:
        """Let go what has been held long enough, until cancelled."""
        backlog = self._rooms.backlog
        while True:
            await trio.sleep(LOOK_SECONDS)
            due = [op for op, _ in backlog.held() if self.let_go(op)]
            for op in due:
                backlog.release_removal(op)
            if due or self._make_room():
                wake()

    def _make_room(self) -> bool:
        """Has removals go before the saves that they would make room for; whether there are any.

        One of a checkpoint at once: it is held if it leaves nothing whole. Others may take the
        old version of what does not fit, so only when that has not changed for `full_hold`.
        """
        if not self._is_full():
            self._rooms.backlog.let_none_pass()
            return False
        now, found = time.time_ns(), False
        for op in self._rooms.backlog.waiting_removals():
            limit = 0.0 if op.kind is OpKind.TRASH else self.settings.full_hold
            if now - op.timestamp_ns >= limit * 1e9:
                self._rooms.backlog.let_pass(op)
                found = True
        return found
