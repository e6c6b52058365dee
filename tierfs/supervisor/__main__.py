"""``python -m tierfs.supervisor``: started by ``tierfs mount``, one process for each mount."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import socket
import sys
from contextlib import suppress
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
        if line == "ok":
            _notify_service_manager()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(BrokenPipeError):  # killed meanwhile; the mount is there all the same
                os.write(fd, line.replace("\n", " ").encode(errors="surrogateescape") + b"\n")
            os.close(fd)
        elif line != "ok":
            print(f"tierfs: {line}", file=sys.stderr)


def _notify_service_manager() -> None:
    """The mount answers: sd_notify(3), where a service manager wants to know."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name:
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(f"READY=1\nMAINPID={os.getpid()}".encode(), address)
        except OSError as error:
            log.warning("the service manager at %s was not told: %s", name, error)


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
    say = Teller(arguments.ready_fd)
    return Supervisor(arguments.mountpoint, command, arguments.runtime, say).run()


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
