"""Threads for blocking calls, one pool for each kind of work.

A stalled tier takes the threads of its own pool and no others. trio's own threads would do, at
twice the price for a call: they are looked for, named and counted anew for each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple, Unpack

import outcome
import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Patience(threading.local):
    """How long this thread, that of trio, may wait by itself for the answer of another one.

    To go through trio's loop takes longer than a small call in a thread. So the step in which a
    request is read may wait for its threads, up to a deadline: what is not there by then is waited
    for in the loop.
    """

    _until = 0.0

    def begin(self, seconds: float) -> None:
        """The present step may wait for `seconds` in all."""
        self._until = time.monotonic() + seconds

    def end(self) -> None:
        """No more, also of the step that comes next."""
        self._until = 0.0

    def left(self) -> float:
        """Seconds; 0.0 for none."""
        return max(0.0, self._until - time.monotonic()) if self._until else 0.0


patience = Patience()

DOUBTFUL_CALLS = 64
"""After a call that was not waited out, the next is not waited for; after the one that is tried
then, the next two are not, and so on up to this many: the tier is slow."""


@dataclass(slots=True, eq=False)
class Job:
    """One call. Whoever takes the only item of `claim` carries it out, or cancels it; whoever
    takes that of `result` decides what becomes of its result; whoever takes that of `turn` first,
    the thread when it has the result or the waiting one when it waits no longer, says how it gets
    there: by `ready` or by the loop.

    Attributes:
        cancel: raises Cancelled once its task is cancelled.
        late: gets the result that nobody waits for any more; None: the task has to wait.
        begun: when a thread took it (time.monotonic), 0.0 before.
        counted: it has lasted so long that another thread does the work of its own.
        past: what it asks is gone, see `Pool.disown`.
        ready: released when `answer` is there, None if it comes by the loop.
        answer: the result of a call that was waited for by `ready`.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken
    late: Callable[[Any], object] | None = None
    claim: list[None] = field(default_factory=lambda: [None])
    result: list[None] = field(default_factory=lambda: [None])
    cancel: Callable[[], object] | None = None
    begun: float = 0.0
    counted: bool = False
    past: bool = False
    ready: threading.Lock | None = None
    turn: list[None] = field(default_factory=lambda: [None])
    answer: outcome.Outcome[Any] | None = None

    def wait(self, seconds: float) -> outcome.Outcome[Any] | None:
        """Waits for the result in this thread; None: it will come by the loop."""
        assert self.ready is not None
        if not self.ready.acquire(timeout=seconds):
            if _taken(self.turn):
                return None
            self.ready.acquire()  # the thread is about to give it
        return self.answer

    def give(self, answer: outcome.Outcome[Any]) -> bool:
        """In the thread that made the call: whether its task waits for the result right now."""
        if self.ready is None or not _taken(self.turn):
            return False
        self.answer = answer
        self.ready.release()
        return True


class Jobs:
    """What the threads of a pool have to do, in the order in which it came; None ends one thread.

    A job wakes one thread, the one that has rested for the shortest time: what it needs is still
    in the caches of its processor. queue.SimpleQueue wakes a second one with each, which finds
    nothing and takes the interpreter from the first. What stands between two calls here is made
    whole by the interpreter's lock.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job | None] = deque()
        self._resting: list[threading.Lock] = []

    def put(self, job: Job | None) -> None:
        """Adds one."""
        self._waiting.append(job)
        with contextlib.suppress(IndexError):
            self._resting.pop().release()

    def get(self, rest: threading.Lock) -> Job | None:
        """Waits for the next one on `rest`, an acquired lock of the calling thread's own."""
        while True:
            try:
                return self._waiting.popleft()
            except IndexError:
                self._resting.append(rest)
            # A job may have come before it could see this thread.
            if not self._waiting or not self._takes_back(rest):
                rest.acquire()

    def _takes_back(self, rest: threading.Lock) -> bool:
        """False: it is about to be released."""
        try:
            self._resting.remove(rest)
        except ValueError:
            return False
        return True


class _Current(threading.local):
    job: Job | None = None


_current = _Current()


def check_cancelled() -> None:
    """In a call that a pool carries out: raises Cancelled if nobody wants its result any more."""
    job = _current.job
    if job is not None and job.cancel is not None:
        job.cancel()


def forget(result: object) -> None:
    """For `Pool.run`: a result that comes late is let go."""


Observer = Callable[[float, BaseException | None], None]


class Pool:
    """Up to `width` threads, started when they are needed, ended with the pool.

    `nice` is added to the priority of the process (setpriority(2)); what may not be raised stays.
    `prepare` is called in each thread before its first call. Calls that hang have other threads
    started in the place of their own, `spare` at the most (see `look`).

    Attributes:
        observer: told of each call that ends: the seconds that it took, and its error.
        ended: when the last one did (time.monotonic).
    """

    def __init__(
        self, name: str, width: int, *, nice: int = 0, spare: int = 0,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.name = name
        self.width = width
        self.observer: Observer | None = None
        self.ended = 0.0
        self._nice = nice
        self._prepare = prepare
        self._spare = spare
        self._queue = Jobs()
        self._threads = 0
        self._lost = 0
        self._doubtful = 0
        self._doubt = 1
        self._jobs: set[Job] = set()

    async def run(
        self, call: Callable[[Unpack[Ts]], T], *args: *Ts,
        late: Callable[[T | None], object] | None = None,
    ) -> T:  # fmt: skip
        """`call(*args)` in a thread; what it raises is raised here.

        Can be cancelled while it waits for a thread, then only by `check_cancelled`. With `late`
        it can be cancelled at any time: the call goes on, and once it is over `late` gets its
        result on the trio thread, None if it failed or was never made. The call must then need
        nothing that its caller lets go of.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        job = self.begin(call, *args, late=late)
        result: T = await self.end(job)
        return result

    def begin(
        self, call: Callable[[Unpack[Ts]], T], *args: *Ts,
        late: Callable[[T | None], object] | None = None,
    ) -> Job:  # fmt: skip
        """The first half of `run`; the task has to go on to `end`. `Job.answer` may be there."""
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        job = Job(call, args, task, token, late)
        self._jobs.add(job)
        if len(self._jobs) > self._threads and self._threads < self.width + self._lost:
            self._start()
        seconds = self._patience()
        if seconds:
            job.ready = threading.Lock()
            job.ready.acquire()
        self._queue.put(job)
        if seconds:
            answer = job.wait(seconds)
            if answer is not None:
                self._doubt = 1
                self._over(job, answer)
            else:
                self._doubtful = self._doubt
                self._doubt = min(2 * self._doubt, DOUBTFUL_CALLS)
        return job

    async def end(self, job: Job) -> Any:
        """The second half of `run`."""
        if job.answer is not None:
            return job.answer.unwrap()
        lowlevel = trio.lowlevel

        def abort(cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            job.cancel = cancel
            if _taken(job.claim):
                self._jobs.discard(job)
                if job.late is not None:
                    job.late(None)
                return lowlevel.Abort.SUCCEEDED
            left = job.late is not None and _taken(job.result)
            return lowlevel.Abort.SUCCEEDED if left else lowlevel.Abort.FAILED

        return await lowlevel.wait_task_rescheduled(abort)

    def _patience(self) -> float:
        seconds = patience.left()
        if seconds and self._doubtful:
            self._doubtful -= 1
            return 0.0
        return seconds

    def oldest(self, now: float) -> float:
        """For how many seconds the oldest call that a thread has taken lasts; `now`: monotonic."""
        return max((now - job.begun for job in self._at_work()), default=0.0)

    def hanging(self, now: float, seconds: float) -> int:
        """How many calls have lasted for longer than `seconds`."""
        return sum(now - job.begun > seconds for job in self._at_work())

    def _at_work(self) -> Iterator[Job]:
        return (job for job in self._jobs if job.begun and not job.past)

    def disown(self) -> None:
        """What threads are at now says nothing of what is asked from now on: its tier is gone."""
        for job in self._jobs:
            job.past = job.past or bool(job.begun)

    def look(self, now: float, seconds: float) -> None:
        """Makes up for the threads whose calls have lasted for longer than `seconds`."""
        for job in self._jobs:
            hangs = job.begun and now - job.begun > seconds and not job.counted
            if hangs and self._lost < self._spare:
                job.counted = True
                self._lost += 1
                if len(self._jobs) > self._threads:
                    self._start()

    def _start(self) -> None:
        self._threads += 1
        name = f"{self.name}-{self._threads}"
        threading.Thread(
            target=_work,
            args=(self._queue, self._nice, self._prepare, weakref.WeakMethod(self._ended)),
            name=name,
            daemon=True,
        ).start()
        weakref.finalize(self, self._queue.put, None)

    def _ended(self, job: Job, result: outcome.Outcome[Any], waited: bool) -> None:
        """A thread is done with `job`; `waited`: its task waits for the result."""
        self._over(job, result)
        if waited:
            trio.lowlevel.reschedule(job.task, result)
        elif job.late is not None:
            job.late(result.value if isinstance(result, outcome.Value) else None)

    def _over(self, job: Job, result: outcome.Outcome[Any]) -> None:
        self._jobs.discard(job)
        if job.counted:
            self._lost -= 1
            if self._threads > self.width + self._lost:
                self._threads -= 1
                self._queue.put(None)
        self.ended = time.monotonic()
        if self.observer is not None:
            error = result.error if isinstance(result, outcome.Error) else None
            self.observer(self.ended - job.begun, error)


def _taken(item: list[None]) -> bool:
    try:
        item.pop()
    except IndexError:
        return False
    return True


def _work(
    jobs: Jobs, nice: int, prepare: Callable[[], None], ended: weakref.WeakMethod[Any]
) -> None:
    prepare()
    if nice:
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice)
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    rest = threading.Lock()
    rest.acquire()
    while (job := jobs.get(rest)) is not None:
        if _taken(job.claim):
            _current.job = job
            job.begun = time.monotonic()
            result = outcome.capture(job.call, *job.args)
            if not job.give(result):
                with contextlib.suppress(trio.RunFinishedError):
                    job.token.run_sync_soon(_end, ended, job, result, _taken(job.result))
            del result
        _current.job = None
        del job


def _end(
    ended: weakref.WeakMethod[Any], job: Job, result: outcome.Outcome[Any], waited: bool
) -> None:
    told = ended()
    if told is not None:
        told(job, result, waited)
    elif waited:
        trio.lowlevel.reschedule(job.task, result)
