"""How much write-back may do at once: the application comes first, but never for long.

Write-back runs in the process that answers the kernel, and on the same drives. So it begins nothing
new while a burst of requests goes on, then little, and after a while as much as ever: what is
pending does not grow old behind an application that never pauses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

QUIET_SECONDS = 0.1
"""A burst is over when nothing came for so long."""

WRITER_SECONDS = 1.0
"""An open file is being written to for at least so long: passthrough shows nothing of that."""

HOLD_SECONDS = 2.0
"""From the beginning of a burst on nothing is begun for so long,"""

TRICKLE_SECONDS = 60.0
"""and until then one thing at a time,"""

PAUSE_SECONDS = 0.05
"""with such a pause before it: small files would keep the daemon as busy as ever."""


class Pace:
    """Told of what the application does, it says what write-back may do. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = self._until = -math.inf
        self._writers: dict[int, float] = {}
        self._awaited: dict[int, int] = {}
        self._rushes = 0
        self._hurry = trio.Event()

    # -- what the application does -----------------------------------------------------------------

    def touch(self) -> None:
        """It changed something."""
        now = self._clock()
        if now >= self._end():
            self._since = now
        self._until = now + QUIET_SECONDS

    def opened(self, handle: int) -> None:
        """It opened a file for writing."""
        self.touch()
        self._writers[handle] = self._clock()

    def closed(self, handle: int) -> None:
        """It has written what it wanted to write."""
        self._writers.pop(handle, None)
        self.touch()

    # -- who waits for write-back ------------------------------------------------------------------

    @contextmanager
    def rush(self) -> Iterator[None]:
        """Somebody waits for all there is: nothing is held back meanwhile."""
        self._rushes += 1
        self._tell()
        try:
            yield
        finally:
            self._rushes -= 1

    @contextmanager
    def awaiting(self, row: int) -> Iterator[None]:
        """Somebody waits for the op `row`: that one is not held back meanwhile."""
        self._awaited[row] = self._awaited.get(row, 0) + 1
        self._tell()
        try:
            yield
        finally:
            self._awaited[row] -= 1
            if not self._awaited[row]:
                del self._awaited[row]

    @property
    def any_awaited(self) -> bool:
        """Whether `is_awaited` may be true of any op."""
        return bool(self._awaited)

    def is_awaited(self, row: int) -> bool:
        """Whether somebody waits for the op `row`."""
        return row in self._awaited

    # -- what write-back may do --------------------------------------------------------------------

    def width(self, full: int) -> int:
        """Of `full` things at once, how many may go on now."""
        now = self._clock()
        if self._rushes or now >= self._end() or now - self._since >= TRICKLE_SECONDS:
            return full
        return 0 if now - self._since < HOLD_SECONDS else 1

    def seconds(self) -> float:
        """After how long `width` may be another; infinite when only a new burst changes it."""
        now = self._clock()
        times = self._end(), self._since + HOLD_SECONDS, self._since + TRICKLE_SECONDS
        return min((time - now for time in times if time > now), default=math.inf)

    async def change(self) -> None:
        """Returns when `width` may be another, or when somebody begins to wait."""
        hurry = self._hurry
        with trio.move_on_after(self.seconds()):
            await hurry.wait()

    async def breathe(self, full: int) -> None:
        """Returns at once, or after a pause while little may be done and nobody waits."""
        if self.width(full) < full and not self._awaited:
            hurry = self._hurry
            with trio.move_on_after(PAUSE_SECONDS):
                await hurry.wait()

    def _end(self) -> float:
        newest = next(reversed(self._writers.values()), -math.inf)
        return max(self._until, newest + WRITER_SECONDS)

    def _tell(self) -> None:
        self._hurry.set()
        self._hurry = trio.Event()
