"""The value types that every room speaks: ids, attributes, ops and the records of the journal.

No I/O. A *directory id* is the object id of a directory; it never changes when the directory is
renamed, so pending work is keyed by (directory id, name) and never by a path.
"""

from __future__ import annotations

import enum
import os
import secrets
import stat as stat_module
from dataclasses import dataclass, field
from typing import NewType

ObjectId = NewType("ObjectId", int)
"""Identity of a local object: random, 63 bits with the top one set; also its st_ino."""

Name = bytes
"""One component of a path: any bytes but ``/`` and NUL."""

ROOT = ObjectId(1)
"""The directory id of the root of the namespace."""

TRASH = ObjectId(2)
"""The directory id of the trash of the shared tier: removed checkpoints are emptied there."""


def new_object_id() -> ObjectId:
    """A fresh id. Random, so that members never meet (collision odds at 1e6 objects: 1e-7)."""
    return ObjectId(secrets.randbits(62) | 1 << 62)


class Kind(enum.StrEnum):
    """What an object is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER = "character"
    BLOCK = "block"
    OTHER = "other"

    @classmethod
    def of_mode(cls, mode: int) -> Kind:
        """The kind that the file type bits of `mode` (st_mode) stand for."""
        return _KIND_OF_FORMAT.get(stat_module.S_IFMT(mode), cls.OTHER)

    @property
    def type_bits(self) -> int:
        """The file type bits (S_IFMT) of this kind; 0 for OTHER."""
        return _FORMAT_OF_KIND.get(self, 0)


_KIND_OF_FORMAT = {
    stat_module.S_IFREG: Kind.FILE,
    stat_module.S_IFDIR: Kind.DIRECTORY,
    stat_module.S_IFLNK: Kind.SYMLINK,
    stat_module.S_IFIFO: Kind.FIFO,
    stat_module.S_IFSOCK: Kind.SOCKET,
    stat_module.S_IFCHR: Kind.CHARACTER,
    stat_module.S_IFBLK: Kind.BLOCK,
}
_FORMAT_OF_KIND = {kind: fmt for fmt, kind in _KIND_OF_FORMAT.items()}

DEVICES = frozenset({Kind.CHARACTER, Kind.BLOCK})
SPECIAL = frozenset({Kind.FIFO, Kind.SOCKET}) | DEVICES
"""What leads to processes and drivers of one machine: made here, it stays on this node."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat(2) says of an object; times in nanoseconds, `mode` without the type bits."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    nlink: int = 1
    blocks: int = 0
    rdev: int = 0

    @classmethod
    def of(cls, st: os.stat_result) -> Attributes:
        """The attributes in the stat result `st`."""
        return cls(
            Kind.of_mode(st.st_mode), stat_module.S_IMODE(st.st_mode), st.st_uid, st.st_gid,
            st.st_size, st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns, st.st_nlink,
            st.st_blocks, st.st_rdev,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """What must still match for a local copy of a shared file to be served (G10)."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, st: os.stat_result) -> Signature:
        """The signature of the shared file whose stat result is `st`."""
        return cls(st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)


class OpKind(enum.StrEnum):
    """What an op does to the shared tier. (parent, name) is the name that it makes or takes."""

    PUT = "put"  # content and attributes of a file, under (parent, name)
    MKDIR = "mkdir"
    SYMLINK = "symlink"
    LINK = "link"  # source (parent2, name2)
    RENAME = "rename"  # from (parent2, name2) to (parent, name); flags in `flags`
    UNLINK = "unlink"
    RMDIR = "rmdir"
    SETATTR = "setattr"  # the fields in `fields` of the committed object at (parent, name)
    MKNOD = "mknod"  # a fifo, socket, device or scratch file of this node: never sent, in no order
    SEAL = "seal"  # publishes the checkpoint staged as `.staging_NAME` under (parent, name)
    REOPEN = "reopen"  # begins a new generation of a checkpoint, staged again; how: `flags`
    TRASH = "trash"  # takes a sealed checkpoint away in one rename, to be emptied in the trash


REMOVALS = frozenset({OpKind.UNLINK, OpKind.RMDIR})

STAGED = "staged"
"""In `Op.fields` of MKDIR, RMDIR and RENAME: the directory that is made, taken away or moved is an
unsealed checkpoint, and stands on the shared tier as ``.staging_NAME``."""

XATTR_FIELD = "xattr:"
"""In `Op.fields` of SETATTR, before the name of an xattr."""


def staging_name(name: Name) -> Name:
    """The name that the checkpoint `name` has on the shared tier until it is sealed.

    >>> staging_name(b"checkpoint-5")
    b'.staging_checkpoint-5'
    """
    return b".staging_" + name


EXCHANGED = "exchanged:"
"""In `Op.fields` of RENAME, with an object id in hex: the name has that object, and gives it to the
name that the op comes from (RENAME_EXCHANGE)."""

STALE = "stale"
"""In `Op.fields` of a torn PUT: its checkpoint is written anew since, so it counts no more."""

AS_IS = 1
"""In `Op.flags` of SEAL: somebody said that it is whole, whoever else writes it."""

OLDER = "older"
"""In `Op.fields` of TRASH: what is taken away is the sealed generation under the name, while the
directory that the op is about, a newer one, stays staged. In those of RMDIR and RENAME of a staged
generation: there is such a TRASH, which may be held for longer."""


CUT_OFF = "cut off"
"""In `Op.fields` of UNLINK in a sealed checkpoint: one who unlinked there was killed."""


UNLINKED_BY = "unlinked by "
"""In `Op.fields` of UNLINK in a sealed checkpoint, with id and start time: a process that unlinked
there and has not ended well, as far as is known."""


BLIND = "blind"
"""In `Op.fields` of PUT, SYMLINK, LINK and RENAME: the shared tier could not be asked whether the
name is taken."""


class Reopen(enum.IntEnum):
    """How a REOPEN begins the new generation (`Op.flags`)."""

    LINKED = 1  # a new directory, the files of the sealed one linked in
    WHOLE = 2  # the sealed one itself, renamed back to its staging name
    UNLISTED = 3  # an unsealed one that dead writers left: its files count no more
    GIVEN_UP = 4  # none: what dead writers left of one goes away, the sealed one is as it was


BEGINS = frozenset({Reopen.LINKED, Reopen.WHOLE})
"""Those that begin a generation after one that is sealed."""


class OpState(enum.StrEnum):
    """Where an op stands, as the journal knows it. A committed op has no row."""

    OPEN = "open"  # PUT only: a writer has the file open and has not closed it
    CLOSED = "closed"  # PUT only: flushed, RELEASE has not come yet
    PENDING = "pending"  # issued; goes when its order allows
    PUBLISHING = "publishing"  # `staged_inode` is journaled; the final call may have happened


class Mark(enum.StrEnum):
    """Why an op is out of the order until something changes. Shown as `stuck`."""

    TORN = "torn"  # its writer was killed in the middle
    SUSPECT = "suspect"  # closed, not synced before a reboot, or a failed fsync
    STUCK = "stuck"  # a permanent error of the shared tier, or its object cannot be read


UNDECIDED = frozenset({Mark.TORN, Mark.SUSPECT})
"""Marks of content that somebody has to accept, to write anew, or to discard."""


class Phase(enum.IntEnum):
    """How far the write-back has come with an op in this process. Not journaled."""

    QUEUED = 0
    TRANSFER = 1  # being staged
    STAGED = 2  # staged and verified; waits for its turn to be published
    PUBLISHING = 3  # past the point of no return


@dataclass(slots=True, eq=False)
class Op:
    """One change of the namespace, from its issue to its commit: one row of the journal.

    Attributes:
        row: identity; never reused.
        number: place in the order; of a PUT, taken at its last FLUSH.
        first: number of its first FLUSH: what was issued later waits from there on.
        timestamp_ns: when it was issued (CLOCK_REALTIME).
        changed_ns: the time that its directory's mtime must at least get.
        base_inode: of UNLINK, RMDIR, RENAME, SETATTR, LINK: inode of the shared entry that is
            meant, None when only an op before it will make that entry.
        overwrites: (parent, name) is, or will be by then, a committed name.
        fields: SETATTR: any of mode, owner, times, and ``xattr:NAME``; else see STAGED.
        request: (connection, unique) of the kernel's request.
        size: bytes to send.
        durable: its row and its object are synced.
        scope: directory ids from the root down to `parent`, as they were when it was issued.
        path: the names that lead to it from the root, its own name last.
        targets: directory ids that a symlink or pointer leads to (cover, R2).
        unsealed: it lies, with both its ends, inside an unsealed checkpoint (R1).
        decided: what it takes away or replaces had been lost with the local drive: who does that
            has decided about it, whatever else was lost.
        group: the sealed checkpoint that it lies in; of RENAME that which it takes a name from.
        log: a PUT of a file that stays open: nothing waits for it.
        subdirectories: what its end adds to those that the shared tier has, by directory id.
    """

    row: int
    number: int
    kind: OpKind
    object: ObjectId
    parent: ObjectId
    name: Name
    timestamp_ns: int
    state: OpState = OpState.PENDING
    first: int = 0
    changed_ns: int = 0
    parent2: ObjectId | None = None
    name2: Name | None = None
    base_inode: int | None = None
    overwrites: bool = False
    fields: tuple[str, ...] = ()
    flags: int = 0
    request: tuple[int, int] | None = None
    size: int = 0
    mark: Mark | None = None
    error: str | None = None
    attempts: int = 0
    digest: str | None = None
    staged_inode: int | None = None
    durable: bool = False
    # not journaled
    phase: Phase = Phase.QUEUED
    data_version: int = 0
    attr_version: int = 0
    scope: tuple[ObjectId, ...] = ()
    path: tuple[Name, ...] = ()
    scope2: tuple[ObjectId, ...] = ()
    path2: tuple[Name, ...] = ()
    targets: tuple[ObjectId, ...] = ()
    unsealed: bool = False
    decided: bool = False
    group: ObjectId | None = None
    log: bool = False
    subdirectories: tuple[tuple[ObjectId, int], ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a writer may still change what it would send."""
        return self.state is OpState.OPEN

    @property
    def other(self) -> ObjectId | None:
        """The object that an exchange moves the other way."""
        if not self.fields:
            return None  # asked of every op, often
        found = (field for field in self.fields if field.startswith(EXCHANGED))
        return next((ObjectId(int(field[len(EXCHANGED) :], 16)) for field in found), None)

    def __repr__(self) -> str:
        where = b"/".join(self.path).decode(errors="backslashreplace")
        return f"<{self.kind} #{self.number} {where!r} {self.state} {self.phase.name}>"


@dataclass(slots=True)
class ObjectRecord:
    """One local object that ops need, as the journal knows it.

    Attributes:
        data: whether the content is local; a *stub* (False) carries attributes only, its content
            is that of the shared file `base_inode`.
        base_inode: inode of the shared entry that holds its last committed version, if any.
    """

    id: ObjectId
    kind: Kind
    data: bool
    base_inode: int | None = None


@dataclass(slots=True)
class DirectoryRecord:
    """Where a directory stands on the shared tier *now* (not in the mount's view).

    Attributes:
        inode: its inode there; None while its MKDIR is pending.
        tagged: whether it carries our id as xattr ``user.tierfs.id``.
        tag: the id that it carries instead: another node made it.
    """

    id: ObjectId
    parent: ObjectId
    name: Name
    inode: int | None = None
    tagged: bool = False
    tag: ObjectId | None = None


@dataclass(slots=True)
class CleanRecord:
    """A local copy of a committed file: served while `signature` still matches (G10)."""

    signature: Signature
    object: ObjectId
    digest: str | None
    bytes: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """A process that made an unsealed checkpoint or wrote in it (see `groups.Writers`).

    Attributes:
        process, started: its id and start time.
        state: ``living``, ``exited``, ``killed`` or ``unknown``.
        wrote, closed: it had a file open for writing there, and closed one.
        removed: it removed a file there, and nothing was written there since.
        over: the end markers that were not closed since it changed a file that was there.
    """

    process: int
    started: int
    state: str
    wrote: bool
    closed: bool
    removed: bool = False
    over: tuple[bytes, ...] = ()


@dataclass(slots=True)
class GroupRecord:
    """An unsealed checkpoint that this member wrote in, as the journal knows it.

    Attributes:
        id: its directory id.
        made: place among its siblings: the number of the op that made it here.
        expect: files that ``tierfs commit`` asked for: -1 any number, None not asked.
        older: inode of the sealed generation that stands under its name, None if there is none.
        writers: who wrote in it.
    """

    id: ObjectId
    made: int
    expect: int | None = None
    older: int | None = None
    writers: tuple[WriterRecord, ...] = ()


@dataclass(slots=True)
class JournalSnapshot:
    """All that a mount needs of the journal: O(pending)."""

    ops: list[Op] = field(default_factory=list)
    objects: list[ObjectRecord] = field(default_factory=list)
    directories: list[DirectoryRecord] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
