"""``python -m tierfs.daemon``: started by ``tierfs mount``, one process for each mount."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys

import trio

from tierfs.config import Settings, decode
from tierfs.daemon.service import serve
from tierfs.errors import TierfsError

log = logging.getLogger("tierfs")

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Ready:
    """Tells the starter, once, that the mount answers or in one line why not."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def tell(self, line: str) -> None:
        """Writes `line` for the starter; the first one counts."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.write(fd, line.replace("\n", " ").encode(errors="surrogateescape") + b"\n")
            os.close(fd)


def main() -> int:
    """Runs the daemon; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tierfs.daemon")
    parser.add_argument("mountpoint")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-file")
    arguments = parser.parse_args()
    ready = Ready(arguments.ready_fd)
    try:
        settings = decode(arguments.settings)
        _start_logging(settings, arguments.log_file)
        trio.run(serve, arguments.mountpoint, settings, lambda: ready.tell("ok"))
    except BaseException as error:
        refusal = _first(error)
        if isinstance(refusal, TierfsError):
            return _refuse(ready, str(refusal))
        log.critical("tierfs ends", exc_info=error)
        ready.tell(f"{type(refusal).__name__}: {refusal}")
        return 1
    return 0


def _start_logging(settings: Settings, log_file: str | None) -> None:
    logging.basicConfig(
        level=settings.log_level.upper(), format=FORMAT, filename=log_file, force=True
    )
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _refuse(ready: Ready, reason: str) -> int:
    log.error("%s", reason)
    if ready._fd is None:
        print(f"tierfs: {reason}", file=sys.stderr)
    ready.tell(reason)
    return 1


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
