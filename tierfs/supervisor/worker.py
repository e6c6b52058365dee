"""One worker process: started, listened to, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping

from tierfs.supervisor import link
from tierfs.supervisor.apart import Starter
from tierfs.supervisor.standstill import Standstill

HAND_OVER_SECONDS = 10.0

REAP_SECONDS = 2.0
"""How long a killed worker is waited for: one that hangs in the kernel may never end."""


class Worker:
    """A worker process. It waits, with all its modules loaded, until the mount is handed to it.

    Attributes:
        end: our end of the link.
        prepared: it has loaded its modules.
        ready_at: when it said that the mount answers (time.monotonic), 0.0 before.
        silent: since it last said anything.
        stuck: since the mount was handed to it; what it computes does not count.
        refused: its own word why it does not start, "" if it gave none.
        silenced: it was killed because it did not answer.
    """

    def __init__(self, command: list[str], starter: Starter) -> None:
        """Starts `command` with ``--link-fd N`` added."""
        self._process, self.end = starter.worker(command)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.end.settimeout(0)
        self.prepared = False
        self.ready_at = 0.0
        self._begins()
        self.refused = ""
        self.silenced = False

    def _begins(self) -> None:
        self.started_at = time.monotonic()
        self.silent = Standstill(self.pid, running_counts=True)
        self.stuck = Standstill(self.pid, running_counts=False)

    def hand_over(self, kept: Mapping[str, int], restarts: int) -> None:
        """The mount is its own from now on, with what was `kept` of it."""
        self._begins()
        self.end.settimeout(HAND_OVER_SECONDS)
        # one that is dead or hangs is found out by who watches it
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            for name, fd in kept.items():
                link.send(self.end, {"kept": name}, fd)
            link.send(self.end, {"restarts": restarts})
        self.end.settimeout(0)

    def messages(self) -> Iterable[tuple[link.Message, int | None]]:
        """What it has said since the last time."""
        with contextlib.suppress(BlockingIOError):
            while (said := link.receive(self.end)) is not None:
                self.silent.ended()
                self.prepared = True
                yield said

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Ends it; returns when it has ended or hangs in the kernel."""
        self.signal(signal.SIGKILL)
        wait_readable([self.pidfd], REAP_SECONDS)

    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs (or hangs)."""
        return self._process.poll()

    def close(self) -> None:
        """Lets go of the descriptors that belong to it."""
        self.end.close()
        os.close(self.pidfd)


def wait_readable(fds: Iterable[int | socket.socket], seconds: float) -> list[int | socket.socket]:
    """Which of `fds` have something to say within `seconds`."""
    poll = select.poll()
    numbers = {fd if isinstance(fd, int) else fd.fileno(): fd for fd in fds}
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [numbers[number] for number, _ in poll.poll(seconds * 1000)]
