"""``python -m tierfs.daemon``: started by ``tierfs mount``, one process for each mount."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
from logging.handlers import RotatingFileHandler
from typing import NoReturn

import trio

from tierfs.config import Settings, decode
from tierfs.daemon.service import serve
from tierfs.errors import TierfsError
from tierfs.supervisor.link import Link

log = logging.getLogger("tierfs")

LOG_BYTES = 16 << 20
"""Of the log and of the one before it: /run is memory."""

PRIORITY = -10
"""Nice value of all threads but those that copy and hash."""

_PR_SET_PDEATHSIG = 1

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Ready:
    """Tells the starter, once, that the mount answers or in one line why not."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still waits for a word."""
        return self._fd is not None

    def tell(self, line: str) -> None:
        """Writes `line` for the starter; the first one counts."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(
                BrokenPipeError
            ):  # killed meanwhile; the mount is there all the same
                os.write(fd, line.replace("\n", " ").encode(errors="surrogateescape") + b"\n")
            os.close(fd)


class SupervisorReady:
    """As Ready; the supervisor passes it on."""

    is_awaited = True

    def __init__(self, link: Link) -> None:
        self._link = link

    def tell(self, line: str) -> None:
        """Says that the mount answers ("ok") or why not."""
        with contextlib.suppress(OSError):
            if line == "ok":
                self._link.ready()
            else:
                self._link.refused(line)


def _die_with_supervisor() -> None:
    """A worker without its supervisor would keep a mount that nobody watches (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Runs the daemon; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tierfs.daemon")
    parser.add_argument("mountpoint")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-file")
    parser.add_argument("--link-fd", type=int)
    arguments = parser.parse_args()
    ready: Ready | SupervisorReady = Ready(arguments.ready_fd)
    link: Link | None = None
    try:
        if arguments.link_fd is not None:
            _die_with_supervisor()
            try:
                link = Link(arguments.link_fd)
            except ConnectionError:
                return 1  # nobody has seen this process, and nobody will
            ready = SupervisorReady(link)
        settings = decode(arguments.settings)
        _raise_file_limit()
        _raise_priority()
        # sent when a lease is broken in the moment for which it is held (OS.has_no_writer)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        _start_logging(settings, arguments.log_file)
        trio.run(serve, arguments.mountpoint, settings, lambda: ready.tell("ok"), link)
    except BaseException as error:
        refusal = _first(error)
        if isinstance(refusal, TierfsError):
            return _refuse(ready, str(refusal))
        log.critical("tierfs ends", exc_info=error)
        ready.tell(f"{type(refusal).__name__}: {refusal}")
        return 1
    return 0


def _raise_file_limit() -> None:
    """Every open file of the mount is a descriptor here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _raise_priority() -> None:
    """Applications wait for every answer, most of all on a machine that they keep busy."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def _start_logging(settings: Settings, log_file: str | None) -> None:
    handler = (
        RotatingFileHandler(log_file, maxBytes=LOG_BYTES, backupCount=1)
        if log_file is not None
        else logging.StreamHandler()
    )
    logging.basicConfig(level=settings.log_level.upper(), format=FORMAT, handlers=[handler])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _refuse(ready: Ready | SupervisorReady, reason: str) -> int:
    if ready.is_awaited:
        log.error("%s", reason)
        ready.tell(reason)
    else:
        print(f"tierfs: {reason}", file=sys.stderr)
    return 1


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _end(code: int) -> NoReturn:
    """All rooms are closed. Taking a million names apart one by one would last for seconds."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
