"""Threads for blocking calls, one pool for each kind of work.

A stalled tier takes the threads of its own pool and no others. trio's own threads would do, at
twice the price for a call: they are looked for, named and counted anew for each.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple, Unpack

import outcome
import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class _Job:
    """One call. Whoever takes the only item of `claim` carries it out, or cancels it.

    `cancel` raises Cancelled once its task is cancelled.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken
    claim: list[None] = field(default_factory=lambda: [None])
    cancel: Callable[[], object] | None = None


_Queue = queue.SimpleQueue[_Job | None]


class _Current(threading.local):
    job: _Job | None = None


_current = _Current()


def check_cancelled() -> None:
    """In a call that a pool carries out: raises Cancelled if nobody wants its result any more."""
    job = _current.job
    if job is not None and job.cancel is not None:
        job.cancel()


class Pool:
    """Up to `width` threads, started when they are needed, ended with the pool.

    `nice` is added to the priority of the process (setpriority(2)); what may not be raised stays.
    `prepare` is called in each thread before its first call.
    """

    def __init__(
        self, name: str, width: int, *, nice: int = 0, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.width = width
        self._nice = nice
        self._prepare = prepare
        self._queue: _Queue = queue.SimpleQueue()
        self._threads = 0
        self._running = 0

    async def run(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """`call(*args)` in a thread; what it raises is raised here.

        Can be cancelled while it waits for a thread, then only by `check_cancelled`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        lowlevel = trio.lowlevel
        job = _Job(call, args, lowlevel.current_task(), lowlevel.current_trio_token())

        def abort(cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            job.cancel = cancel
            return lowlevel.Abort.SUCCEEDED if _claimed(job) else lowlevel.Abort.FAILED

        self._running += 1
        try:
            if self._running > self._threads and self._threads < self.width:
                self._start()
            self._queue.put(job)
            result: T = await lowlevel.wait_task_rescheduled(abort)
        finally:
            self._running -= 1
        return result

    def _start(self) -> None:
        self._threads += 1
        name = f"{self.name}-{self._threads}"
        threading.Thread(
            target=_work, args=(self._queue, self._nice, self._prepare), name=name, daemon=True
        ).start()
        weakref.finalize(self, self._queue.put, None)


def _claimed(job: _Job) -> bool:
    try:
        job.claim.pop()
    except IndexError:
        return False
    return True


def _work(jobs: _Queue, nice: int, prepare: Callable[[], None]) -> None:
    prepare()
    if nice:
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice)
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    while (job := jobs.get()) is not None:
        if _claimed(job):
            _current.job = job
            result = outcome.capture(job.call, *job.args)
            with contextlib.suppress(trio.RunFinishedError):
                job.token.run_sync_soon(trio.lowlevel.reschedule, job.task, result)
            del result
        _current.job = None
        del job
