"""Bytes a second, of late."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 5.0
SLOTS_A_SECOND = 4


class Rate:
    """Mean over the last five seconds; `add` may be called from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._slots: deque[list[int]] = deque()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """`count` bytes have just been sent."""
        slot = int(self._clock() * SLOTS_A_SECOND)
        with self._lock:
            if self._slots and self._slots[-1][0] == slot:
                self._slots[-1][1] += count
            else:
                self._slots.append([slot, count])
            self._trim(slot)

    def value(self) -> float:
        """Bytes a second over the window, or since the start if that is shorter."""
        now = self._clock()
        with self._lock:
            self._trim(int(now * SLOTS_A_SECOND))
            total = sum(count for _, count in self._slots)
        return total / max(min(now - self._started, WINDOW_SECONDS), 1 / SLOTS_A_SECOND)

    def _trim(self, slot: int) -> None:
        while self._slots and self._slots[0][0] <= slot - WINDOW_SECONDS * SLOTS_A_SECOND:
            self._slots.popleft()
