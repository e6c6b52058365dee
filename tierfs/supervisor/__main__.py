"""``python -m tierfs.supervisor``: started by ``tierfs mount``, one process for each mount."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
from logging.handlers import SysLogHandler, WatchedFileHandler
from pathlib import Path

from tierfs.supervisor.supervisor import Supervisor

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SYSLOG = "/dev/log"

log = logging.getLogger("tierfs.supervisor")


class Teller:
    """Tells the one who mounts, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self, line: str) -> None:
        """Writes `line`; the first one counts."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.write(fd, line.replace("\n", " ").encode(errors="surrogateescape") + b"\n")
            os.close(fd)
        elif line != "ok":
            print(f"tierfs: {line}", file=sys.stderr)


def main() -> int:
    """Runs the supervisor; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tierfs.supervisor")
    parser.add_argument("mountpoint")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--runtime", required=True, type=Path)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-file")
    arguments = parser.parse_args()
    _start_logging(arguments.log_file)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [sys.executable, "-m", "tierfs.daemon", arguments.mountpoint]
    command += ["--settings", arguments.settings]
    if arguments.log_file is not None:
        command += ["--log-file", arguments.log_file]
    return Supervisor(command, arguments.runtime, Teller(arguments.ready_fd)).run()


def _start_logging(log_file: str | None) -> None:
    handlers: list[logging.Handler] = [
        logging.StreamHandler() if log_file is None else WatchedFileHandler(log_file)
    ]
    if os.path.exists(SYSLOG):
        system = SysLogHandler(SYSLOG)
        system.ident = "tierfs: "
        system.setLevel(logging.ERROR)
        handlers.append(system)
    logging.basicConfig(level=logging.INFO, format=FORMAT, handlers=handlers)


if __name__ == "__main__":
    sys.exit(main())
