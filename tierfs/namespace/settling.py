"""Waiting for the end of writing: a mapping goes on storing after its file was closed.

A read lease on the object is refused as long as anybody has it open for writing or mapped writable
(KERNEL_PATH.md). Nothing wakes us up when that ends, so it is asked for again and again.
"""

from __future__ import annotations

import logging
import math

import trio

from tierfs.namespace.files import Files
from tierfs.namespace.nodes import LocalObject, Node

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.001
"""The kernel drops its own hold on a closed file within moments of the RELEASE."""

LAST_SECONDS = 1.0
MAPPED_SECONDS = 0.05
"""Whoever writes for longer after the last close does so through a mapping."""


class Settling:
    """The files that nobody has open for writing and that may still be written to."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[Node, LocalObject]](math.inf)
        self.waiting = 0

    def add(self, node: Node, obj: LocalObject) -> None:
        """`obj` was closed by its last writer, and yet has one."""
        self._send.send_nowait((node, obj))

    async def run(self, files: Files) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            async for node, obj in self._receive:
                nursery.start_soon(self._wait, files, node, obj)

    async def _wait(self, files: Files, node: Node, obj: LocalObject) -> None:
        pause, since = FIRST_SECONDS, trio.current_time()
        self.waiting += 1
        try:
            while True:
                await trio.sleep(pause)
                mapped = trio.current_time() - since > MAPPED_SECONDS
                try:
                    if await files.settle(node, obj, mapped=mapped):
                        return
                except OSError as error:
                    # not known to be over, so it is not; it stays open for writing
                    log.warning("a closed file may still be written to: %s", error)
                pause = min(2 * pause, LAST_SECONDS)
        finally:
            self.waiting -= 1
