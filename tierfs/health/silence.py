"""Whether a tier is asked at all: faster than the state that people see, in both directions."""

from __future__ import annotations

GOOD_ANSWERS = 3
"""So many in a row, none of them slow, end a silence."""


class Silence:
    """Says that a tier does not answer, so that who has another answer need not wait for it.

    It begins when a call has lasted for `patience` seconds and nothing was answered meanwhile, or
    with an error of the tier; it ends with `GOOD_ANSWERS` answers in a row.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._answered = float("-inf")
        self._good = 0
        self.since: float | None = None

    @property
    def now(self) -> bool:
        """Whether the tier is silent."""
        return self.since is not None

    def answered(self, now: float, seconds: float) -> bool:
        """A call was answered; whether this ends a silence."""
        self._answered = now
        if self.since is None:
            return False
        self._good = self._good + 1 if seconds < self._patience else 0
        if self._good < GOOD_ANSWERS:
            return False
        self.since = None
        return True

    def failed(self, now: float) -> bool:
        """A call failed as calls on a broken tier do; whether this begins a silence."""
        return self._begin(now)

    def look(self, now: float, oldest: float) -> bool:
        """`oldest`: how long the oldest call lasts; whether a silence begins."""
        if min(oldest, now - self._answered) < self._patience:
            return False
        return self._begin(now)

    def _begin(self, now: float) -> bool:
        self._good = 0
        if self.since is not None:
            return False
        self.since = now
        return True
