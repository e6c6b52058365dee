"""Room that was promised to files which the kernel writes past the daemon.

Nobody can make such a write wait: it gets ENOSPC from the drive. So it is let past only where what
is free, or can be made free, covers what all of them will still write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tierfs.capacity.watermarks import Usage


@dataclass(slots=True)
class _Promise:
    expected: int
    kept: bool
    rest: int


class Promises:
    """What is promised, by number of the open file. `share`: of the tier, kept free besides."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._given: dict[int, _Promise] = {}
        self._ended = 0
        self._usage: Usage | None = None
        self._evictable = 0

    @property
    def rest(self) -> int:
        """Bytes that are still to be written, as far as it is known."""
        return self._ended + sum(promise.rest for promise in self._given.values())

    @property
    def wanted(self) -> int:
        """What should be free: for the rest of all, and the share that stays free."""
        return self.rest + self._kept()

    def _kept(self) -> int:
        return 0 if self._usage is None else int(self._usage.total * self._share)

    def looked(self, usage: Usage, evictable: int, sizes: Mapping[int, int], share: float) -> None:
        """What the drive said just now, and the present `sizes` of the open files."""
        self._share = share
        self._usage, self._evictable, self._ended = usage, evictable, 0
        for number, promise in self._given.items():
            if not promise.kept and number in sizes:
                promise.rest = max(0, promise.expected - sizes[number])

    def numbers(self) -> list[int]:
        """The open files that have a promise."""
        return list(self._given)

    def give(self, number: int, expected: int, size: int) -> bool:
        """Whether `number` may go past the daemon: then it has its promise.

        `size`: what it has now. Of content that it shares with another version every byte that is
        written again takes room, and nobody can tell which: all of it is kept.
        """
        rest = max(expected, size)
        if self._usage is not None:
            there = self._usage.free + self._evictable
            if self._usage.free < self._kept() or there - self.wanted < rest:
                return False
        self.take(number, expected, size)
        return True

    def take(self, number: int, expected: int, size: int) -> None:
        """As `give`, of one that is let past already."""
        rest = max(expected, size)
        self._given[number] = _Promise(rest, size > 0, rest)

    def over(self, number: int, size: int) -> None:
        """`number` was closed with `size` bytes: they may have been written since the last look."""
        promise = self._given.pop(number, None)
        if promise is not None:
            self._ended += min(promise.rest, size)
