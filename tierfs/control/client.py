"""The client's half: plain blocking sockets, for the command line and for Python programs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tierfs.control import requests
from tierfs.control.discovery import LOG_NAME, SOCKET_NAME, NoMount, find_mount, session_directory
from tierfs.control.protocol import ProtocolError, decode, encode
from tierfs.control.supervision import FAILED, read_state
from tierfs.errors import TierfsError

AnyPath = str | os.PathLike[str]

TAKEOVER_SECONDS = 60.0
"""How long a mount that has a supervisor may be without a daemon before that is an error."""

POLL_SECONDS = 0.05

ATTEMPTS = 10
"""How often a request is made anew because the daemon ended before it answered."""


class FlushIncomplete(TierfsError):
    """A flush did not commit everything.

    Attributes:
        exit_code: 2 timed out, 3 stuck, 4 open for writing, 5 held, 6 a checkpoint not published.
        result: every key of `control.results.FlushResult`.
    """

    def __init__(self, message: str, exit_code: int, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.result = result


class Refused(TierfsError):
    """The daemon refused the request; the message is its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def call(
    mountpoint: str,
    request: requests.Request,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    *,
    silence: float | None = None,
) -> tuple[dict[str, Any], int]:
    """Ask the daemon of `mountpoint`; its result and exit code.

    Args:
        on_event: gets each event as it comes.
        silence: seconds without a message after which nobody is taken to answer.

    Raises:
        NoMount: nobody answers there.
        Refused: the daemon said no.
        ProtocolError: it broke off, or speaks another version.
    """
    for _ in range(ATTEMPTS):
        with closing(_conversation(mountpoint, request, silence)) as messages:
            for message in messages:
                if "error" in message:
                    raise Refused(str(message["error"]), int(message["exit_code"]))
                if "result" in message:
                    return message["result"], int(message["exit_code"])
                if on_event is not None:
                    on_event(message)
        if not _another_comes(mountpoint):
            break
    raise ProtocolError(
        f"{mountpoint}: the daemon ended before it answered; see {_log_hint(mountpoint)}"
    )


def flush(
    path: AnyPath | None = None, *, wait: bool = True, timeout: float | None = None
) -> dict[str, Any]:
    """Send what is pending under `path` to the shared tier now; the keys of FlushResult.

    Args:
        path: a file or directory in a tierfs mount; None: the whole mount (that of the working
            directory, else the only one there is).
        wait: return only when everything there is committed.
        timeout: seconds to wait at most.

    Raises:
        FlushIncomplete: `wait`, and not everything is committed.
        TierfsError: no such mount, no such path, or no daemon.
    """
    mountpoint, resolved = find_mount(None if path is None else os.fspath(path))
    request = requests.Flush(paths=(resolved,), wait=wait, timeout=timeout)
    result, exit_code = call(mountpoint, request)
    if exit_code:
        raise FlushIncomplete(f"{resolved}: not everything is committed", exit_code, result)
    return result


def status(path: AnyPath | None = None) -> dict[str, Any]:
    """How the mount that holds `path` is: the keys of ``tierfs status --json``.

    Raises:
        TierfsError: no such mount, or no daemon.
    """
    mountpoint, _ = find_mount(None if path is None else os.fspath(path))
    return call(mountpoint, requests.Status())[0]


def _conversation(
    mountpoint: str, request: requests.Request, silence: float | None
) -> Generator[dict[str, Any], None, None]:
    """Every message that the daemon sends, until it closes or is gone."""
    with _connected(mountpoint) as connection, connection.makefile("rb") as answers:
        connection.settimeout(silence)
        with suppress(ConnectionError):  # it died; what it said before is still to be read
            connection.sendall(encode(requests.to_message(request)))
        try:
            for line in answers:
                yield decode(line)
        except ConnectionResetError:
            return
        except TimeoutError:
            raise NoMount(f"{mountpoint}: its daemon does not answer") from None


@contextmanager
def _connected(mountpoint: str) -> Iterator[socket.socket]:
    directory = session_directory(mountpoint)
    limit = time.monotonic() + TAKEOVER_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            try:
                _connect(connection, directory)
                break
            except OSError as error:
                if _another_comes(mountpoint) and time.monotonic() < limit:
                    time.sleep(POLL_SECONDS)
                    continue
                raise NoMount(_why_silent(mountpoint, error)) from None
        yield connection


def _another_comes(mountpoint: str) -> bool:
    """Whether a supervisor is there that starts another daemon in place of one that ended."""
    state = read_state(session_directory(mountpoint))
    return state is not None and state.state != FAILED


def _why_silent(mountpoint: str, error: OSError) -> str:
    state = read_state(session_directory(mountpoint))
    if state is not None and state.state == FAILED:
        return (
            f"{mountpoint}: its daemon ended again and again ({state.error}) and the mount answers "
            f"EIO; see {_log_hint(mountpoint)}, then: tierfs reload, or tierfs umount --force"
        )
    return (
        f"{mountpoint}: its daemon does not answer ({error.strerror}); "
        f"see {_log_hint(mountpoint)}, and mount again with: tierfs mount"
    )


def _connect(connection: socket.socket, directory: Path) -> None:
    """Connect by way of a descriptor: an address holds 107 bytes, a mount id may be longer."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
    finally:
        os.close(descriptor)


def _log_hint(mountpoint: str) -> str:
    return str(session_directory(mountpoint) / LOG_NAME)
