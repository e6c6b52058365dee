"""How write-back gives way to a burst, and for how long."""

from __future__ import annotations

import math

import trio

from tierfs.writeback.pace import (
    HOLD_SECONDS,
    PAUSE_SECONDS,
    QUIET_SECONDS,
    TRICKLE_SECONDS,
    WRITER_SECONDS,
    Pace,
)

FULL = 8


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def burst(pace: Pace, clock: Clock, seconds: float) -> None:
    """The application changes something every few moments."""
    end = clock.now + seconds
    while clock.now < end:
        pace.touch()
        clock.now += QUIET_SECONDS / 4


def test_nothing_is_begun_in_a_burst_and_all_when_it_is_over() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.width(FULL) == FULL
    pace.touch()
    assert pace.width(FULL) == 0
    assert math.isclose(pace.seconds(), QUIET_SECONDS)
    clock.now += QUIET_SECONDS + 0.001
    assert pace.width(FULL) == FULL


def test_a_burst_without_end_holds_back_less_and_less() -> None:
    clock = Clock()
    pace = Pace(clock)
    burst(pace, clock, HOLD_SECONDS / 2)
    assert pace.width(FULL) == 0
    burst(pace, clock, HOLD_SECONDS)
    assert pace.width(FULL) == 1
    burst(pace, clock, TRICKLE_SECONDS)
    assert pace.width(FULL) == FULL
    clock.now += 1.0
    pace.touch()
    assert pace.width(FULL) == 0, "the next burst is one of its own"


def test_an_open_writer_counts_for_a_while_though_nothing_is_heard_of_it() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.opened(1)
    clock.now += WRITER_SECONDS / 2
    assert pace.width(FULL) == 0
    clock.now += WRITER_SECONDS
    assert pace.width(FULL) == FULL
    pace.opened(2)
    pace.closed(2)
    clock.now += 2 * QUIET_SECONDS
    assert pace.width(FULL) == FULL, "the older writer is none of this burst"


def test_who_waits_is_not_held_back() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.touch()
    with pace.awaiting(7):
        assert pace.any_awaited
        assert pace.is_awaited(7)
        assert not pace.is_awaited(8)
        assert pace.width(FULL) == 0
    assert not pace.any_awaited
    with pace.rush():
        assert pace.width(FULL) == FULL
    assert pace.width(FULL) == 0


async def test_little_is_done_with_pauses_unless_somebody_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pace = Pace(trio.current_time)
    begun = trio.current_time()
    await pace.breathe(FULL)
    assert trio.current_time() == begun, "there is no burst"
    pace.touch()
    with pace.awaiting(1):
        await pace.breathe(FULL)
    with pace.rush():
        await pace.breathe(FULL)
    assert trio.current_time() == begun
    await pace.breathe(FULL)
    assert math.isclose(trio.current_time() - begun, PAUSE_SECONDS)


async def test_a_change_comes_with_time_or_with_somebody_who_waits() -> None:
    pace = Pace(trio.current_time)
    pace.touch()
    with trio.fail_after(5):
        await pace.change()
    assert pace.width(FULL) == FULL
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pace.change)
            await trio.testing.wait_all_tasks_blocked()
            with pace.awaiting(1):
                pass
