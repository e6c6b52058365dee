"""What is known of the directories that are in use, for when the shared tier does not answer.

They are those of the configuration (`components`), those in which something was changed here of
late, and all above them. Nothing of it is ever used while the tier answers.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tierfs.model import (
    STAGED,
    XATTR_FIELD,
    Attributes,
    Kind,
    Name,
    ObjectId,
    Op,
    OpKind,
    Reopen,
    Signature,
)
from tierfs.namespace.overlay.nodes import Location
from tierfs.shared import Entry, Place, SharedTier

MOST_DIRECTORIES = 64
MOST_ENTRIES = 1000
"""So many names of a directory are kept with their attributes; of the others it is only known that
they are there."""

LOOK_SECONDS = 5.0
"""How often a directory is looked at."""

LOOK_SHARE = 20
"""And not before so many times as long as the look took."""

MOST_REMOVED = 10_000

Stamp = tuple[int, int, int]

NO_LOOK: Stamp = (0, 0, 0)
"""Of a directory that was not looked at yet."""


class Bare(NamedTuple):
    """That something is there, and no more."""

    kind: Kind
    inode: int

    @classmethod
    def of(cls, st: os.stat_result) -> Bare:
        """Of what has these attributes."""
        return cls(Kind.of_mode(st.st_mode), st.st_ino)


@dataclass(frozen=True, slots=True)
class Looked:
    """A directory of the shared tier as it was when it was looked at.

    Attributes:
        here: the directory itself.
        names: None if nothing changed since the look before.
        staged: final names of the unsealed checkpoints in it.
    """

    here: Entry
    xattrs: dict[bytes, bytes]
    stamp: Stamp
    names: dict[Name, Entry | Bare] | None = None
    staged: frozenset[Name] = frozenset()


@dataclass(slots=True)
class Known:
    """What is known of one directory.

    Attributes:
        here: of the directory itself.
        names: what stands there.
        staged: final names of unsealed checkpoints.
        removed: what this mount has removed there.
        assumed: names that were taken for free although the tier could not be asked.
    """

    here: os.stat_result
    names: dict[Name, Entry | Bare]
    staged: set[Name]
    xattrs: dict[bytes, bytes]
    stamp: Stamp
    removed: set[Name] = field(default_factory=set)
    assumed: set[Name] = field(default_factory=set)

    def entry(self, name: Name) -> Entry | None:
        """What stands under `name` with its attributes, if they are known."""
        found = self.names.get(name)
        return found if isinstance(found, Entry) else None


class Announced:
    """The directories in use, the last one used last. Synchronous, no I/O.

    Attributes:
        changes: counts what is worth to be written down for the next worker.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[ObjectId, None] = OrderedDict()
        self._known: dict[ObjectId, Known] = {}
        self._due: dict[ObjectId, float] = {}
        self._renewed: set[ObjectId] = set()  # xattrs of these were changed during a look
        self.changes = 0

    def issued(self, kind: OpKind, parent: ObjectId, about: ObjectId) -> None:
        """An op is issued in `parent`; what a MKDIR makes is going to be used."""
        self.used(parent)
        if kind is OpKind.MKDIR:
            self.used(about)

    def used(self, directory: ObjectId) -> None:
        """Something is changed in `directory`."""
        self._used[directory] = None
        self._used.move_to_end(directory)

    def get(self, directory: ObjectId) -> Known | None:
        """What is known of `directory`."""
        return self._known.get(directory)

    def known(self) -> list[ObjectId]:
        """The directories of which something is known."""
        return list(self._known)

    def due(self, now: float) -> list[ObjectId]:
        """The directories to be looked at, those used last first."""
        return [each for each in reversed(self._used) if self._due.get(each, now) <= now]

    def surplus(self) -> list[ObjectId]:
        """Forgets all but the last used; returns those."""
        gone = []
        while len(self._used) > MOST_DIRECTORIES:
            directory, _ = self._used.popitem(last=False)
            gone.append(directory)
            self.forget(directory)
        return gone

    def forget(self, directory: ObjectId) -> None:
        """`directory` is not there any more."""
        self._used.pop(directory, None)
        self._known.pop(directory, None)
        self._due.pop(directory, None)
        self._renewed.discard(directory)

    def later(self, directory: ObjectId, now: float, seconds: float) -> None:
        """`directory` was looked at, which took `seconds`."""
        self._due[directory] = now + max(LOOK_SECONDS, LOOK_SHARE * seconds)

    def looked(self, directory: ObjectId, found: Looked, changed: Iterable[Name]) -> None:
        """What a look at `directory` told; of the names in `changed` it may be old."""
        known = self._known.get(directory)
        here, xattrs = found.here.st, found.xattrs
        if known is not None and directory in self._renewed:  # they may be from before that
            here, xattrs = known.here, known.xattrs
        if found.names is None:
            if known is not None:
                known.here, known.xattrs = here, xattrs
            return
        names = found.names
        fresh = Known(here, names, set(found.staged), xattrs, found.stamp)
        if known is not None:
            fresh.removed = known.removed - names.keys()
            for name in changed:
                names.pop(name, None)
                if name in known.names:
                    names[name] = known.names[name]
        self._known[directory] = fresh
        self.changes += 1

    def restore(self, known: Mapping[ObjectId, Known]) -> None:
        """What an earlier worker of the mount has written down, those used last at the end."""
        for directory, each in known.items():
            self.used(directory)
            self._known[directory] = each

    def newest(self) -> Iterator[tuple[ObjectId, Known]]:
        """What is known, those used last first."""
        for directory in reversed(self._used):
            if directory in self._known:
                yield directory, self._known[directory]

    def begin_look(self, directory: ObjectId) -> Stamp | None:
        """What `directory` is like now will be told by `looked`; the stamp of the look before."""
        self._renewed.discard(directory)
        known = self._known.get(directory)
        return None if known is None else known.stamp

    def made(self, directory: ObjectId, st: os.stat_result, xattrs: dict[bytes, bytes]) -> None:
        """`directory` has just been made: nothing but our own stands in it."""
        if directory in self._used and directory not in self._known:
            self._known[directory] = Known(st, {}, set(), xattrs, NO_LOOK)
            self.changes += 1

    def committed(
        self, op: Op, st: os.stat_result | None, other: os.stat_result | None,
        xattrs: dict[bytes, bytes] | None,
    ) -> None:  # fmt: skip
        """`op` is on the shared tier; `st` and `other`: what has its names now. `xattrs`: those of
        the directory that it changed, None if they are not at hand.
        """
        if st is not None and (known := self._known.get(op.object)) is not None:
            known.here = st
            if xattrs is not None:
                known.xattrs = xattrs
                self._renewed.add(op.object)
                self.changes += 1
            elif any(field.startswith(XATTR_FIELD) for field in op.fields):
                del self._known[op.object]  # which it has now is not at hand
                self._due.pop(op.object, None)
        known = self._known.get(op.parent)
        if known is not None:
            if op.kind is OpKind.MKDIR and STAGED in op.fields:
                known.staged.add(op.name)
            elif op.kind is OpKind.REOPEN and op.flags != Reopen.GIVEN_UP:
                known.names.pop(op.name, None)
                known.staged.add(op.name)
            elif op.kind in (OpKind.UNLINK, OpKind.RMDIR, OpKind.TRASH):
                _gone(known, op.name)
            elif st is not None:
                _there(known, op, op.name, st)
        if op.kind is not OpKind.RENAME or op.parent2 is None or op.name2 is None:
            return
        if (known := self._known.get(op.parent2)) is None:
            return
        if other is None:
            _gone(known, op.name2)
        else:
            _there(known, op, op.name2, other)

    def assumed(self, directory: ObjectId, name: Name) -> bool:
        """Whether `name` was taken for free, see `Known.assumed`."""
        known = self._known.get(directory)
        return known is not None and name in known.assumed

    def attributes(self, place: Location | None) -> Attributes | None:
        """What was known of a file at `place`, if it still is that file."""
        entry = self.at(place)
        return None if entry is None else Attributes.of(entry.st)

    def signature(self, place: Location | None) -> Signature | None:
        """Its signature."""
        entry = self.at(place)
        return None if entry is None else Signature.of(entry.st)

    def at(self, place: Location | None) -> Entry | None:
        """What was seen at `place`, if it still is that file."""
        known = None if place is None else self._known.get(place.directory)
        entry = None if known is None or place is None else known.entry(place.name)
        return entry if entry is not None and place and entry.st.st_ino == place.inode else None


def look_at(place: Place, shared: SharedTier, before: Stamp | None) -> Looked:
    """Looks at a directory; at its names only if it is not as it was. Blocking."""
    here = shared.lookup(place, b"")
    assert here is not None
    xattrs = shared.xattrs(place, b"")
    st = here.st
    stamp = (st.st_ino, st.st_mtime_ns, st.st_ctime_ns)
    if stamp == before:
        return Looked(here, xattrs, stamp)
    listed = shared.listing(place).items()
    staged = frozenset(shared.staged_groups(place))
    names: dict[Name, Entry | Bare] = {name: Bare(*seen) for name, seen in listed}
    asked = list(names)[:MOST_ENTRIES]
    entries = zip(asked, shared.stat_many(place, asked), strict=True)
    names.update((name, entry) for name, entry in entries if entry is not None)
    return Looked(here, xattrs, stamp, names, staged)


def _gone(known: Known, name: Name) -> None:
    known.names.pop(name, None)
    if len(known.removed) < MOST_REMOVED:
        known.removed.add(name)


def _there(known: Known, op: Op, name: Name, st: os.stat_result) -> None:
    known.removed.discard(name)
    known.staged.discard(name)
    kind = Kind.of_mode(st.st_mode)
    before = known.entry(name)
    if kind is Kind.SYMLINK:
        known.names[name] = Bare.of(st)  # where it leads is not at hand
    elif kind is Kind.DIRECTORY:
        known.names[name] = Entry(st, directory_id=op.object)
    elif before is None and len(known.names) >= MOST_ENTRIES:
        known.names[name] = Bare.of(st)
    else:
        known.names[name] = Entry(st)


def kinds(names: Mapping[Name, Entry | Bare]) -> dict[Name, Bare]:
    """As a listing tells them."""
    return {
        name: each if isinstance(each, Bare) else Bare.of(each.st) for name, each in names.items()
    }
