"""The shared tier, looked at all the time: whether calls hang, and whether it answers again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import trio

from tierfs.health import (
    MOST_QUESTIONS,
    Content,
    Health,
    Reading,
    State,
    is_failure,
    name_of,
    worse,
)
from tierfs.namespace.outage.calls import HANGS_SECONDS, MOST_BEATS, SharedCalls
from tierfs.shared import SharedTier
from tierfs.threads import Pool, forget

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
BEAT_SECONDS = 1.0
"""How often the tier is asked for something small; at each look while it is silent."""

AGAIN_SECONDS = 10.0
"""Another question is put beside one that is not answered for so long, up to MOST_BEATS."""


class Watch:
    """Watches the calls of everybody on one shared tier.

    Attributes:
        space: what the tier last said of its space, None before it did.
        asked: set when it was asked for the first time.
    """

    def __init__(
        self, shared: SharedTier, calls: SharedCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shared = shared
        self._calls = calls
        self._clock = clock
        self._asked_at = float("-inf")
        self._under_way = 0
        self._told = State.HEALTHY
        self._health = Health()
        self._content = Content()
        self._questions = Pool("ask", MOST_QUESTIONS)
        self._asking = 0
        self._was_lost = False
        self.space: os.statvfs_result | None = None
        self.asked = trio.Event()
        shared.shared_threads.observer = self._changed

    def _tell(self) -> None:
        found = self.read()
        if found.state is not self._told:
            self._told = found.state
            level = logging.WARNING if found.state is State.DOWN else logging.INFO
            reason = f": {found.reason}" if found.reason else ""
            log.log(level, "the shared tier is %s%s", found.state.label, reason)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._look(nursery)
                self._tell()
                await trio.sleep(LOOK_SECONDS)

    def read(self) -> Reading:
        """How the shared tier is."""
        if (lost := self._shared.lost) is not None:
            return Reading(State.DOWN, lost)
        now, pool = self._clock(), self._shared.shared_threads
        found = self._health.read(now, pool.oldest(now), pool.hanging(now, HANGS_SECONDS))
        if found.state >= State.FAILING:
            found = Reading(State.FAILING, f"changes: {found.reason}")
        found = worse(found, self._content.read(now, self._shared.quiet(now)))
        return worse(self._calls.reading(), found)

    def _look(self, nursery: trio.Nursery) -> None:
        now = self._clock()
        self._calls.look()
        shared = self._shared
        pools = shared.shared_threads, shared.transfer_threads, shared.small_threads
        for pool in pools:
            pool.look(now, HANGS_SECONDS)
        is_lost = shared.lost is not None
        if self._was_lost and not is_lost:
            self._calls.found_again()
            for pool in pools:
                pool.disown()
        self._was_lost = is_lost
        self._calls.changes.look(now, self._shared.shared_threads.oldest(now))
        if self._content.is_due(now, shared.quiet(now), self._asking):
            self._asking += 1
            nursery.start_soon(self._ask)
        pause = LOOK_SECONDS if self._calls.silent else BEAT_SECONDS
        if self._under_way:
            pause = AGAIN_SECONDS
        if now - self._asked_at >= pause and self._under_way < MOST_BEATS:
            self._asked_at = now
            self._under_way += 1
            nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        try:
            self.space = await self._calls.beats.run(self._shared.beat, late=forget)
        except OSError:
            return  # the observer has seen it
        finally:
            self._under_way -= 1
            self.asked.set()

    async def _ask(self) -> None:
        try:
            await self._questions.run(self._shared.ask, self._content.taken, late=forget)
        except OSError as error:
            if is_failure(error):
                self._content.failed(name_of(error))
                return
        finally:
            self._asking -= 1
        self._content.answered()

    def _changed(self, seconds: float, error: BaseException | None) -> None:
        now = self._clock()
        if is_failure(error):
            assert error is not None
            self._health.failed(now, name_of(error))
            self._calls.changes.failed(now)
        else:
            self._health.answered(now, seconds)
            self._calls.changes.answered(now, seconds)
