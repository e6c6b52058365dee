"""Waiting for the next request of a burst: awake, where that is worth it.

To fall asleep and to be woken takes 20 µs and more on another processor, most of all on one of a
virtual machine, which is about what the caller needs until it asks the next. Where it cannot run
meanwhile, as it has our processor, to stay awake would keep it from just that.
"""

from __future__ import annotations

import select
import time

NEXT_SECONDS = 0.0001
"""How soon the next request of a burst comes,"""

AWAKE_SECONDS = 0.00006
"""and how soon where its caller can run."""

LEAST_SLEPT, MOST_SLEPT = 8, 256
"""After so many waits asleep it is tried again whether staying awake is worth it."""

SELECTABLE = 1024
"""select(2) takes descriptors below it (FD_SETSIZE)."""


class Vigil:
    """Decides which waits are spent awake: those that follow one in which the request came.

    One in vain is followed by some asleep, the next in vain by twice as many, and so on.
    """

    def __init__(self) -> None:
        self._to_sleep = 0
        self._next = LEAST_SLEPT

    def is_due(self) -> bool:
        """Whether to stay awake this time."""
        if self._to_sleep:
            self._to_sleep -= 1
            return False
        return True

    def ended(self, *, came: bool) -> None:
        """A wait awake is over; whether the request `came`."""
        if came:
            self._next = LEAST_SLEPT
        else:
            self._to_sleep = self._next
            self._next = min(2 * self._next, MOST_SLEPT)


class NextRequest:
    """Waits for the next request."""

    def __init__(self) -> None:
        self._vigil = Vigil()

    def wait(self, fd: int) -> None:
        """Returns when `fd` can be read, or a moment later; at once if its number is too high."""
        if fd >= SELECTABLE:
            return
        watched = (fd,)
        if not self._vigil.is_due():
            select.select(watched, (), (), NEXT_SECONDS)
            return
        until = time.monotonic() + AWAKE_SECONDS
        while not (came := bool(select.select(watched, (), (), 0)[0])):
            if time.monotonic() >= until:
                break
        self._vigil.ended(came=came)
