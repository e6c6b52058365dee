"""The exact order in which names appear and disappear on the shared tier, from inotify.

The kernel queues every change of a watched directory in the order in which it happened, so a test
of the order misses nothing between two looks, as a polling one would.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_MODIFY, _CLOSE_WRITE = 0x2, 0x8
_ISDIR, _OVERFLOW = 0x40000000, 0x4000
_WATCHED = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _MODIFY

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Event:
    """`path` (relative to the watched root) appeared, vanished or was written in place.

    Attributes:
        scanned: found in a directory that had just appeared, in no particular order with the
            other scanned events next to it.
    """

    what: str
    path: str
    scanned: bool = field(default=False, compare=False)


def _reserved(name: str) -> bool:
    return name == ".tierfs" or name.startswith(".staging_")


class Recorder:
    """Records the changes below `root` between enter and `events()`.

    Directories that appear are watched too; what is in them by then is recorded as appeared.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = os.fspath(root)
        self._fd = -1
        self._stop = threading.Event()
        self._directories: dict[int, str] = {}
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._collect, name="inotify", daemon=True)

    def __enter__(self) -> Self:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._watch_below("", announce=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._drain()
        os.close(self._fd)
        self._fd = -1

    def events(self) -> list[Event]:
        """Everything recorded so far."""
        self._drain()
        with self._lock:
            return list(self._events)

    def appeared(self) -> list[str]:
        """The paths that appeared, in order; a name that was replaced appears again."""
        return [event.path for event in self.events() if event.what == "appeared"]

    def vanished(self) -> list[str]:
        """The paths that disappeared, in order."""
        return [event.path for event in self.events() if event.what == "vanished"]

    def position(self, what: str, path: str) -> int:
        """Where in the order `path` first did `what`."""
        return self.events().index(Event(what, path))

    def _collect(self) -> None:
        ready = select.poll()  # select() knows no descriptor above 1023
        ready.register(self._fd, select.POLLIN)
        while not self._stop.is_set():
            ready.poll(50)
            self._drain()

    def _drain(self) -> None:
        with self._lock:
            while self._fd >= 0:
                try:
                    data = os.read(self._fd, 1 << 16)
                except BlockingIOError:
                    return
                self._parse(data)

    def _parse(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = struct.unpack_from("iIII", data, offset)
            name = os.fsdecode(data[offset + 16 : offset + 16 + length].rstrip(b"\0"))
            offset += 16 + length
            if mask & _OVERFLOW:
                self._events.append(Event("overflow", ""))
            elif watch in self._directories and name and not _reserved(name):
                self._record(mask, os.path.join(self._directories[watch], name))

    def _record(self, mask: int, path: str) -> None:
        if mask & (_CREATE | _MOVED_TO):
            self._events.append(Event("appeared", path))
            if mask & _ISDIR:
                self._watch_below(path, announce=True)
        elif mask & (_DELETE | _MOVED_FROM):
            self._events.append(Event("vanished", path))
        elif mask & _MODIFY and not mask & _ISDIR:  # of a directory: its times were set
            self._events.append(Event("written", path))

    def _watch_below(self, directory: str, *, announce: bool) -> None:
        full = os.path.join(self.root, directory)
        watch = _libc.inotify_add_watch(self._fd, os.fsencode(full), _WATCHED)
        if watch < 0:
            return  # gone again already: its disappearance is in the queue
        self._directories[watch] = directory
        for entry in os.scandir(full):
            if _reserved(entry.name):
                continue
            path = os.path.join(directory, entry.name)
            if announce:
                self._events.append(Event("appeared", path, scanned=True))
            if entry.is_dir(follow_symlinks=False):
                self._watch_below(path, announce=announce)
