"""Who reads directories to look at what is in them, and who wants the names only.

The attributes of an entry cost many times what its name does, and the kernel does not say whether
they are wanted: it asks for both. But who is not told of an entry looks the name up. Pure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

READERS = 64
"""Threads that are remembered, those that read last."""

PATIENCE = 20_000
"""Entries that a reader may take before it looks at the first (fts(3) takes 10,000 at a time)."""


MOST_PROVEN = 3
FEW = 128
"""Entries of a directory that are told of without a probe to who is known to look."""

FIRST = 32
"""Entries that are told with their attributes to who was never seen to look, and a probe."""

ALL = sys.maxsize


@dataclass(slots=True)
class Reader:
    """A thread that reads directories.

    Attributes:
        directory: the one that it opened last.
        looks: it looks at what it lists, as far as is known.
        told: entries told since it opened the last directory.
        probes: entries of that directory that it was not told of, (nodeid, name).
        looked: it looked one of them up.
        again: it opened that directory twice, as `rm` does, and removes what it lists.
        proven: in how many directories running it did.
        unasked: directories that are still to be told without a probe, as it looked lately.
    """

    directory: int = 0
    looks: bool = True
    told: int = 0
    probes: set[tuple[int, bytes]] = field(default_factory=set)
    looked: bool = False
    again: bool = False
    proven: int = 0
    unasked: int = 0


class Readers:
    """The threads that read directories lately, by their ids."""

    def __init__(self) -> None:
        self._known: dict[int, Reader] = {}

    def opens(self, thread: int, directory: int) -> None:
        """A thread opens a directory: whether it looked at what was in the last one, shows now.

        Not if it is the same again: `rm` sees whether it is empty before it reads it.
        """
        reader = self._known.pop(thread, None) or Reader()
        self._known[thread] = reader
        if len(self._known) > READERS:
            del self._known[next(iter(self._known))]
        if directory == reader.directory:
            reader.told, reader.again = 0, True
            return
        reader.directory = directory
        if reader.looked:
            reader.proven = min(reader.proven + 1, MOST_PROVEN)
            reader.unasked = 2**reader.proven - 1
        elif reader.probes:
            reader.looks, reader.proven = False, 0
        reader.unasked = max(0, reader.unasked - 1)
        reader.told, reader.looked, reader.again = 0, False, False
        reader.probes.clear()

    def attributed(self, thread: int) -> int:
        """How many of the next entries are to be told with their attributes.

        Who was never seen to look gets those of a few: `ls -l` looks at them before it reads on,
        `find -type f` at none. What is to be removed the kernel looks up if it was not told of it.
        """
        reader = self._known.get(thread)
        if reader is None:
            return ALL
        if reader.probes and not reader.looked and reader.told > PATIENCE:
            reader.looks = False
        if not reader.looks:
            return 0
        if reader.looked or reader.proven or reader.again:
            return ALL
        if reader.told and not reader.probes:
            return ALL  # no files so far
        return max(0, FIRST - reader.told)

    def wants_probe(self, thread: int) -> bool:
        """Whether it is to be seen again that it looks: a probe costs a lookup.

        Of who has looked in every directory so far not in each, but within a large one.
        """
        reader = self._known.get(thread)
        return reader is None or not reader.unasked or reader.told >= FEW

    def probes(self, thread: int, directory: int, name: bytes) -> None:
        """An entry of which it is told the name alone, to see whether it looks at it."""
        reader = self._known.get(thread)
        if reader is not None:
            reader.probes.add((directory, name))

    def told(self, thread: int, entries: int) -> None:
        """It was told of so many entries."""
        reader = self._known.get(thread)
        if reader is not None:
            reader.told += entries

    def looks_up(self, thread: int, directory: int, name: bytes, *, is_directory: bool) -> None:
        """It asked for a name that is there. Directories are looked up by whoever walks a tree."""
        reader = self._known.get(thread)
        if reader is None or is_directory:
            return
        if not reader.looks:
            reader.looks = reader.looked = True
        elif (directory, name) in reader.probes:
            reader.looked = True
