"""On whose behalf a call is made: an application that waits for it, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_thread: ContextVar[int | None] = ContextVar("thread", default=None)


def asker() -> int | None:
    """The thread (as the kernel numbers it, 0: not visible here) whose request this task answers.

    None: no application waits, so no call need end early.
    """
    return _thread.get()


@contextmanager
def on_behalf_of(thread: int) -> Iterator[None]:
    """What this task does inside answers a request of `thread`."""
    token = _thread.set(thread)
    try:
        yield
    finally:
        _thread.reset(token)
