"""On whose behalf a call is made: an application that waits for it, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from tierfs.osio.processes import is_waiting

SOON_SECONDS = 0.001
AT_LAST_SECONDS = 10.0
"""How often it is looked whether a thread waits, and for how long at the most."""

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


async def until_it_waits(thread: int | None) -> None:
    """Returns when `thread` waits for its answer: only then it can be told what it asks for.

    The kernel hands a request over before it puts the thread to sleep; where processors are
    scarce that may come much later.
    """
    with trio.move_on_after(AT_LAST_SECONDS):
        while thread and not is_waiting(thread):  # noqa: ASYNC110 (nobody tells)
            await trio.sleep(SOON_SECONDS)
