"""What can be posted to the journal. Every change is idempotent, so a replay does no harm."""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.model import (
    CleanRecord,
    DirectoryRecord,
    GroupRecord,
    ObjectId,
    ObjectRecord,
    Op,
)


@dataclass(frozen=True, slots=True)
class SaveOp:
    """Insert the row of `op`, or replace it."""

    op: Op


@dataclass(frozen=True, slots=True)
class DropOp:
    """Remove the row of an op that is committed or dropped."""

    row: int


@dataclass(frozen=True, slots=True)
class SaveObject:
    """Insert or replace the record of a local object."""

    record: ObjectRecord


@dataclass(frozen=True, slots=True)
class DropObject:
    """Forget a local object that no op needs any more."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class SaveDirectory:
    """Insert or replace where a directory stands on the shared tier."""

    record: DirectoryRecord


@dataclass(frozen=True, slots=True)
class DropDirectory:
    """Forget a directory."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Insert or replace the record of an unsealed checkpoint."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class DropGroup:
    """A checkpoint is sealed or removed."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class SaveClean:
    """Insert or replace the record of a clean copy, keyed by its inode on the shared tier."""

    record: CleanRecord


@dataclass(frozen=True, slots=True)
class DropClean:
    """Forget the clean copy of the shared file `inode`."""

    inode: int


@dataclass(frozen=True, slots=True)
class TouchClean:
    """The clean copy of the shared file `inode` was used at `used_ns` (CLOCK_REALTIME)."""

    inode: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class SavePin:
    """The shared file or directory `inode` is pinned."""

    inode: int
    directory: bool


@dataclass(frozen=True, slots=True)
class DropPin:
    """It is not any more."""

    inode: int


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """The kernel's request `unique` is carried out by what is posted with it.

    It is the number that the kernel gave, without FUSE_UNIQUE_RESEND.
    """

    unique: int


@dataclass(frozen=True, slots=True)
class DropRequests:
    """The kernel has the answers to these requests."""

    uniques: tuple[int, ...]


Change = (
    SaveOp
    | DropOp
    | SaveObject
    | DropObject
    | SaveDirectory
    | DropDirectory
    | SaveGroup
    | DropGroup
    | SaveClean
    | DropClean
    | TouchClean
    | SavePin
    | DropPin
    | SaveRequest
    | DropRequests
)
