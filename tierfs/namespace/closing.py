"""Descriptors that nobody uses any more, closed behind, many at once.

A close may have to free blocks, so it is made in a thread; nobody waits for one that only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from tierfs.osio import OS

log = logging.getLogger(__name__)


GATHER_SECONDS = 0.02


class Closing:
    """Of one tier; `run_in_thread` is that of its threads."""

    def __init__(
        self, os_: OS, run_in_thread: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        self._os = os_
        self._run_in_thread = run_in_thread
        self._fds: list[int] = []
        self._more = trio.Event()

    def add(self, fd: int) -> None:
        """`fd` is closed some moments later."""
        self._fds.append(fd)
        self._more.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            await trio.sleep(GATHER_SECONDS)
            await self._run_in_thread(self.drain)

    def drain(self) -> None:
        """Closes all that is to be closed, now. Blocking; in any thread."""
        while True:
            try:
                fd = self._fds.pop()
            except IndexError:
                return
            try:
                self._os.close("behind.close", fd)
            except OSError as error:
                log.warning("closing a file that was only read: %s", error)
