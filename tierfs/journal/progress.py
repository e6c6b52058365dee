"""How far a thread has come, and the trio tasks that wait for it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading

import trio

from tierfs.errors import JournalError
from tierfs.threads import patience


class Progress:
    """A count that a thread advances and trio tasks wait for; it never goes back.

    Attributes:
        reached: set by the advancing thread alone, read anywhere.
        error: once set, whoever waits for more than `reached` gets it.
    """

    def __init__(self) -> None:
        self.reached = 0
        self.error: JournalError | None = None
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._tie = itertools.count()
        self._token: trio.lowlevel.TrioToken | None = None
        self._soon: tuple[int, threading.Lock] | None = None

    def advance(self, value: int) -> None:
        """Set `reached` to `value` and wake who waited for it. Called by the thread."""
        self.reached = value
        self._wake()

    def fail(self, error: JournalError) -> None:
        """Nothing more will be reached. Called by the thread."""
        self.error = error
        self._wake()

    async def wait(self, value: int) -> None:
        """Return when `value` is reached; JournalError when it never will be."""
        if self.reached < value and (seconds := patience.left()):
            self._wait_soon(value, seconds)
        if self.reached < value:
            self._token = trio.lowlevel.current_trio_token()
            event = trio.Event()
            heapq.heappush(self._waiting, (value, next(self._tie), event))
            # The thread may have advanced before it could see us in the heap.
            self._release()
            await event.wait()
            if self.reached < value:
                raise JournalError(str(self.error))
        elif not patience.left():
            await trio.lowlevel.checkpoint()

    def _wait_soon(self, value: int, seconds: float) -> None:
        """Waits in this thread: much of that is over sooner than a round of the loop."""
        reached = threading.Lock()
        reached.acquire()
        self._soon = value, reached
        # The thread may have advanced before it could see that.
        if self.reached < value and self.error is None:
            reached.acquire(timeout=seconds)
        self._soon = None

    def _wake(self) -> None:
        soon = self._soon
        if soon is not None and (self.error or soon[0] <= self.reached):
            with contextlib.suppress(RuntimeError):  # it was released before
                soon[1].release()
        if self._waiting and self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._release, idempotent=True)

    def _release(self) -> None:
        while self._waiting and (self.error or self._waiting[0][0] <= self.reached):
            heapq.heappop(self._waiting)[2].set()
