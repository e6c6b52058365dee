"""Which of the processes that wrote in unsealed checkpoints live, and how the others ended."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import trio

from tierfs.osio import processes

Ended = Callable[[int, int, bool], None]
"""Called with the id and the start time of a process that has ended, and whether it ended well."""


class Processes:
    """Follows processes by pidfd. Synchronous but for `run`."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._followed: dict[tuple[int, int], int] = {}
        self._started: dict[int, int] = {}
        self._send, self._fresh = trio.open_memory_channel[tuple[int, int]](math.inf)

    def follow(self, process: int) -> int:
        """Begin to follow `process`; its start time, 0 when it cannot be seen (any more)."""
        if (known := self._started.get(process)) and not processes.has_ended(
            self._followed[process, known]
        ):
            return known  # /proc is not asked: it says nothing of a process in execve(2)
        started = processes.start_time(process) if process > 0 else 0
        if started and (process, started) not in self._followed:
            try:
                descriptor = processes.follow_process(process)
            except OSError:
                return 0
            self._followed[process, started] = descriptor
            self._started[process] = started
            self._send.send_nowait((process, started))
        return started

    def has_ended(self, process: int, started: int) -> bool:
        """Whether that process is no more, as it is now; that is told (`ended`) a moment later."""
        followed = self._followed.get((process, started))
        return followed is None or processes.has_ended(followed)

    def lives(self, process: int, started: int) -> bool:
        """Whether the process that began at `started` has not ended, as far as is known."""
        return (process, started) in self._followed

    async def run(self) -> None:
        """Wait for the ends of the followed processes, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                async for each in self._fresh:
                    nursery.start_soon(self._wait, *each)
        finally:
            for descriptor in self._followed.values():
                os.close(descriptor)
            self._followed.clear()
            self._started.clear()

    async def _wait(self, process: int, started: int) -> None:
        descriptor = self._followed[process, started]
        await trio.lowlevel.wait_readable(descriptor)
        well = processes.ended_well(descriptor, process)
        del self._followed[process, started]
        if self._started.get(process) == started:
            del self._started[process]
        os.close(descriptor)
        self._ended(process, started, well)
