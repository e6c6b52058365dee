"""The worker that comes next: started beforehand, since most of a start is loading its modules.

It is of the version that was installed when it was started; `renew` takes the present one.
"""

from __future__ import annotations

import logging
import socket
import time

from tierfs.supervisor.apart import Starter
from tierfs.supervisor.worker import Worker

log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""After a worker that ended while it waited, until the next one is prepared."""


class Standby:
    """At most one waiting worker, which `starter` starts by `command`."""

    def __init__(self, command: list[str], starter: Starter) -> None:
        self._command = command
        self._starter = starter
        self._worker: Worker | None = None
        self._not_before = 0.0

    def prepare(self) -> None:
        """Starts one, unless one waits or the last one failed a moment ago."""
        if self._worker is None and time.monotonic() >= self._not_before:
            self._worker = self._start()

    def renew(self) -> None:
        """Starts one of the version that is installed now."""
        self.discard()
        self._worker = self._start()

    def look(self) -> None:
        """Notices whether it is prepared, or has ended."""
        worker = self._worker
        if worker is None:
            return
        for _ in worker.messages():
            pass
        code = worker.exit_code()
        if code is not None:
            log.error("worker %d, which was to come next, ended with code %d", worker.pid, code)
            self._not_before = time.monotonic() + PAUSE_SECONDS
            worker.close()
            self._worker = None

    @property
    def fds(self) -> list[socket.socket | int]:
        """What becomes readable when there is something to look at."""
        return [] if self._worker is None else [self._worker.end, self._worker.pidfd]

    @property
    def waits(self) -> bool:
        """Whether there is one, prepared or not."""
        return self._worker is not None

    @property
    def prepared(self) -> bool:
        """Whether one has loaded its modules."""
        return self._worker is not None and self._worker.prepared

    def take(self) -> Worker:
        """The one that waits, or a new one."""
        self.look()
        worker, self._worker = self._worker, None
        return worker or self._start()

    def discard(self) -> None:
        """Ends the one that waits."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.exit_code()
            worker.close()

    def _start(self) -> Worker:
        return Worker(self._command, self._starter)
