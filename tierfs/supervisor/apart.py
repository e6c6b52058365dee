"""What the supervisor does not do itself, as it could hang with the shared tier.

It keeps descriptors of files that lie there. To close one is a question to its file system, where
that has something to say to a close (FUSE, NFS), and a child process closes all that it inherits.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tierfs.osio.libc import unshare_descriptors
from tierfs.supervisor import link

T = TypeVar("T")

MOST_CLOSING = 8
"""So many closes may hang until the others wait for them."""


class Starter:
    """Starts processes, in a thread that shares no descriptors with the others.

    It has those that there were when it was made and are in `kept`, with the standard ones.
    """

    def __init__(self, kept: Iterable[int] = ()) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=self._work, name="starter", daemon=True).start()
        self.call(lambda: _let_go_of_all_but({0, 1, 2, self._theirs.fileno(), *kept}))

    def call(self, call: Callable[[], T]) -> T:
        """`call()` in that thread; its child processes get no descriptors of a tier."""
        self._calls.put(call)
        result, error = self._answers.get()
        if error is not None:
            raise error
        answer: T = result
        return answer

    def worker(self, command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Starts `command` with ``--link-fd N`` added; the process, and our end of its link."""
        process = self.call(lambda: self._start(command))
        _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        os.set_inheritable(fds[0], False)
        return process, socket.socket(fileno=fds[0])

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        ours, theirs = link.pair()
        with ours, theirs:
            process = subprocess.Popen(
                [*command, "--link-fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd="/",
            )  # fmt: skip
            socket.send_fds(self._theirs, [b"."], [ours.fileno()])
            return process

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except BaseException as error:
                self._answers.put((None, error))


def _let_go_of_all_but(kept: set[int]) -> None:
    """Of the calling thread alone: it has descriptors of its own from here on."""
    unshare_descriptors()
    first = 0
    for fd in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        if first < fd:  # Python's closerange(0, 0) closes everything
            os.closerange(first, fd)
        first = fd + 1


class Closing:
    """Closes descriptors in threads."""

    def __init__(self) -> None:
        self._fds: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._left = 0
        self._threads = 0

    def close(self, fd: int) -> None:
        """Closes `fd` some time."""
        with self._lock:
            self._left += 1
            starts = self._left > self._threads and self._threads < MOST_CLOSING
            self._threads += starts
        self._fds.put(fd)
        if starts:
            name = f"close-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            fd = self._fds.get()
            with contextlib.suppress(OSError):
                os.close(fd)
            with self._lock:
                self._left -= 1
