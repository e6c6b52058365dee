"""Checkpoints on a shared tier, made as the write-back makes them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.component.shared.support import TOP, attributes
from tests.faults import FaultyOS, failing
from tierfs.model import Kind, ObjectId
from tierfs.shared import Found, ManifestLine, Place, SharedTier, staging_name

GROUP = ObjectId(0x5111111111111111)
OLDER = ObjectId(0x5222222222222222)
SUB = ObjectId(0x5333333333333333)
NAME = b"checkpoint-5"
STAGED = ".staging_checkpoint-5"
FINAL = "checkpoint-5"
MTIME_NS = 1_600_000_000_000_000_123
KEEP = 7 * 86400.0


def stage_group(tier: SharedTier, root: Path, group: ObjectId = GROUP, text: str = "new") -> int:
    """An unsealed checkpoint of two files and a subdirectory; the inode of its directory."""
    inode = make_directory(tier, TOP, staging_name(NAME), group)
    tier.open_group(TOP, NAME, group, inode)
    fill(tier, root / STAGED, text)
    return inode


def make_directory(tier: SharedTier, place: Place, name: bytes, id: ObjectId) -> int:
    look = attributes(Kind.DIRECTORY, mode=0o2750)
    staged = tier.stage_directory(1, name, look, {b"user.a": b"1"}, id, place=place)
    return tier.publish_directory(staged, place, name).st.st_ino


def fill(tier: SharedTier, folder: Path, text: str) -> None:
    """Whoever calls this again after a crash gets the same."""
    path = os.fsencode(folder.relative_to(tier.root))
    if not (folder / "sub").exists():
        make_directory(tier, Place(path), b"sub", SUB)
    for name in ("model.bin", "sub/shard.bin"):
        (folder / name).write_text(f"{text} {name}")
    os.utime(folder, ns=(MTIME_NS, MTIME_NS))


def manifest_of(found: list[Found]) -> list[ManifestLine]:
    return [
        ManifestLine(each.path, each.size, each.mode, each.digest)
        for each in found
        if each.kind is Kind.FILE
    ]


def seal(tier: SharedTier, group: ObjectId, inode: int, replaced: ObjectId | None = None) -> None:
    """Seal what is staged, if it is not sealed yet."""
    entry = tier.lookup_staged(TOP, staging_name(NAME))
    staged = entry is not None and entry.st.st_ino == inode
    place = Place(staging_name(NAME) if staged else NAME)
    manifest = manifest_of(tier.walk(place))
    st = tier.seal(TOP, NAME, group, inode, manifest=manifest, replaced=replaced)
    assert st.st_ino == inode


def sealed_group(tier: SharedTier, root: Path, group: ObjectId, text: str) -> int:
    inode = stage_group(tier, root, group, text)
    seal(tier, group, inode)
    return inode


def begin_next(tier: SharedTier, root: Path) -> int:
    """A sealed checkpoint of which the next generation is begun; the inode of that."""
    sealed_group(tier, root, GROUP, "old")
    return tier.reopen_linked(TOP, NAME, GROUP, 7)[0].inode


def fail_to_seal(tier: SharedTier, system: FaultyOS, step: str, inode: int) -> None:
    """Try to seal `inode`; it fails at `step`, once."""
    system.hook = failing(step, errno.EIO)
    try:
        seal(tier, GROUP, inode)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    else:
        raise AssertionError(f"{step} did not fail")


def files_in(folder: Path) -> dict[str, str]:
    """Path → content of every file below `folder`."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def whole(text: str) -> dict[str, str]:
    return {name: f"{text} {name}" for name in ("model.bin", "sub/shard.bin")}


def texts(root: Path, below: str) -> list[dict[str, str]]:
    """The files of each checkpoint in ``.tierfs/BELOW``."""
    folder = root / ".tierfs" / below
    return [files_in(path) for path in sorted(folder.iterdir())] if folder.exists() else []
