"""Something happened that others wait for; woken, they look for themselves."""

from __future__ import annotations

import trio


class Signal:
    """Who waits for `next`, taken before it looked, misses nothing."""

    def __init__(self) -> None:
        self.next = trio.Event()

    def tell(self) -> None:
        """Wakes all that wait."""
        if self.next.statistics().tasks_waiting:
            self.next.set()
            self.next = trio.Event()
