"""Posts that are answered before the database has them: two files in the memory of the node.

Some changes come one after the other by the thousand, each waited for by whoever asked: `rm -rf`.
For these a transaction each is most of what they take. So they are written here, where nothing has
to be waited for, and many of them share a transaction a moment later. What stands here survives
the process, as a transaction does that is not synced; and as that it is worth nothing once the
local file system was mounted again, for then rows before it may be lost.

The first of them is noted only when the database has all before it, and behind it every post is
noted until the database has caught up. The database knows up to which of them it has come: the
rest, in their order, is what it lacks.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tierfs.journal.rows import Statement
from tierfs.osio import OS

PART_BYTES = 256 << 10
"""The other file is written to when one is longer than this."""

CROWDED_BYTES = 4 * PART_BYTES
"""With more than this nobody is answered early: the database is far behind, on a drive that hangs
perhaps."""

_HEAD = struct.Struct("=QQ")  # number of the post, bytes that follow


@dataclass(slots=True)
class _Part:
    """One of the files; `last` is the number of the last post in it, 0 if it is empty."""

    fd: int
    size: int = 0
    last: int = 0


class Ahead:
    """What was posted and may not be in the database. For the thread that posts; OSError.

    Attributes:
        last: number of the post that was noted last.
        is_over: nothing more can be noted.
    """

    def __init__(self, system: OS, path: Path) -> None:
        """Makes the files, `path` with the endings .0 and .1, empty."""
        self._system = system
        self._path = path
        self._parts: list[_Part] = []
        self._present = 0
        self.last = 0
        self.is_over = False
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        with _directory(system, path) as directory:
            for name in _names(path):
                fd = system.open_at("journal.ahead", directory, name, flags, 0o600)
                self._parts.append(_Part(fd))

    @property
    def is_empty(self) -> bool:
        """Whether all that was noted is in the database."""
        return not any(part.last for part in self._parts)

    @property
    def is_crowded(self) -> bool:
        """Whether the database should catch up before more is answered early."""
        return sum(part.size for part in self._parts) > CROWDED_BYTES

    def note(self, number: int, statements: list[Statement]) -> None:
        """Post `number` survives the process when this returns. ValueError: it cannot be noted."""
        part = self._parts[self._present]
        body = marshal.dumps(statements)
        record = _HEAD.pack(number, len(body)) + body
        self._system.pwrite_all("journal.ahead", part.fd, record, part.size)
        part.size += len(record)
        part.last = self.last = number

    def settle(self, written: int) -> None:
        """The posts up to `written` are in the database: what holds no other is emptied."""
        other, part = self._parts[1 - self._present], self._parts[self._present]
        if other.last and other.last <= written:
            self._empty(other)
        if part.last and part.last <= written:
            self._empty(part)
        elif part.size > PART_BYTES and not other.last:
            self._present = 1 - self._present

    def _empty(self, part: _Part) -> None:
        self._system.ftruncate("journal.ahead", part.fd, 0)
        part.size = part.last = 0

    def close(self, *, keep: bool) -> None:
        """Lets go of the files; takes them away unless what they hold is to be taken up."""
        for part in self._parts:
            self._system.close("journal.ahead", part.fd)
        self._parts.clear()
        if not keep:
            remove(self._system, self._path)


def left(system: OS, path: Path, applied: int) -> list[list[Statement]]:
    """The posts behind number `applied` that a process which died left at `path`, in their order.

    A last one that is not whole was answered to nobody. ValueError when they make no sense.
    """
    posts: dict[int, list[Statement]] = {}
    with contextlib.suppress(FileNotFoundError), _directory(system, path) as directory:
        for name in _names(path):
            with contextlib.suppress(FileNotFoundError):
                posts.update(_read(_content(system, directory, name)))
    numbers = sorted(number for number in posts if number > applied)
    if numbers and numbers[-1] - numbers[0] >= len(numbers):
        raise ValueError(f"of the posts {numbers[0]} to {numbers[-1]} some are missing")
    return [posts[number] for number in numbers]


def _content(system: OS, directory: int, name: bytes) -> bytes:
    fd = system.open_at("journal.ahead", directory, name, os.O_RDONLY)
    try:
        return system.pread("journal.ahead", fd, system.fstat("journal.ahead", fd).st_size, 0)
    finally:
        system.close("journal.ahead", fd)


def remove(system: OS, path: Path) -> None:
    """Takes away what may stand at `path`."""
    with contextlib.suppress(FileNotFoundError), _directory(system, path) as directory:
        for name in _names(path):
            with contextlib.suppress(FileNotFoundError):
                system.unlink_at("journal.ahead", directory, name)


def _read(data: bytes) -> Iterator[tuple[int, list[Statement]]]:
    position = 0
    while position + _HEAD.size <= len(data):
        number, length = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        if position + length > len(data):
            return
        try:
            yield number, marshal.loads(data[position : position + length])
        except (EOFError, TypeError) as error:
            raise ValueError(f"post {number} cannot be read: {error}") from None
        position += length


def _names(path: Path) -> tuple[bytes, bytes]:
    name = os.fsencode(path.name)
    return name + b".0", name + b".1"


@contextlib.contextmanager
def _directory(system: OS, path: Path) -> Iterator[int]:
    directory = system.open_root("journal.ahead", os.fspath(path.parent))
    try:
        yield directory
    finally:
        system.close("journal.ahead", directory)
