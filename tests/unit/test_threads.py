"""Pools of threads: results, errors, width, cancellation."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

from tierfs.osio import idle_io
from tierfs.threads import Job, Jobs, Pool, check_cancelled, patience


async def test_a_call_gives_its_result_or_its_error() -> None:
    pool = Pool("t", 2)
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 7, 0)


@pytest.fixture(autouse=True)
def without_patience() -> Iterator[None]:
    yield
    patience.end()


async def count(turns: list[int]) -> None:
    while True:
        turns.append(1)
        await trio.lowlevel.checkpoint()


async def test_with_patience_others_do_not_run_until_the_result_is_there() -> None:
    pool, turns = Pool("t", 1), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count, turns)
        patience.begin(60.0)
        assert await pool.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 7, 0)
        assert turns == []
        patience.end()
        await pool.run(divmod, 7, 2)
        assert turns != []
        nursery.cancel_scope.cancel()


async def test_what_takes_longer_than_patience_lasts_is_waited_for_as_usual() -> None:
    pool, free = Pool("t", 1), threading.Event()

    def call() -> int:
        assert free.wait(10)
        return 1

    async def release() -> None:
        free.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(release)
        patience.begin(0.1)
        assert await pool.run(call) == 1
        patience.begin(60.0)
        turns: list[int] = []
        nursery.start_soon(count, turns)
        await pool.run(divmod, 7, 2)
        assert turns != [], "after that the pool is not waited for"
        patience.end()
        nursery.cancel_scope.cancel()


async def test_one_slow_call_makes_a_pool_doubtful_for_a_moment_and_many_for_longer() -> None:
    pool, free = Pool("t", 1), threading.Event()

    async def waited_out(call: Callable[[], object]) -> bool:
        turns: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, turns)
            patience.begin(60.0)
            await pool.run(call)
            at_once = not turns
            nursery.cancel_scope.cancel()
        return at_once

    async def hang() -> None:
        patience.begin(0.05)
        await pool.run(lambda: free.wait(10))

    async def slow() -> None:
        free.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            await trio.testing.wait_all_tasks_blocked()
            free.set()

    def quick() -> None: ...

    for doubted in (1, 2, 4):
        await slow()
        assert [await waited_out(quick) for _ in range(doubted)] == [False] * doubted
    assert await waited_out(quick)
    await slow()
    assert [await waited_out(quick) for _ in range(2)] == [False, True], "it was quick meanwhile"


async def test_no_more_calls_at_once_than_the_pool_is_wide() -> None:
    pool, both, free, begun = Pool("t", 2), threading.Barrier(3), threading.Event(), []

    def call(number: int) -> None:
        begun.append(number)
        if number < 2:
            both.wait(10)
            free.wait(10)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(pool.run, call, number)
            await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(both.wait, 10)
        assert begun == [0, 1]
        free.set()
    assert begun == [0, 1, 2, 3]


async def test_what_waits_for_a_thread_can_be_cancelled() -> None:
    pool, free, ran = Pool("t", 1), threading.Event(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, free.wait, 10)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await pool.run(ran.append, 1)
        assert scope.cancelled_caught
        free.set()
    await pool.run(ran.append, 2)
    assert ran == [2]


async def test_a_call_under_way_ends_before_its_task_does() -> None:
    pool, begun, free, ran = Pool("t", 1), threading.Event(), threading.Event(), []

    def call() -> None:
        begun.set()
        free.wait(10)
        ran.append(1)

    async def release() -> None:
        await trio.to_thread.run_sync(begun.wait, 10)
        scope.cancel()
        free.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(release)
            await pool.run(call)
        assert ran == [1]


async def test_a_call_may_stop_when_its_task_is_cancelled() -> None:
    pool, begun = Pool("t", 1), threading.Event()

    def call() -> None:
        begun.set()
        for _ in range(10_000):
            check_cancelled()
            threading.Event().wait(0.001)

    async def cancel() -> None:
        await trio.to_thread.run_sync(begun.wait, 10)
        scope.cancel()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel)
            await pool.run(call)
        assert scope.cancelled_caught


async def test_threads_are_prepared_before_their_first_call() -> None:
    pool = Pool("t", 1, prepare=idle_io)
    ioprio_get, process = (252, 1) if os.uname().machine == "x86_64" else (31, 1)
    libc = ctypes.CDLL(None)
    assert await pool.run(libc.syscall, ioprio_get, process, 0) == 3 << 13  # the idle class
    assert libc.syscall(ioprio_get, process, 0) != 3 << 13


async def test_threads_give_way_and_end_with_their_pool() -> None:
    pool = Pool("gone", 1, nice=3)
    here = os.getpriority(os.PRIO_PROCESS, 0)
    thread = await pool.run(threading.current_thread)
    assert await pool.run(os.getpriority, os.PRIO_PROCESS, 0) == min(19, here + 3)
    del pool
    gc.collect()
    await trio.to_thread.run_sync(thread.join, 10)
    assert not thread.is_alive()


class Rest:
    """Stands for the lock on which a thread rests; `meanwhile` happens when it does."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.acquire = meanwhile
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_a_job_wakes_the_thread_that_rested_last_and_no_other() -> None:
    jobs, done = Jobs(), list[object]()
    call = partial(Job, list, (), None, None)
    first, second = call(), call()
    later = Rest(lambda: jobs.put(first))

    def meanwhile() -> None:
        done.append(jobs.get(later))
        assert (earlier.released, later.released) == (0, 1)
        jobs.put(second)

    earlier = Rest(meanwhile)
    done.append(jobs.get(earlier))
    assert done == [first, second]
    assert (earlier.released, later.released) == (1, 1)


def test_no_job_is_left_lying_while_a_thread_rests() -> None:
    jobs, free, begun = Jobs(), threading.Semaphore(0), 3000

    def work() -> None:
        rest = threading.Lock()
        rest.acquire()
        while jobs.get(rest) is not None:
            free.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(begun):  # each as late as can be: when most threads are about to rest
        jobs.put(Job(list, (), None, None))
        assert free.acquire(timeout=10)
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
