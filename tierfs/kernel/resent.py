"""Requests that change names: which one a handler carries out, and those that are asked again.

pyfuse3 does not tell its handlers the number of a request. It starts them in the order in which the
messages come, so what the filter passes on and what a handler takes up meet here by what they name.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from tierfs.kernel import wire
from tierfs.kernel.wire import Opcode
from tierfs.model import Name
from tierfs.namespace.requests import Request

log = logging.getLogger(__name__)

BATCH = 256
"""Answered requests that are forgotten together."""

RESENT = 1 << 63
"""FUSE_UNIQUE_RESEND: the kernel asks for the second time."""

_NAME_AT: dict[int, int] = {
    Opcode.MKNOD: 16, Opcode.MKDIR: 8, Opcode.SYMLINK: 0, Opcode.LINK: 8, Opcode.CREATE: 16,
    Opcode.UNLINK: 0, Opcode.RMDIR: 0, Opcode.RENAME: 8, Opcode.RENAME2: 16, Opcode.LOOKUP: 0,
}  # fmt: skip
"""Where in the body the (first) name begins: behind struct fuse_mknod_in and so on."""

NAMING = frozenset(_NAME_AT) - {Opcode.LOOKUP}
_MAKING = frozenset({Opcode.MKNOD, Opcode.MKDIR, Opcode.SYMLINK, Opcode.LINK})
_TAKING = frozenset({Opcode.UNLINK, Opcode.RMDIR, Opcode.RENAME, Opcode.RENAME2})

_Key = tuple[int, int, Name]


class Requests:
    """The requests that change names, from the kernel's question to its answer.

    `done`: numbers of those that an earlier worker carried out; `forget` is told, some time after,
    which have their answer.
    """

    def __init__(self, done: Iterable[int], forget: Callable[[tuple[int, ...]], object]) -> None:
        self._done = frozenset(done)
        self._forget = forget
        self._waiting: dict[_Key, deque[Request]] = {}
        self._unanswered: set[int] = set()
        self._answered: list[int] = []
        self._in_doubt = set(self._done)

    def came(self, request: wire.Request, message: memoryview) -> bytes | None:
        """Notes a request of NAMING; returns what to do instead of it.

        None: it is carried out. A message longer than a reply header: a question whose answer is
        that to the request. Else the reply itself.
        """
        name = name_in(message, request.opcode)
        done = self.begun(request, name)
        if done and request.opcode in _TAKING:
            return wire.error_reply(request.unique, 0)
        if done and request.opcode in _MAKING:
            return wire.lookup_request(request, name)
        opcode = Opcode.RENAME if request.opcode == Opcode.RENAME2 else request.opcode
        key = (int(opcode), request.nodeid, name)
        self._waiting.setdefault(key, deque()).append(Request(request.unique & ~RESENT, done))
        return None

    def begun(self, request: wire.Request, name: bytes) -> bool:
        """Notes a request; whether it is asked again, and an earlier worker has carried it out."""
        unique = request.unique & ~RESENT
        again = bool(request.unique & RESENT)
        self._unanswered.add(unique)
        if again:
            self._in_doubt.discard(unique)
        elif self._in_doubt:
            # what is asked again comes before all that is new: these had their answer
            self._answered += self._in_doubt
            self._in_doubt.clear()
        done = again and unique in self._done
        if again:
            log.info("asked again: request %d (opcode %d, %r): %s", unique, request.opcode,
                     name, "it was carried out" if done else "it is carried out now")  # fmt: skip
        return done

    def take(self, opcode: Opcode, nodeid: int, name: Name) -> Request | None:
        """The request that a handler begins to carry out; None without the filter."""
        key = (int(opcode), nodeid, name)
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        request = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return request

    def answered(self, unique: int) -> None:
        """The kernel has its answer and will not ask again."""
        unique &= ~RESENT
        if unique in self._unanswered:
            self._unanswered.discard(unique)
            self._answered.append(unique)
            if len(self._answered) >= BATCH:
                self._forget(tuple(self._answered))
                self._answered.clear()


def name_in(message: memoryview, opcode: int) -> Name:
    """The (first) name that a request is about, b"" if it is about none."""
    at = _NAME_AT.get(opcode)
    if at is None:
        return b""
    return bytes(message[wire.REQUEST_HEADER.size + at :]).partition(b"\0")[0]


INIT_UNIQUE = (1 << 62) - 2
"""Of the INIT request that a worker repeats: no number that a kernel reaches."""
