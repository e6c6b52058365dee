"""Waiting for a condition that nobody announces: polled, with a deadline and a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str, *, timeout: float = 20.0, poll: float = 0.02
) -> T:
    """Return the first true value of `condition`; fail with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last value {value!r}")
        time.sleep(poll)
