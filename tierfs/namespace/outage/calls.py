"""Calls on the shared tier that somebody waits for: each gets its answer, or EIO after a time.

A call that hangs keeps its thread; the pool starts another one in its place. Who has another
answer to give is `hasty`: it waits no longer than until the tier is known to be silent.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple, Unpack

import trio

from tierfs.health import Health, Reading, Silence, is_failure, name_of
from tierfs.namespace.outage.asking import asker
from tierfs.osio.processes import is_dying
from tierfs.threads import Pool, forget

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE_SECONDS = 1.0
"""How long nothing may be answered until calls with another answer do without the tier."""

HANGS_SECONDS = 5.0
"""From here on a call hangs, and another thread does the work of its own."""

MOST_BEATS = 4

PATIENT_READS = 10
"""So many times `tier_wait` a read may take while others are answered: slow is not dead."""


Late = Callable[[T | None], object]
"""Gets the result of a call that nobody waits for any more, see `Pool.run`."""


class Unanswered(OSError):
    """The shared tier did not answer in time; the call may go on."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the shared tier does not answer")


class SharedCalls:
    """Calls on names of the shared tier, made in `threads`, and on content, in `readers`.

    `tier_wait` tells for how many seconds an application waits.

    Attributes:
        beats: threads that ask the tier something small all the time (`Watch`).
        silence: whether the tier answers at all.
        on_answer: called when a silence is over.
        changes: whether changes of names come back; see `Watch`.
    """

    def __init__(
        self, threads: Pool, readers: Pool, tier_wait: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._threads = threads
        self._readers = readers
        self._tier_wait = tier_wait
        self._clock = clock
        self._health = Health()
        self._hasty: set[trio.CancelScope] = set()
        self._waiting: dict[trio.CancelScope, tuple[int, float]] = {}
        self._reading: dict[trio.CancelScope, float] = {}
        self.silence = Silence(PATIENCE_SECONDS)
        self.changes = Silence(PATIENCE_SECONDS)
        self.on_answer: Callable[[], None] = lambda: None
        self.beats = Pool("beat", MOST_BEATS)
        self.beats.observer = threads.observer = self.observe
        readers.observer = self._read_ended

    @property
    def silent(self) -> bool:
        """Whether the tier is known not to answer."""
        return self.silence.now

    async def run(
        self, call: Callable[[Unpack[Ts]], T], *args: *Ts,
        hasty: bool = False, late: Late[T] = forget,
    ) -> T:  # fmt: skip
        """`call(*args)` in a thread. Unanswered if an application waits for it and nothing
        comes back within `tier_wait`, or, if `hasty`, while the tier is silent.

        `late` gets a result that comes after that; the call must need nothing of its caller.
        """
        if asker() is None:
            return await self._threads.run(call, *args, late=late)
        if hasty and self.silent:
            raise Unanswered
        await trio.lowlevel.checkpoint_if_cancelled()
        job = self._threads.begin(call, *args, late=late)
        if job.answer is not None:  # a limit would cost as much as the call
            at_once: T = job.answer.unwrap()
            return at_once
        with self._limited(hasty):
            result: T = await self._threads.end(job)
            return result
        raise Unanswered

    async def wait(
        self, call: Callable[[Unpack[Ts]], Awaitable[object]], *args: *Ts, hasty: bool = False
    ) -> None:
        """`await call(*args)`, as long as `run` waits."""
        if asker() is None:
            await call(*args)
            return
        with self._limited(hasty):
            await call(*args)
            return
        raise Unanswered

    async def content(
        self, call: Callable[[Unpack[Ts]], T], *args: *Ts,
        hasty: bool = False, late: Late[T] | None = None,
    ) -> T:  # fmt: skip
        """`call(*args)` on content of the tier: it takes as long as that takes.

        Unanswered if an application waits for it and nothing was read for `tier_wait`, or for
        `PATIENT_READS` times as long if others are read, or, if `hasty`, while the tier is silent;
        not without `late`, as in `run`.
        """
        if asker() is None or late is None:
            return await self._readers.run(call, *args, late=late)
        last = trio.current_time() + PATIENT_READS * self._tier_wait()
        with self._limited(hasty) as scope:
            self._reading[scope] = last
            try:
                return await self._readers.run(call, *args, late=late)
            finally:
                del self._reading[scope]
        raise Unanswered

    @contextmanager
    def _limited(self, hasty: bool) -> Iterator[trio.CancelScope]:
        if hasty and self.silent:
            raise Unanswered
        with trio.move_on_after(self._tier_wait()) as scope, self._killable(scope):
            if hasty:
                self._hasty.add(scope)
            try:
                yield scope
            finally:
                self._hasty.discard(scope)

    @contextmanager
    def _killable(self, scope: trio.CancelScope) -> Iterator[None]:
        self._waiting[scope] = asker() or 0, self._clock()
        try:
            yield
        finally:
            del self._waiting[scope]

    # -- watching --------------------------------------------------------------------------------

    def observe(self, seconds: float, error: BaseException | None) -> None:
        """A call on the tier ended after `seconds`."""
        now = self._clock()
        if is_failure(error):
            assert error is not None
            self._health.failed(now, name_of(error))
            if self.silence.failed(now):
                self._fell_silent(name_of(error))
        else:
            self._health.answered(now, seconds)
            if self.silence.answered(now, seconds):
                log.info("the shared tier answers again")
                self.on_answer()

    def _read_ended(self, seconds: float, error: BaseException | None) -> None:
        if is_failure(error):
            self.observe(seconds, error)
        elif error is None:
            limit = trio.current_time() + self._tier_wait()
            for scope, last in self._reading.items():
                scope.deadline = min(limit, last)

    def look(self) -> None:
        """To be called now and then: notes that nothing comes back."""
        now = self._clock()
        for pool in (self._threads, self._readers):
            pool.look(now, HANGS_SECONDS)
        for scope, (thread, since) in list(self._waiting.items()):
            # who is killed while the kernel waits for our answer goes on waiting for it
            if thread and now - since > PATIENCE_SECONDS and is_dying(thread):
                scope.cancel()
        if self.silence.look(now, self._oldest(now)):
            self._fell_silent("nothing comes back")

    def found_again(self) -> None:
        """The tier was detached and is there again: what still hangs, hangs in what it was."""
        for pool in (self._threads, self._readers, self.beats):
            pool.disown()

    def reading(self) -> Reading:
        """How the tier is, as far as these calls tell."""
        now = self._clock()
        hanging = self._threads.hanging(now, HANGS_SECONDS)
        return self._health.read(now, self._oldest(now), hanging)

    def _oldest(self, now: float) -> float:
        return max(self._threads.oldest(now), self.beats.oldest(now))

    def _fell_silent(self, why: str) -> None:
        log.info(
            "the shared tier does not answer (%s): what is local goes on; it is asked again and "
            "again, see tierfs status", why,
        )  # fmt: skip
        for scope in self._hasty:
            scope.cancel()
