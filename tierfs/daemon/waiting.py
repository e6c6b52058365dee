"""What a waiting `settled` or `commit` tells of its progress."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from tierfs.control.events import Waiting
from tierfs.control.server import Send
from tierfs.daemon.report import counts_as_open
from tierfs.model import Op
from tierfs.order import Backlog

EVENT_SECONDS = 1.0
"""How often a client is told, at most."""


class Telling:
    """Sends what is waited for, when that has changed and not too often."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: Waiting | None = None
        self._next = trio.current_time() + EVENT_SECONDS

    async def tell(self, now: Waiting) -> None:
        """`now` is what is waited for."""
        if now == self._last or trio.current_time() < self._next:
            return
        self._last, self._next = now, trio.current_time() + EVENT_SECONDS
        await self._send(now)

    async def follow(self, backlog: Backlog, ops: Iterable[Op], sealing: int = 0) -> None:
        """Tell what is left of `ops`, until cancelled."""
        left = list(ops)
        while True:
            await trio.sleep(EVENT_SECONDS)
            left = [op for op in left if op in backlog]
            opened = sum(map(counts_as_open, left))
            size = sum(op.size for op in left)
            await self.tell(
                Waiting(
                    open=opened, pending=len(left) - opened, pending_bytes=size, sealing=sealing
                )
            )
