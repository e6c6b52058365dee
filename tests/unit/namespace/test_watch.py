"""How the shared tier is, from the calls on it; the tier itself is played."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import trio

from tierfs.health import State
from tierfs.namespace.outage.calls import SharedCalls
from tierfs.namespace.outage.watch import LOOK_SECONDS, Watch
from tierfs.threads import Pool, forget

CALM_SECONDS = 6.0
WAIT_SECONDS = 30.0


@pytest.mark.parametrize("kind", ["names", "content", "lookups"])
async def test_what_hangs_in_a_tier_that_was_detached_says_nothing_of_the_next(
    kind: str, request: pytest.FixtureRequest
) -> None:
    clock = time.monotonic
    past, started, free = 0.0, threading.Event(), threading.Event()
    request.addfinalizer(free.set)
    pools = {"names": Pool("n", 2), "content": Pool("c", 2), "lookups": Pool("l", 2)}
    calls = SharedCalls(pools["lookups"], Pool("r", 1), lambda: 10.0, lambda: clock() + past)
    shared = SimpleNamespace(
        lost=None, shared_threads=pools["names"], transfer_threads=pools["content"],
        small_threads=Pool("s", 1), quiet=pools["content"].oldest, beat=lambda: None,
        ask=lambda taken: None,
    )  # fmt: skip
    watch = Watch(shared, calls, lambda: clock() + past)  # type: ignore[arg-type]

    def hang() -> None:
        started.set()
        free.wait()

    async def until(is_it: Callable[[State], bool]) -> None:
        with trio.fail_after(WAIT_SECONDS):
            while not is_it(watch.read().state):  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        nursery.start_soon(partial(pools[kind].run, hang, late=forget))
        await until(lambda _: started.is_set())
        past += 60.0  # it hangs for so long
        await until(lambda state: state > State.HEALTHY)
        shared.lost = "an empty mount point"
        await trio.sleep(4 * LOOK_SECONDS)
        assert watch.read().state is State.DOWN
        shared.lost = None
        await trio.sleep(4 * LOOK_SECONDS)
        past += CALM_SECONDS
        await until(lambda state: state is State.HEALTHY)
        nursery.cancel_scope.cancel()
