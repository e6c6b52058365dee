"""The places of the lanes: an op that hangs keeps its thread, and holds up nobody else.

What hangs is what has not moved for long, be it one file of a tier that is well otherwise. Its
place goes to the next op, and is not given back when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from tierfs.model import Op

LOOK_SECONDS = 5.0

MOST_GIVEN = 32
"""So many places may be given away at a time: each is a thread that hangs."""


@dataclass(slots=True)
class _Place:
    op: Op
    room: trio.Semaphore
    since: float
    given: bool = False


class Slots:
    """`moved(op)` tells when the op last moved (clock seconds), `hangs()` after how many seconds
    without that it hangs.
    """

    def __init__(
        self, clock: Callable[[], float], moved: Callable[[Op], float], hangs: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._moved = moved
        self._hangs = hangs
        self._taken: dict[int, _Place] = {}

    @contextmanager
    def taken(self, op: Op, room: trio.Semaphore) -> Iterator[None]:
        """`op` has a place in `room` inside."""
        place = self._taken[op.row] = _Place(op, room, self._clock())
        try:
            yield
        finally:
            del self._taken[op.row]
            if not place.given:
                room.release()

    async def run(self) -> None:
        """Gives places away, until cancelled."""
        while True:
            await trio.sleep(min(LOOK_SECONDS, self._hangs() / 4))
            self._look()

    def _look(self) -> None:
        limit = self._clock() - self._hangs()
        given = sum(place.given for place in self._taken.values())
        for place in list(self._taken.values()):
            if place.given or given >= MOST_GIVEN:
                continue
            if max(place.since, self._moved(place.op)) < limit:
                place.given = True
                given += 1
                place.room.release()
