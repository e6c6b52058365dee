"""What the tests of the shared tier have in common, also in subprocesses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierfs.model import Attributes, Kind
from tierfs.osio import OS
from tierfs.shared import FileJob, Place, SharedTier
from tierfs.threads import Pool

MIB = 1 << 20
CHUNK = 64 * MIB
MEMBER = "a" * 32
TOP = Place(b"")
MTIME_NS = 1_700_000_000_123_456_789


@dataclass(frozen=True)
class Settings:
    digest: str = "sha256"
    lease: float = 3600.0
    sha256sums: bool = False
    small_file: int = 1 << 20
    small_reserve: int = 0
    transfer_chunks: int = 4


def make_tier(
    root: Path,
    system: OS | None = None,
    *,
    member: str = MEMBER,
    settings: Settings | None = None,
    expected_id: str | None = None,
    absent: int | None = None,
) -> SharedTier:
    return SharedTier(
        root,
        member,
        system or OS(),
        settings or Settings(),
        shared_threads=Pool("shared", 8),
        transfer_threads=Pool("transfer", 4),
        expected_id=expected_id,
        absent=absent,
    )


def attributes(
    kind: Kind = Kind.FILE, *, mode: int = 0o640, uid: int = 1000, gid: int = 1001, size: int = 0
) -> Attributes:
    return Attributes(kind, mode, uid, gid, size, MTIME_NS - 1, MTIME_NS, MTIME_NS)


@contextmanager
def job_of(path: Path, row: int = 1, name: bytes = b"file", **more: Any) -> Iterator[FileJob]:
    """A job that sends the file `path`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        values = {"attributes": attributes(size=size), "size": size, **more}
        yield FileJob(source_fd=fd, row=row, name=name, **values)
    finally:
        os.close(fd)


def staging_names(tier: SharedTier) -> list[str]:
    """Everything in the staging directories of the tier's member."""
    top = tier.root / ".tierfs/staging" / tier.member
    return sorted(str(path.relative_to(top)) for path in top.glob("*/*"))


def names(directory: Path) -> list[str]:
    """What is in `directory`."""
    return sorted(path.name for path in directory.iterdir())
