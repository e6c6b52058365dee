"""Processes that compute, wait or are stopped, as their supervisor sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.waiting import wait_until
from tierfs.supervisor.standstill import Standstill

LOOP = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code]) as started:
        try:
            yield started
        finally:
            started.kill()


def used_ns(pid: int) -> int:
    """What it ran and what it waited for a processor."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) + int(waited)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "sleeping"])
def test_one_that_does_nothing_stands_still(stopped: bool) -> None:
    with process(SLEEP) as one:
        if stopped:
            one.send_signal(signal.SIGSTOP)
        both = [Standstill(one.pid, running_counts=counts) for counts in (False, True)]
        wait_until(lambda: min(still.seconds() for still in both) > 0.9, "it to stand still")


def test_one_that_computes_at_its_start_does_not_stand_still() -> None:
    with process(LOOP) as one:
        still = Standstill(one.pid, running_counts=False)
        seconds = watched(still, one.pid)
        assert still.seconds() < seconds / 2


def test_one_that_gets_no_processor_is_not_silent() -> None:
    """Two that never rest on one processor: the nicer one waits nearly all the time."""
    last = ["taskset", "-c", "0", "nice", "-n", "19", sys.executable, "-c", LOOP]
    first = ["taskset", "-c", "0", sys.executable, "-c", LOOP]
    with subprocess.Popen(last) as one, subprocess.Popen(first) as rival:
        try:
            silent = Standstill(one.pid, running_counts=True)
            seconds = watched(silent, one.pid)
            assert silent.seconds() < seconds / 2
        finally:
            one.kill()
            rival.kill()


def watched(still: Standstill, pid: int) -> float:
    """Looks at it until it has wanted a processor for two seconds; how long that took."""
    began, before = time.monotonic(), used_ns(pid)
    wait_until(
        lambda: still.seconds() >= 0 and used_ns(pid) - before > 2e9,
        "it to have wanted a processor", poll=0.1,
    )  # fmt: skip
    return time.monotonic() - began


def test_a_word_begins_the_count_anew() -> None:
    with process(SLEEP) as one:
        still = Standstill(one.pid, running_counts=True)
        wait_until(lambda: still.seconds() > 0.6, "its standstill to be seen")
        still.ended()
        assert still.seconds() < 0.5
