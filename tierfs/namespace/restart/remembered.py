"""What an earlier worker of the mount wrote down: the lines of `Memory`, read again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tierfs.model import Kind, Name, ObjectId
from tierfs.namespace.overlay.nodes import Location

ANSWERED = 1024
"""More than there can be waiting for an answer at one time."""


TOGETHER = 1000
"""Lines that are parsed in one go: there may be millions, and a call for each takes as long as
reading it."""

KINDS = {str(kind): kind for kind in Kind}

OLDER = 3
"""Objects of a node that are remembered beside the present one."""

NOTHING = (None,)
"""The objects of a node that never had one: of nearly all."""


def text(name: Name) -> str:
    """A name of any bytes as it stands in a line."""
    return name.decode("latin-1")


def name_of(written: str) -> Name:
    """The name that :func:`text` wrote."""
    return written.encode("latin-1")


@dataclass(frozen=True, slots=True)
class KnownDirectory:
    """The directory that a known node is."""

    id: ObjectId
    parent: ObjectId | None
    name: Name
    tagged: bool
    vouched: bool


@dataclass(slots=True)
class KnownNode:
    """A node that the kernel may know.

    Attributes:
        objects: that it had lately, the present one last; None: none.
    """

    ino: int
    kind: Kind
    lookups: int
    objects: tuple[ObjectId | None, ...]
    shared: Location | None
    names: set[tuple[ObjectId, Name]]
    unlinked: bool
    ctimes: tuple[int, int] | None
    directory: KnownDirectory | None


@dataclass(frozen=True, slots=True)
class KnownHandle:
    """An open file, the answer to the request `unique`.

    `object` is None when it is read from the shared tier; `left` is that of the object.
    """

    number: int
    ino: int
    writable: bool
    opener: int
    backing: int
    flushed: bool
    object: ObjectId | None
    unique: int
    left: tuple[int, int] | None = None  # earlier versions did not write it down


@dataclass(frozen=True, slots=True)
class KnownListing:
    """An open directory; `names` is None before the first read."""

    number: int
    directory: ObjectId
    names: list[Name] | None


@dataclass(slots=True)
class Remembered:
    """All that was written down.

    Attributes:
        init: the kernel's INIT request.
        begun: objects that an open had begun to make and that were not known to be open yet.
        answered: the requests to which open files were the last answers, given or not.
        backings: all that were given out, as far as is known.
        highest_handle, highest_listing, highest_backing: above all that were ever given out.
    """

    init: bytes = b""
    nodes: dict[int, KnownNode] = field(default_factory=dict)
    aliases: dict[int, int] = field(default_factory=dict)
    handles: dict[int, KnownHandle] = field(default_factory=dict)
    listings: dict[int, KnownListing] = field(default_factory=dict)
    begun: set[ObjectId] = field(default_factory=set)
    answered: deque[int] = field(default_factory=lambda: deque(maxlen=ANSWERED))
    backings: set[int] = field(default_factory=set)
    highest_handle: int = 0
    highest_listing: int = 0
    highest_backing: int = 0

    @classmethod
    def read(cls, lines: Iterable[bytes]) -> Remembered:
        """What `lines` say; a last one that is not whole was written by a dying worker."""
        found, rest = cls(), iter(lines)
        while some := list(islice(rest, TOGETHER)):
            if not some[-1].endswith(b"\n"):
                some.pop()
            for item in json.loads(b"[" + b",".join(some) + b"]"):
                found._take(item)
        return found

    def _take(self, item: list[Any]) -> None:
        what = item[0]
        if what == "n":
            self._take_node(item)
        elif what == "k":
            if item[1] in self.nodes:
                self.nodes[item[1]].lookups = item[2]
        else:
            self._take_other(item)

    def _take_other(self, item: list[Any]) -> None:
        match item[0]:
            case "h":
                self._take_handle(item[1:])
            case "l":
                self._take_listing(item[1:])
            case "t":
                self.highest_handle = max(self.highest_handle, item[1])
                self.highest_listing = max(self.highest_listing, item[2])
                self.highest_backing = max(self.highest_backing, item[3])
            case "a":
                self.aliases[item[1]] = item[2]
            case "b":
                self.begun.add(item[1])
            case "i":
                self.init = bytes.fromhex(item[1])

    def _take_node(self, item: list[Any]) -> None:
        ino = item[1]
        before = self.nodes.pop(ino, None)
        if before is not None and before.shared is not None:
            old = before.shared.inode
            if self.aliases.get(old) == ino:
                del self.aliases[old]
        if len(item) < 4:
            if len(item) == 3:
                self.aliases[item[2]] = ino
            return
        _, _, kind, lookups, obj, shared, names, unlinked, ctimes, directory = item
        objects: tuple[ObjectId | None, ...] = () if before is None else before.objects[-OLDER:]
        if objects[-1:] != (obj,):
            objects = (*objects, obj) if objects else NOTHING if obj is None else (obj,)
        where = None
        if shared is not None:
            where = Location(shared[0], shared[1].encode("latin-1"), shared[2])
            if where.inode != ino:
                self.aliases[where.inode] = ino
        if where is not None and names == [shared[:2]]:  # of nearly all: one name is kept once
            places = {(where.directory, where.name)}
        else:
            places = {(parent, name.encode("latin-1")) for parent, name in names}
        self.nodes[ino] = KnownNode(
            ino, KINDS[kind], lookups, objects, where, places, unlinked,
            None if ctimes is None else (ctimes[0], ctimes[1]),
            None if directory is None else KnownDirectory(
                directory[0], directory[1], name_of(directory[2]), directory[3], directory[4]
            ),
        )  # fmt: skip

    def _take_handle(self, item: list[Any]) -> None:
        self.highest_handle = max(self.highest_handle, item[0])
        if len(item) == 1:
            self.handles.pop(item[0], None)
            return
        if item[8:] and item[8] is not None:
            item[8] = tuple(item[8])
        handle = KnownHandle(*item)
        if handle.number not in self.handles:
            self.answered.append(handle.unique)
        if handle.writable and handle.object is not None:
            self.begun.discard(handle.object)
        self.handles[handle.number] = handle
        self.highest_backing = max(self.highest_backing, handle.backing)
        if handle.backing:
            self.backings.add(handle.backing)

    def _take_listing(self, item: list[Any]) -> None:
        self.highest_listing = max(self.highest_listing, item[0])
        if len(item) == 1:
            self.listings.pop(item[0], None)
            return
        number, directory, names = item
        if isinstance(names, list):  # of an earlier version
            names = "/".join(names)
        if names is not None:
            names = name_of(names).split(b"/") if names else []
        self.listings[number] = KnownListing(number, directory, names)
