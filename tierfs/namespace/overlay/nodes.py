"""The things that the namespace is made of: nodes, local objects, overlay entries, handles.

Plain state. Every change to it happens in one synchronous step (see docs/CONCURRENCY.md).
"""

from __future__ import annotations

import enum
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from tierfs.journal import Ticket
from tierfs.model import SPECIAL, Attributes, Kind, Name, ObjectId, Op, OpKind, Signature

UNKNOWN_INODE = 0
"""There is something on the shared tier under the name, but its inode is not known."""


class Lock:
    """A lock held over awaits, which does not let others run when it is free."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *exception: object) -> None:
        self._lock.release()

    @property
    def held(self) -> bool:
        """Whether somebody has it."""
        return self._lock.locked()


class Content(enum.Enum):
    """What of an object is on the local tier."""

    NONE = "none"  # a reference: content and attributes are those of the shared entry
    STUB = "stub"  # attributes are local, content is that of the shared entry
    DATA = "data"  # everything is local


@dataclass(slots=True)
class Location:
    """Where a committed entry stands on the shared tier now."""

    directory: ObjectId
    name: Name
    inode: int


@dataclass(slots=True, eq=False)
class LocalObject:
    """An object that pending ops or open files need.

    Attributes:
        attributes: what the local tier says of it; None when it has to be asked again.
        links: names that pending ops will give its committed version, less those they take.
        committed_links: names that its committed version had when that was last seen or changed;
            None of a restored stub until the shared tier was asked.
        losing: ops that will put something else under one of its names.
        version: counts its changes; who awaited an answer compares it.
        fd, write_fd: read-only, and read-write; all handles share them, positioned I/O only; -1
            when closed.
        users: handles that use them, and who waits for the end of writing.
        writers: handles open for writing.
        dirty: written since the last FLUSH.
        live: the kernel writes to it past the daemon, through an open file or a mapping.
        settling: no handle writes any more, but a mapping (or a lost race) may.
        noted: (size, mtime, ctime) when it was last looked whether it had changed.
        left: (size, mtime) when it was last known not to be `dirty`, for the next worker; None: it
            is not known since when.
        pending: ops that need it.
        put: the op that will send its content, if one is pending.
        made: the row that made it, until it is known to be written.
        supersedes: op of the state before, until this one is closed.
        origin: state of the shared file that it was copied from.
        scratch: a file that stays on this node; an op that is never sent keeps each of its names.
        clean: a CleanRecord of the journal refers to it.
        flushed_at: clock value of the last FLUSH that found a change.
        xattrs: the names of its xattrs, None when they have to be asked for.
    """

    id: ObjectId
    kind: Kind
    content: Content
    attributes: Attributes | None = None
    fd: int = -1
    write_fd: int = -1
    users: int = 0
    writers: int = 0
    dirty: bool = False
    live: bool = False
    settling: bool = False
    noted: tuple[int, int, int] | None = None
    left: tuple[int, int] | None = None
    pending: int = 0
    put: Op | None = None
    made: Ticket | None = None
    supersedes: Op | None = None
    origin: Signature | None = None
    clean: bool = False
    scratch: bool = False
    flushed_at: float = 0.0
    xattrs: frozenset[bytes] | None = None
    links: int = 0
    committed_links: int | None = 1
    losing: set[Op] = field(default_factory=set)
    version: int = 0

    def changed(self) -> None:
        """What is known of its attributes and xattrs may not be true any more."""
        self.attributes = self.xattrs = None
        self.version += 1


def _remembered(slot: str, *, counts: bool = False) -> Any:
    """A property of `Node` kept in `slot`: setting it notes that the node is to be remembered."""
    kept = operator.attrgetter(slot)

    def put(node: Node, value: Any) -> None:
        setattr(node, slot, value)
        if node.changed is not None:
            if counts:
                node.changed.setdefault(node, False)
            else:
                node.changed[node] = True

    return property(kept, put)


_SLOTS = (
    "_ctimes", "_lock", "_lookups", "_names", "_object", "_shared", "_unlinked", "backing",
    "changed", "directory", "handles", "ino", "kind", "last", "linked_ns", "opened", "seen",
    "unknown",
)  # fmt: skip


class Node:
    """What the kernel knows under one nodeid. There may be millions: what few need comes late.

    The fields with a property outlive the process. Who changes `names` in place sets another of
    them in the same step, or tells `Tree.renamed`.

    Attributes:
        ino: nodeid and st_ino; never used again while the mount lives.
        lookups: how many the kernel holds; it may be above, never below, what the kernel counts.
        directory: the directory id, of directories.
        object: the local object that answers for it, if it has one.
        shared: where its committed version stands, if there is one (of a directory only the
            inode counts: `shared.Places` knows where it stands).
        names: the names it has in the mount, as far as they are known here.
        unknown: names that it has on the shared tier and that were not looked at here.
        unlinked: the last name is gone; open handles go on.
        last: what the shared tier said of it before its last name went.
        opened: handles that the kernel has; while there are any, all go the same way.
        backing: the passthrough backing of those handles, 0 if they go through the daemon.
        seen: signature of the shared file at the last open: the kernel's pages are of that state.
        ctimes: ctime of the shared entry that our own commit left, and the one to show for it: a
            commit is no change that an application made (tar would say that the file changed).
        linked_ns: when a name was last given or taken here: its ctime is no older.
        handles: open files, see `attach` and `detach`.
        changed: collects the nodes of which something has to be remembered again: more than the
            lookups?
    """

    __slots__ = _SLOTS

    lookups: int = _remembered("_lookups", counts=True)
    object: LocalObject | None = _remembered("_object")
    shared: Location | None = _remembered("_shared")
    names: set[tuple[ObjectId, Name]] = _remembered("_names")
    unlinked: bool = _remembered("_unlinked")
    ctimes: tuple[int, int] | None = _remembered("_ctimes")

    def __init__(
        self, ino: int, kind: Kind, changed: dict[Node, bool] | None = None, *, lookups: int = 0
    ) -> None:
        self.ino = ino
        self.kind = kind
        self.changed = changed
        self._lookups = lookups
        self.directory: ObjectId | None = None
        self._object: LocalObject | None = None
        self._shared: Location | None = None
        self._names: set[tuple[ObjectId, Name]] = set()
        self.unknown = 0
        self._unlinked = False
        self.last: Attributes | None = None
        self.opened = 0
        self.backing = 0
        self.seen: Signature | None = None
        self._ctimes: tuple[int, int] | None = None
        self.linked_ns = 0
        self.handles: frozenset[Handle] = frozenset()
        self._lock: Lock | None = None
        if changed is not None:
            changed[self] = True

    @property
    def lock(self) -> Lock:
        """Held over the steps of one open, close or change of attributes."""
        if self._lock is None:
            self._lock = Lock()
        return self._lock

    def attach(self, handle: Handle) -> None:
        """One more open file of it."""
        self.handles |= {handle}

    def detach(self, handle: Handle) -> None:
        """One less."""
        self.handles -= {handle}

    @property
    def stays(self) -> bool:
        """Whether it is a fifo, socket, device or scratch file of this node: never sent."""
        if self.object is None or self.object.content is not Content.DATA:
            return False
        return self.object.scratch or self.kind in SPECIAL

    def answering(self) -> LocalObject | None:
        """The object that answers for it; once it has no name, what its open handles have."""
        obj = self.object
        if obj is not None and obj.content is not Content.NONE:
            return obj
        if self.shared is not None and not self.unlinked:
            return obj
        return next((each.object for each in self.handles if each.object is not None), obj)

    def keep_last(self, st: os.stat_result | None, known: Attributes | None = None) -> None:
        """Its name may go from the shared tier; who has it open may go on asking.

        `st`: what the tier just said; `known`: what it said earlier of a directory.
        """
        if st is not None:
            self.last = Attributes.of(st)
        elif known is not None:
            self.last = known

    def a_name(self) -> tuple[ObjectId, Name] | None:
        """One of its names, None when it has none any more."""
        return next(iter(self.names), None)


@dataclass(slots=True, eq=False)
class Handle:
    """An open file.

    Attributes:
        shared_fd: descriptor of the shared file when it is read from there, else -1.
        uses: calls on `shared_fd` under way; after the RELEASE the last of them closes it.
        closed: the RELEASE has come.
        leaving: set when its RELEASE, which has come, is carried out.
        opener: process id of who opened it, 0 if unknown.
        backing: the passthrough backing that the kernel was given for it, 0 if none.
        granted: the kernel has it; false of files that are opened for a call of our own.
        flushed: its opener has closed it at least once, by itself.
        keep_cache: the kernel's pages of the file are still good.
        born: of a file that this open made, its attributes then.
    """

    number: int
    node: Node
    writable: bool
    object: LocalObject | None = None
    shared_fd: int = -1
    uses: int = 0
    closed: bool = False
    leaving: trio.Event | None = None
    opener: int = 0
    backing: int = 0
    granted: bool = False
    flushed: bool = False
    keep_cache: bool = True
    born: Attributes | None = None


@dataclass(slots=True)
class Entry:
    """What the overlay says of one name.

    Attributes:
        object: what has the name; None: a whiteout, the name is gone here.
        op: the last op that concerns the name.
        shared_inode: inode that the shared tier has under the name now, None if nothing.
    """

    object: LocalObject | None
    op: Op
    shared_inode: int | None = None


@dataclass(slots=True, eq=False)
class Scan:
    """A listing of the shared tier: names, what they are and their inodes.

    Attributes:
        changed: the names whose overlay entry changed since it began: name → it is there now.
        unsealed: the unsealed checkpoints when it began.
        no_more: what of `found` was to be renamed back then (see `Listings`).
        until: clock value until when it may be taken for the present state.
    """

    found: Mapping[Name, tuple[Kind, int]]
    changed: dict[Name, bool]
    unsealed: dict[Name, ObjectId]
    until: float
    no_more: set[Name] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class DirectoryState:
    """A directory as the mount shows it.

    Attributes:
        parent, name: its place in the logical tree; None and b"" for the root.
        inode: of the shared directory, while no node stands for it.
        entries: the overlay of its names.
        changes: counts every change of `entries`; who awaited compares it.
        ctime_ns: when owner, mode, times or xattrs were changed here; commits in it do not count.
        known: what the shared tier said of it last, for when that does not answer;
        known_until: clock value until when it need not be asked again.
        changed_ns: mtime that the application's own changes gave it, 0 if none are pending.
        settled: clock value until when `changed_ns` is shown although nothing is pending.
        children: how many known directories have it as parent.
        pins: ops that are about it or a name in it, and directories in it that are pinned; its
            record is journaled while there are any.
        watchers: listings under way; each collects name → there or gone.
        removed: it was removed here; nothing new may be made in it.
        vouched: a committed name in it says that it is whole (a commit name of DESIGN 5).
        unsealed: the unsealed checkpoints seen in it: name → directory id.
        subdirectories: what pending ops add to those that the shared tier has in it;
        counted: how often one of them has ended: who awaited an answer compares it.
        scan: what the shared tier has just listed of it.
        rebuilt: clock value when others took the place of the files in it (a generation given up).
    """

    id: ObjectId
    parent: ObjectId | None
    name: Name
    inode: int | None = None
    entries: dict[Name, Entry] = field(default_factory=dict)
    changes: int = 0
    changed_ns: int = 0
    ctime_ns: int = 0
    known: Attributes | None = None
    known_until: float = 0.0
    settled: float = 0.0
    children: int = 0
    pins: int = 0
    watchers: list[dict[Name, bool]] = field(default_factory=list)
    removed: bool = False
    vouched: bool = False
    unsealed: dict[Name, ObjectId] = field(default_factory=dict)
    subdirectories: int = 0
    counted: int = 0
    scan: Scan | None = None
    rebuilt: float = 0.0

    def put(self, name: Name, entry: Entry) -> None:
        """Sets what the overlay says of `name`."""
        self.entries[name] = entry
        self._changed(name, entry.object is not None)

    def drop(self, name: Name) -> None:
        """The overlay says nothing of `name` any more; the shared tier answers."""
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._changed(name, entry.object is not None)

    def forget(self, name: Name) -> None:
        """Drops an entry whose name exists nowhere now."""
        if self.entries.pop(name, None) is not None:
            self._changed(name, False)

    def look_again(self, name: Name) -> None:
        """The overlay says of `name` what it said; what the shared tier told is of the past."""
        entry = self.entries.get(name)
        self._changed(name, entry is None or entry.object is not None)

    def shows_any(self) -> bool:
        """Whether the overlay has a name in it that is there."""
        return any(entry.object is not None for entry in self.entries.values())

    def is_pending(self) -> bool:
        """Whether the shared tier will get any of its names, or lose one."""
        return any(entry.op.kind is not OpKind.MKNOD for entry in self.entries.values())

    def _changed(self, name: Name, there: bool) -> None:
        self.changes += 1
        for watcher in self.watchers:
            watcher[name] = there
        if self.scan is not None:
            self.scan.changed[name] = there
