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

    def __init__(self) -> None:
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

    def admit(self, limits: Limits, pending: int, age: float) -> list[Waiting]:
        """Those whose turn it is while `pending` bytes wait to be sent, the oldest for `age` s.

        They do not wait any more and count as pending from here on. When nothing is pending the
        first may always go, however large it is.
        """
        admitted = []
        while self._queue:
            first = next(iter(self._queue.values()))
            too_much = 0 < limits.pending_bytes < pending + first.size
            if pending and (too_much or 0 < limits.pending_age < age):
                break
            del self._queue[first.row]
            admitted.append(first)
            pending += first.size
        return admitted
