"""For how long a worker has made no use of its time: a busy machine is no fault of its own.

Linux counts for each thread what it ran and what it waited for a processor (`schedstat`: ns and
ns, Documentation/scheduler/sched-stats.rst). Where it does not, only the clock counts.
"""

from __future__ import annotations

import time
from pathlib import Path

WORTH_A_LOOK_SECONDS = 0.5
"""Most workers say the next word before that."""


class Standstill:
    """Of the process `pid`, since it was made or since `ended`.

    What one of its threads waited for a processor does not count: the others may have to wait for
    that one. Neither does what a thread ran, with `running_counts` false: then a process that
    reads a million lines does not stand still, one that waits for a drive does.
    """

    def __init__(self, pid: int, *, running_counts: bool) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._running_counts = running_counts
        self.ended()

    def ended(self) -> None:
        """It has shown that it goes on."""
        self._since = time.monotonic()
        self._from: tuple[float, dict[str, int]] | None = None

    def seconds(self) -> float:
        """How long it has stood still."""
        now = time.monotonic()
        if now - self._since < WORTH_A_LOOK_SECONDS:
            return now - self._since
        used = self._look()
        if self._from is None:
            self._from = now, used
        looked_at, before = self._from
        longest = max((ns - before.get(thread, 0) for thread, ns in used.items()), default=0)
        excused = min(now - looked_at, longest / 1e9)
        return now - self._since - excused

    def _look(self) -> dict[str, int]:
        """The nanoseconds of each thread that do not count."""
        found = {}
        for task in self._threads():
            try:
                ran, waited, *_ = (task / "schedstat").read_text().split()
            except (OSError, ValueError):
                continue  # it has ended, or the kernel does not count
            found[task.name] = int(waited) + (0 if self._running_counts else int(ran))
        return found

    def _threads(self) -> list[Path]:
        try:
            return list(self._tasks.iterdir())
        except OSError:
            return []
