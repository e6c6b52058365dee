"""Numbers that are never handed out twice, not even after a power cut."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

BLOCK = 100_000
"""How many numbers one durable reservation adds. A block that a crash wastes costs nothing: 2**63
numbers are enough for 10**14 crashes."""


class Numbers:
    """One counter. All numbers below a limit are reserved durably before any is handed out.

    The limit is kept at least one block ahead, and is moved in the background when half of the two
    reserved blocks is used: a caller meets it only by taking a whole block while one fsync runs,
    and then waits for that fsync, since any other answer might be given twice.
    """

    def __init__(self, first: int, limit: int, reserve: Callable[[int], Future[None]]) -> None:
        """Hand out from `first` up to `limit`, which is durable; `reserve` makes another so."""
        self._next = first
        self._limit = limit
        self._reserve = reserve
        self._reservation: Future[None] | None = None

    def take(self) -> int:
        """The next number. JournalError only if the journal has failed and none is left."""
        if self._limit - self._next <= BLOCK:
            self._move_limit()
        number = self._next
        self._next += 1
        return number

    def take_behind(self, held: int) -> int:
        """A number above all that others have: `held`, which is the caller's, if it was the last.

        JournalError as of `take`.
        """
        return held if held == self._next - 1 else self.take()

    def _move_limit(self) -> None:
        if self._reservation is None:
            self._reservation = self._reserve(self._limit + BLOCK)
        if self._reservation.done() or self._next >= self._limit:
            self._reservation.result()
            self._reservation = None
            self._limit += BLOCK
