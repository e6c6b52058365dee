"""A limit on what all transfers together move, and whose turn it is to move the next piece."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SLICE_SECONDS = 0.05
"""A piece takes about so long at the rate, so that nobody waits long for the piece before."""

SMALLEST_SLICE = 64 << 10
"""However low the rate: smaller pieces cost the device more than they are worth."""

BURST_SECONDS = 0.1
"""What was not used for longer than this is lost."""

LOOK_SECONDS = 0.2
"""How often a thread that waits looks whether anybody still wants what it does."""

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Share:
    """The part of one transfer; any number of its threads may ask for it.

    `at` counts the bytes that it was granted, and what it missed before it came.
    """

    bandwidth: Bandwidth
    at: float = 0.0

    def take(self, wanted: int, check: Callable[[], None]) -> int:
        """Waits for its turn; of `wanted` bytes (more than 0), how many may be moved now.

        All of them, or a multiple of SMALLEST_SLICE. `check` is called while it waits; what that
        raises ends the waiting.
        """
        return self.bandwidth.take(self, wanted, check)


class Bandwidth:
    """A token bucket, filled by `rate` bytes a second, that threads wait at.

    The next piece goes to the transfer that was granted the least since it came: so all get the
    same, and one that just came, and wants little, is next. `clock` is monotonic.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._rate = 0
        self._level = 0.0
        self._filled = clock()
        self._at = 0.0
        self._numbers = itertools.count()
        self._waiting: dict[int, Share] = {}

    @property
    def rate(self) -> int:
        """Bytes a second; 0: no limit. May be set at any time."""
        return self._rate

    @rate.setter
    def rate(self, rate: int) -> None:
        with self._changed:
            self._fill()
            self._rate = rate
            self._level = max(self._level, -rate * BURST_SECONDS)  # a debt of a higher rate
            self._changed.notify_all()

    def share(self) -> Share:
        """For a transfer that begins."""
        return Share(self)

    def take(self, share: Share, wanted: int, check: Callable[[], None]) -> int:
        """See :meth:`Share.take`."""
        with self._changed:
            if not self._rate:
                return wanted
            number = next(self._numbers)
            share.at = max(share.at, self._at)
            self._waiting[number] = share
            try:
                while (pause := self._pause(number)) > 0:
                    self._changed.wait(min(pause, LOOK_SECONDS))
                    check()
                return self._grant(share, wanted)
            finally:
                del self._waiting[number]
                self._changed.notify_all()

    def _pause(self, number: int) -> float:
        """Seconds until it may be the turn of `number`; 0: now; infinite: others come first."""
        if not self._rate:
            return 0.0
        self._fill()
        first = min(self._waiting, key=lambda each: (self._waiting[each].at, each))
        if first != number:
            return math.inf
        return max(0.0, -self._level / self._rate)

    def _grant(self, share: Share, wanted: int) -> int:
        if not self._rate:
            return wanted
        size = max(SMALLEST_SLICE, int(self._rate * SLICE_SECONDS))
        granted = min(wanted, size - size % SMALLEST_SLICE)
        self._level -= granted
        self._at = share.at
        share.at += granted
        return granted

    def _fill(self) -> None:
        now = self._clock()
        full = self._rate * BURST_SECONDS
        self._level = min(full, self._level + (now - self._filled) * self._rate)
        self._filled = now
