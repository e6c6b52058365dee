"""Waiting for the end of writing: a mapping goes on storing after its file was closed.

A read lease on the object is refused as long as anybody has it open for writing or mapped writable
(KERNEL_PATH.md). Nothing wakes us up when that ends, so it is asked for again and again.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import trio

from tierfs.namespace.content.files import Files
from tierfs.namespace.overlay.nodes import LocalObject, Node

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.001
"""The kernel drops its own hold on a closed file within moments of the RELEASE."""

LAST_SECONDS = 1.0
MAPPED_SECONDS = 0.05
"""Who is seen to have it open for longer after the last close has a mapping of it."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A file that was closed at the clock value `since`; `held`: and was open at a look since."""

    node: Node
    since: float
    held: bool = False


class Settling:
    """The files that nobody has open for writing and that may still be written to."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[LocalObject](math.inf)
        self._waiting: dict[LocalObject, _Waiting] = {}

    def add(self, node: Node, obj: LocalObject) -> None:
        """`obj` was closed by its last writer, just now or once more, and yet has one."""
        self._waiting[obj] = _Waiting(node, trio.current_time())
        self._send.send_nowait(obj)

    async def run(self, files: Files) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            async for obj in self._receive:
                nursery.start_soon(self._wait, files, obj)

    async def look(self, files: Files) -> None:
        """Looks at all of them now: somebody wants to know which files are still open."""
        for obj in list(self._waiting):
            await self._is_over(files, obj)

    async def _wait(self, files: Files, obj: LocalObject) -> None:
        pause = FIRST_SECONDS
        while True:
            await trio.sleep(pause)
            if await self._is_over(files, obj):
                return
            pause = min(2 * pause, LAST_SECONDS)

    async def _is_over(self, files: Files, obj: LocalObject) -> bool:
        waiting = self._waiting.get(obj)
        if waiting is None:
            return True
        # that it is looked at late says nothing by itself
        mapped = waiting.held and trio.current_time() - waiting.since > MAPPED_SECONDS
        try:
            over = await files.ending.settle(waiting.node, obj, mapped=mapped)
        except OSError as error:
            # not known to be over, so it is not; it stays open for writing
            log.warning("a closed file may still be written to: %s", error)
            return False
        waiting.held = waiting.held or not over
        if over and self._waiting.get(obj) is waiting:  # else it was closed again meanwhile
            del self._waiting[obj]
        return over
