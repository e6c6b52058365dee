"""The daemon's half: accepts, asks the kernel who calls, and hands each request to its handler."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from tierfs.control import requests
from tierfs.control.discovery import SOCKET_NAME
from tierfs.control.events import Waiting
from tierfs.control.protocol import LINE_LIMIT, decode, encode
from tierfs.control.results import Progress, Result
from tierfs.errors import TierfsError

log = logging.getLogger(__name__)

_SO_PEERGROUPS = 59  # asm-generic/socket.h; the socket module does not name it
_GROUPS_LIMIT = 65536  # NGROUPS_MAX of credentials(7)
_BACKLOG = 64
_REQUEST_SECONDS = 30.0
"""How long a caller may take to say what it wants: each connection is a descriptor of the daemon,
and anybody may connect."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls, as the kernel says (SO_PEERCRED, SO_PEERGROUPS of unix(7)): when it connected."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether every command and every name is open to it."""
        return self.uid == 0


Send = Callable[[Progress | Waiting], Awaitable[None]]
Handler = Callable[[Any, Peer, Send], Awaitable[tuple[Result, int]]]
"""Gets the request, its peer, and a way to send events; returns the result and the exit code.

Raises TierfsError for what it refuses: the message goes to the client. It is cancelled when the
client goes away.
"""


class ControlServer:
    """The socket of one mount.

    Attributes:
        handlers: by the command of the request.
    """

    def __init__(self, directory: Path, handlers: Mapping[str, Handler]) -> None:
        self.handlers = handlers
        self._directory = directory
        self._listener: trio.SocketListener | None = None
        self._answering = 0
        self._quiet = trio.lowlevel.ParkingLot()

    def listen(self) -> None:
        """Make the directory and the socket, replacing what a killed daemon left. Blocking, short.

        The caller holds the lock of the local tier, so nobody else serves this mount.
        """
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # An address holds 107 bytes, a mount id may be longer: bind by way of the descriptor.
            address = f"/proc/self/fd/{directory}/{SOCKET_NAME}"
            Path(address).unlink(missing_ok=True)
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound.bind(address)
            Path(address).chmod(0o666)
            bound.listen(_BACKLOG)
        finally:
            os.close(directory)
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._listener is None:
            raise RuntimeError("listen() comes first")
        await trio.serve_listeners(self._serve, [self._listener])

    async def idle(self) -> None:
        """Return when every request that came in has its answer."""
        while self._answering:
            await self._quiet.park()

    async def aclose(self) -> None:
        """Stop listening and remove the socket."""
        if self._listener is not None:
            await self._listener.aclose()
            (self._directory / SOCKET_NAME).unlink(missing_ok=True)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One connection: one request. No error of a client or a handler gets further than this."""
        try:
            async with stream:
                line = None
                with trio.move_on_after(_REQUEST_SECONDS):
                    line = await _read_line(stream)
                if line is not None:
                    with self._counted():
                        await self._answer_unless_gone(stream, line)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client went away; there is nobody to tell

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering:
                self._quiet.unpark_all()

    async def _answer_unless_gone(self, stream: trio.SocketStream, line: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, stream, nursery.cancel_scope)
            await self._answer(stream, line)
            nursery.cancel_scope.cancel()

    async def _answer(self, stream: trio.SocketStream, line: bytes) -> None:
        async def send(event: Progress | Waiting) -> None:
            await stream.send_all(encode({"event": event.event, **asdict(event)}))

        command, paths = "request", ""
        try:
            request = requests.from_message(decode(line))
            command, paths = request.command, _paths_of(request)
            handler = self.handlers[command]
            result, exit_code = await handler(request, _peer_of(stream), send)
            answer = {"result": asdict(result), "exit_code": exit_code}
        except TierfsError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                raise
            answer = {"error": _describe(error, paths), "exit_code": 1}
        except Exception:
            log.exception("%s: failed", command)
            answer = {"error": f"{command}: internal error; see the log", "exit_code": 1}
        await stream.send_all(encode(answer))


async def _read_line(stream: trio.SocketStream) -> bytes | None:
    """The request's line without its end; None if the client closed before it was whole."""
    received = bytearray()
    while b"\n" not in received:
        if len(received) > LINE_LIMIT:
            raise trio.BrokenResourceError
        piece = await stream.receive_some()
        if not piece:
            return None
        received += piece
    return bytes(received.partition(b"\n")[0])


async def _cancel_when_gone(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    while await stream.receive_some():
        pass  # one request a connection: what follows is not ours to read
    scope.cancel()


def _peer_of(stream: trio.SocketStream) -> Peer:
    size = struct.calcsize("3i")
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = struct.unpack("3i", raw)
    groups = _groups_of_peer(stream.socket.fileno())
    return Peer(pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF, groups)


def _groups_of_peer(descriptor: int) -> tuple[int, ...]:
    # By ctypes: socket.getsockopt() takes answers of up to 1024 bytes, which is 256 groups.
    libc = ctypes.CDLL(None, use_errno=True)
    groups = (ctypes.c_uint32 * _GROUPS_LIMIT)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    if libc.getsockopt(descriptor, socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)):
        code = ctypes.get_errno()
        raise OSError(code, f"groups of the caller: {os.strerror(code)}")
    return tuple(groups[: size.value // ctypes.sizeof(ctypes.c_uint32)])


def _paths_of(request: requests.Request) -> str:
    path = getattr(request, "path", None)
    return ", ".join((path,) if path is not None else getattr(request, "paths", ()))


def _describe(error: OSError, paths: str) -> str:
    """`paths`: what the request was about; steps on a tier name a path from where they are."""
    where = os.fsdecode(error.filename) if error.filename is not None else ""
    if not where.startswith("/"):
        where = paths
    said = error.strerror or str(error)
    return f"{where}: {said}" if where else said
