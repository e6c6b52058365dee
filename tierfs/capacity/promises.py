"""Room that was promised to files which the kernel writes past the daemon.

Nobody can make such a write wait: it gets ENOSPC from the drive. So it is let past only where what
is free covers what all of them will still write, and whoever else takes room leaves them theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tierfs.capacity.watermarks import Usage

FASTEST = 32 << 30
"""Bytes a second: no node writes more. So much may be gone since the last look."""

GROWTH = 1.5
"""A file that exceeds what was expected of it is expected to become so much larger than it is."""

SOONEST = 0.05
LATEST = 0.5
"""Seconds between two looks, while files with a promise are open: by how much room is left."""


class Written(NamedTuple):
    """A file that is being written: its size, and the bytes that it takes on the drive."""

    size: int
    taken: int


@dataclass(slots=True)
class _Promise:
    """`shared`: the file began with content, which may share its blocks with another version;
    `outgrown`: it is larger than it was expected to become.
    """

    expected: int
    shared: bool
    taken: int = 0
    outgrown: bool = False

    @property
    def rest(self) -> int:
        return self.expected if self.shared else max(0, self.expected - self.taken)


class Promises:
    """What is promised, by number of the node.

    `share`: of the tier, kept free besides. What XFS allocates behind the end of a file that grows
    needs no room of its own: it is taken back for whoever meets the end of the drive.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._given: dict[int, _Promise] = {}
        self._open = 0
        self._ended = 0
        self._usage: Usage | None = None
        self._at = 0.0

    @property
    def rest(self) -> int:
        """Bytes that are still to be written, or may have been since the last look."""
        return self._open + self._ended

    @property
    def wanted(self) -> int:
        """What should be free: for the rest of all, and the share that stays free."""
        return self.rest + self._kept()

    def _kept(self) -> int:
        return 0 if self._usage is None else int(self._usage.total * self._share)

    def looked(self, usage: Usage, files: Mapping[int, Written], share: float, now: float) -> None:
        """What the drive said just now, `now` (seconds), of itself and of the open files."""
        self._share, self._at = share, now
        self._usage, self._ended = usage, 0
        for number, promise in self._given.items():
            if number in files:
                self._grow(promise, files[number])
        self._open = sum(promise.rest for promise in self._given.values())

    def _grow(self, promise: _Promise, file: Written) -> None:
        promise.taken = file.taken
        if file.size > promise.expected:
            promise.expected = int(file.size * GROWTH)
            promise.outgrown = True

    @property
    def outgrown(self) -> int:
        """How many files became larger than expected, while what is promised is not free."""
        return sum(each.outgrown for each in self._given.values()) if self.missing(0) else 0

    def numbers(self) -> list[int]:
        """The open files that have a promise."""
        return list(self._given)

    def has(self, number: int) -> bool:
        """Whether `number` has one."""
        return number in self._given

    def missing(self, size: int) -> int:
        """Bytes that had to become free, as of the last look, to promise `size` more."""
        return 0 if self._usage is None else max(0, size + self.wanted - self._usage.free)

    def is_ample(self, size: int, now: float) -> bool:
        """Whether `size` can be promised whatever was written since the last look."""
        return self.missing(size + self._doubt(now)) == 0

    def leaves(self, size: int) -> bool:
        """Whether another one's `size` bytes leave what is promised, as of the last look.

        And the share besides: it is for what drives take that nobody has counted.
        """
        return not self._given or self._usage is None or size + self.wanted <= self._usage.free

    def surely_leaves(self, size: int, now: float) -> bool:
        """As `leaves`, whatever was written since the last look."""
        return self.leaves(size + self._doubt(now))

    def surely_free(self, size: int, now: float) -> bool:
        """Whether `size` bytes are free, whatever was written since the last look."""
        return self._usage is not None and size + self._doubt(now) <= self._usage.free

    def _doubt(self, now: float) -> int:
        return int((now - self._at) * FASTEST)

    def pause(self) -> float:
        """Seconds until the next look: sooner the less is free, while promises may be outgrown."""
        if not self._given or self._usage is None:
            return LATEST
        return min(LATEST, max(SOONEST, (self._usage.free - self.wanted) / FASTEST))

    def take(self, number: int, expected: int, size: int) -> None:
        """`number`, which has `size` bytes now, is let past the daemon.

        Of content that it shares with another version every byte that is written again takes
        room, and nobody can tell which: all of it is kept.
        """
        expected = max(expected, size)
        self._given[number] = promise = _Promise(expected, size > 0)
        self._open += promise.rest

    def over(self, number: int, size: int) -> None:
        """`number` was closed with `size` bytes: they may have been written since the last look."""
        promise = self._given.pop(number, None)
        if promise is not None:
            self._open -= promise.rest
            self._ended += size if promise.shared else max(0, size - promise.taken)
