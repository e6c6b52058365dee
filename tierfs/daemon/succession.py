"""What a worker gets from the one before it, and leaves to the next: a log and descriptors.

The log lies beside the control socket, in memory; it is written without fsync, since it must
survive the process only. It is made anew when it has grown, and at each start.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import trio

from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.outage.spelling import read
from tierfs.namespace.restart.memory import HANDLE
from tierfs.namespace.restart.remembered import Remembered
from tierfs.supervisor.link import Link

log = logging.getLogger(__name__)

LOG_FILE = "session.log"
DIRECTORIES_FILE = "directories.json"
DEVICE = "device"
"""The name under which the supervisor keeps /dev/fuse."""

BEAT_SECONDS = 0.5

END_SECONDS = 5.0
"""How long a worker without its supervisor waits for its end before it ends by itself."""
LOOK_SECONDS = 5.0
GROWN_BYTES = 4 << 20
GROWN_TIMES = 4
"""The log is made anew when it is larger than both: bytes, and times its size when it was new."""

PIECE = 200
"""Lines that are written without letting others run."""

TOGETHER = 10_000
"""Lines that are written in one go while there are no others."""


class SessionLog:
    """The file that `Memory` writes to.

    While it is made anew, what is appended goes to the old and to the new one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / LOG_FILE
        self._fds: list[int] = []
        self._size = self._new_size = 0

    def read(self) -> Iterator[bytes]:
        """The lines that an earlier worker wrote."""
        with self._path.open("rb") as file:
            yield from file

    def append(self, lines: bytes) -> None:
        """Writes whole lines. OSError: then the log is not to be trusted."""
        for fd in self._fds:
            _write_all(fd, lines)
        self._size += len(lines)

    def begin(self) -> None:
        """A new log is made beside the old one, if there is one."""
        draft = os.fspath(self._path) + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fds.append(os.open(draft, flags, 0o600))
        self._size = 0

    def write_new(self, lines: bytes) -> None:
        """Writes lines to the new log alone."""
        _write_all(self._fds[-1], lines)
        self._size += len(lines)

    def finish(self) -> None:
        """The new log is complete: it takes the old one's place."""
        os.replace(os.fspath(self._path) + ".new", self._path)
        for fd in self._fds[:-1]:
            os.close(fd)
        del self._fds[:-1]
        self._new_size = self._size

    def has_grown(self) -> bool:
        """Whether it is worth while to make it anew."""
        return self._size > max(GROWN_BYTES, GROWN_TIMES * self._new_size)

    def remove(self) -> None:
        """The mount is gone, and with it what the kernel knew."""
        self._path.unlink(missing_ok=True)
        (self.directory / DIRECTORIES_FILE).unlink(missing_ok=True)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


@dataclass(slots=True)
class Succession:
    """The place of this worker among those of the mount.

    Attributes:
        device: /dev/fuse of the mount, None for the first worker.
        remembered: what the kernel knows of the mount.
    """

    link: Link
    log: SessionLog
    device: int | None
    remembered: Remembered

    @classmethod
    def of(cls, link: Link, directory: Path) -> Succession:
        """Reads what an earlier worker left; ValueError when it makes no sense."""
        log = SessionLog(directory)
        device = link.kept.pop(DEVICE, None)
        remembered = Remembered.read(log.read()) if device is not None else Remembered()
        return cls(link, log, device, remembered)

    def descriptors(self) -> dict[int, int]:
        """The kept descriptors of files on the shared tier, by the number of their open file."""
        kept = {int(name.removeprefix(HANDLE)): fd for name, fd in self.link.kept.items()}
        self.link.kept.clear()
        for number in kept.keys() - self.remembered.handles.keys():
            os.close(kept.pop(number))
            self.link.drop(f"{HANDLE}{number}")
        return kept

    def begin(self, fs: FileSystem) -> None:
        """From now on all that changes is written down. Before anything is taken up."""
        known = self.remembered
        self.log.begin()
        top = (known.highest_handle, known.highest_listing, known.highest_backing)
        fs.core.memory.remember(self.log, self.link, top)
        if known.init:
            fs.core.memory.init(known.init)

    def note_directories(self, fs: FileSystem) -> None:
        """Directories in use are known to the next worker also if the shared tier is not."""
        path = self.log.directory / DIRECTORIES_FILE
        if self.device is not None:
            try:
                fs.core.announced.restore(read(path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                pass
            except (ValueError, KeyError, TypeError) as error:
                log.error("%s: %s", path, error)

        def write_down(text: str) -> None:
            draft = os.fspath(path.with_suffix(".new"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            fd = os.open(draft, flags, 0o600)  # names that not everybody may see
            try:
                _write_all(fd, text.encode())
            finally:
                os.close(fd)
            os.replace(draft, path)

        fs.keeper.write_down = write_down

    def begun(self, fs: FileSystem) -> None:
        """What was taken up is written down, too."""
        fs.core.memory.forget_changes()
        everything = fs.core.memory.everything(fs.listings.all)
        while lines := list(islice(everything, TOGETHER)):
            self._write(lines)
        self.log.finish()
        self.remembered.nodes.clear()

    def end(self) -> None:
        """The mount is gone: however this worker ends, there is nothing to go on with."""
        with contextlib.suppress(OSError):  # the supervisor is gone as well
            self.link.drop(DEVICE)
        self.log.remove()

    async def run(self, fs: FileSystem) -> None:
        """Shows that the loop turns, and keeps the log small; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._keep_small, fs)

    async def _beat(self) -> None:
        try:
            while True:
                self.link.beat()
                await trio.sleep(BEAT_SECONDS)
        except BrokenPipeError:
            log.info("the supervisor is gone, and this worker with it")
            await trio.sleep(END_SECONDS)  # it is killed as soon as that is (PR_SET_PDEATHSIG)
            raise

    async def _keep_small(self, fs: FileSystem) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self.log.has_grown():
                await self.renew(fs)

    async def renew(self, fs: FileSystem) -> None:
        """Makes the log anew, piece by piece."""
        self.log.begin()
        lines: list[str] = []
        for line in fs.core.memory.everything(fs.listings.all):
            lines.append(line)
            if len(lines) == PIECE:
                self._write(lines)
                await trio.lowlevel.checkpoint()
        self._write(lines)
        self.log.finish()

    def _write(self, lines: list[str]) -> None:
        self.log.write_new("".join(f"{line}\n" for line in lines).encode())
        lines.clear()
