"""The limit on what transfers move: kept, fair, and left at once when nobody wants it any more."""

from __future__ import annotations

import threading
import time

import pytest

from tests.harness.waiting import wait_until
from tierfs.shared.bandwidth import BURST_SECONDS, SMALLEST_SLICE, Bandwidth, Share

MIB = 1 << 20


class Eager:
    """Threads that take as much as they get for one share, until they are told to end."""

    def __init__(self, share: Share, width: int) -> None:
        self.share, self.got, self.ended = share, 0, False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._take) for _ in range(width)]

    def __enter__(self) -> Eager:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        for thread in self._threads:
            thread.join()

    def _take(self) -> None:
        while not self.ended:
            granted = self.share.take(4 * MIB, lambda: None)
            with self._lock:
                self.got += granted


def limited(rate: int) -> Bandwidth:
    bandwidth = Bandwidth()
    bandwidth.rate = rate
    return bandwidth


def test_no_limit_gives_all() -> None:
    assert Bandwidth().share().take(1 << 40, pytest.fail) == 1 << 40


def test_no_more_than_the_rate() -> None:
    bandwidth = limited(8 * MIB)
    begun = time.monotonic()
    with Eager(bandwidth.share(), 3) as one, Eager(bandwidth.share(), 1) as other:
        wait_until(lambda: one.got + other.got > 2 * MIB, "two mebibytes")
    seconds = time.monotonic() - begun
    slices = 2 * 8 * MIB * BURST_SECONDS
    assert one.got + other.got <= seconds * 8 * MIB + slices


def test_all_get_the_same_however_many_threads_they_have() -> None:
    bandwidth = limited(16 * MIB)
    with Eager(bandwidth.share(), 4) as one, Eager(bandwidth.share(), 1) as other:
        wait_until(lambda: one.got + other.got > 8 * MIB, "eight mebibytes")
        assert 0.5 < one.got / other.got < 2


def test_who_comes_with_little_is_next() -> None:
    bandwidth = limited(4 * MIB)
    with Eager(bandwidth.share(), 4) as large:
        wait_until(lambda: large.got > MIB, "the large one to have had its part")
        before = large.got
        assert bandwidth.share().take(1000, lambda: None) == 1000
        pieces = (large.got - before) / (4 * MIB * 0.05)
    assert pieces <= 3


def test_waiting_ends_when_nobody_wants_the_result() -> None:
    class Unwanted(Exception):
        pass

    def unwanted() -> None:
        raise Unwanted

    bandwidth = limited(SMALLEST_SLICE)
    share = bandwidth.share()
    while share.take(1 << 30, lambda: None) and bandwidth._level >= 0:
        pass
    with pytest.raises(Unwanted):
        share.take(1, unwanted)
    bandwidth.rate = 0
    assert share.take(5 * MIB, unwanted) == 5 * MIB  # and its place in the queue is free


def test_a_higher_rate_holds_for_those_who_wait() -> None:
    bandwidth = limited(SMALLEST_SLICE)
    with Eager(bandwidth.share(), 2) as waiting:
        wait_until(lambda: waiting.got >= SMALLEST_SLICE, "the first piece")
        bandwidth.rate = 1 << 30
        wait_until(lambda: waiting.got > 64 * MIB, "a gibibyte a second", timeout=20)
