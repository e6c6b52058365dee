"""What a worker and its supervisor say to each other, over a unix socket pair.

One message is one JSON object, with at most one descriptor (SCM_RIGHTS, unix(7)). The supervisor
understands nothing of a file system: it keeps descriptors under the names that the worker gave
them and hands them to the next worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

MESSAGE_BYTES = 64 << 10
SOCKET_BYTES = 4 << 20
SO_SNDBUFFORCE = 32
"""asm-generic/socket.h: beyond the system's limit; needs CAP_NET_ADMIN."""

LEFT = 75
"""Exit code of a worker that makes room for the next one (EX_TEMPFAIL of sysexits.h)."""

Message = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends; a worker must not wait for a supervisor that is busy."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        with contextlib.suppress(PermissionError):
            end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BYTES)
    return ends


def send(end: socket.socket, message: Mapping[str, object], fd: int | None = None) -> None:
    """Sends one message. OSError when the other end is gone."""
    fds = [] if fd is None else [fd]
    socket.send_fds(end, [json.dumps(message).encode()], fds)


def receive(end: socket.socket) -> tuple[Message, int | None] | None:
    """The next message and its descriptor; None when the other end is closed.

    BlockingIOError when `end` does not block and nothing is there.
    """
    try:
        data, fds, _, _ = socket.recv_fds(end, MESSAGE_BYTES, 1)
    except ConnectionResetError:
        return None
    if not data:
        return None
    return json.loads(data), fds[0] if fds else None


class Link:
    """The worker's end.

    Attributes:
        kept: descriptors that an earlier worker of this mount handed over, by name.
        restarts: how many workers of this mount ended before this one.
    """

    def __init__(self, fd: int) -> None:
        """Takes over `fd`; blocks until the mount is handed over, with what was kept of it.

        ConnectionError: the supervisor is gone.
        """
        self._end = socket.socket(fileno=fd)
        self.kept: dict[str, int] = {}
        self._held: set[str] = set()
        send(self._end, {"prepared": 1})
        while (said := receive(self._end)) is not None:
            message, kept = said
            if kept is None:
                self.restarts = int(message["restarts"])
                return
            os.set_inheritable(kept, False)
            self.kept[message["kept"]] = kept
            self._held.add(message["kept"])
        raise ConnectionAbortedError("the supervisor is gone")

    def keep(self, name: str, fd: int) -> None:
        """The supervisor keeps a duplicate of `fd`, in place of an older one of that name."""
        self._held.add(name)
        send(self._end, {"keep": name}, fd)

    def drop(self, name: str) -> None:
        """The supervisor closes what it keeps as `name`, if it keeps anything."""
        if name in self._held:
            self._held.discard(name)
            send(self._end, {"drop": name})

    def beat(self) -> None:
        """Shows that the worker's loop turns."""
        send(self._end, {"beat": 1})

    def ready(self) -> None:
        """The mount answers."""
        send(self._end, {"ready": 1})

    def refused(self, reason: str) -> None:
        """The worker ends; a new one would for the same `reason`."""
        send(self._end, {"refused": reason})
