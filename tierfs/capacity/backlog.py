"""How much may be pending: closes wait while it is more (`max_pending_bytes`, `max_pending_age`).

Only what can be sent without the file that waits is counted: else both would wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes, and greatest age in seconds, of what is pending; 0: any."""

    pending_bytes: int = 0
    pending_age: float = 0.0

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self.pending_bytes or self.pending_age)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One close that waits its turn: its row, its bytes."""

    row: int
    size: int


class Turns:
    """Who may close next: the first that came, whatever the sizes. Rows are those of ops."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._queue: OrderedDict[int, Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def come(self, waiting: Waiting) -> None:
        """A close wants to return."""
        self._queue[waiting.row] = waiting

    def leave(self, row: int) -> None:
        """It does not wait any more."""
        self._queue.pop(row, None)

    def is_in(self, row: int) -> bool:
        """Whether it still waits."""
        return row in self._queue

    def admit(self, pending: int, oldest: float) -> list[int]:
        """The rows whose turn it is while `pending` bytes wait to be sent, for `oldest` seconds.

        They do not wait any more and count as pending from here on. When nothing is pending the
        first may always go, however large it is.
        """
        admitted = []
        while self._queue:
            first = next(iter(self._queue.values()))
            if pending and self._exceeds(pending + first.size, oldest):
                break
            del self._queue[first.row]
            admitted.append(first.row)
            pending += first.size
        return admitted

    def _exceeds(self, pending: int, oldest: float) -> bool:
        limits = self.limits
        too_much = 0 < limits.pending_bytes < pending
        return too_much or 0 < limits.pending_age < oldest
