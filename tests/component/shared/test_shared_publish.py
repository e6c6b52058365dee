"""The commit point, and changes of what is there: done once, durable, repeatable."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.component.shared.support import (
    MTIME_NS,
    TOP,
    attributes,
    job_of,
    names,
    staging_names,
)
from tests.faults import FaultyOS, at, failing
from tierfs.errors import DirectoryGone
from tierfs.model import Kind, ObjectId, OpKind
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import AttributeChange, Place, SharedTier, Staged

OpenTier = Callable[..., SharedTier]
Stage = Callable[..., Awaitable[Staged]]
ID = ObjectId(0x7123456789ABCDEF)
DIRECTORY = attributes(Kind.DIRECTORY, mode=0o2775)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    async def staged(tier: SharedTier, content: bytes = b"new", **more: object) -> Staged:
        (tmp_path / "source").write_bytes(content)
        with job_of(tmp_path / "source", **more) as job:  # type: ignore[arg-type]
            return await tier.stage_file(job)

    return staged


async def test_a_file_takes_the_place_of_the_old_one(
    tier: SharedTier, root: Path, stage: Stage
) -> None:
    (root / "f").write_bytes(b"old")
    staged = await stage(tier)
    assert (root / "f").read_bytes() == b"old"
    st = tier.publish_file(staged, TOP, b"f")
    assert st.st_ino == staged.inode == (root / "f").stat().st_ino
    assert st.st_ctime_ns == (root / "f").stat().st_ctime_ns
    assert (root / "f").read_bytes() == b"new"
    assert staging_names(tier) == []


async def test_noreplace(tier: SharedTier, root: Path, stage: Stage) -> None:
    (root / "f").write_bytes(b"old")
    staged = await stage(tier)
    with pytest.raises(FileExistsError):
        tier.publish_file(staged, TOP, b"f", RENAME_NOREPLACE)
    assert (root / "f").read_bytes() == b"old"
    tier.discard(staged)
    tier.discard(staged)
    assert staging_names(tier) == []


async def test_going_on_after_the_directory_could_not_be_synced(
    root: Path, open_tier: OpenTier, stage: Stage
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    staged = await stage(tier)
    system.hook = failing("put.fsync_dir", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        tier.publish_file(staged, TOP, b"f")
    assert (root / "f").exists()
    assert tier.publish_file(staged, TOP, b"f").st_ino == staged.inode
    assert system.seen.count("put.fsync_dir") == 2


async def test_what_was_staged_is_gone(tier: SharedTier, root: Path, stage: Stage) -> None:
    staged = await stage(tier)
    tier.discard(staged)
    with pytest.raises(FileNotFoundError, match="staged again"):
        tier.publish_file(staged, TOP, b"f")
    assert not (root / "f").exists()


async def test_a_directory_removed_or_replaced_meanwhile(
    root: Path, open_tier: OpenTier, stage: Stage
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    (root / "d").mkdir()
    place = Place(b"d", (root / "d").stat().st_ino)
    staged = await stage(tier)
    system.hook = at("put.rename", 1, lambda *_: (root / "d").rmdir())
    with pytest.raises(DirectoryGone):
        tier.publish_file(staged, place, b"f")
    (root / "d").mkdir()
    if (root / "d").stat().st_ino != place.inode:
        with pytest.raises(DirectoryGone):
            tier.publish_file(staged, place, b"f")
    assert list((root / "d").iterdir()) == []


async def test_a_commit_follows_its_directory(
    root: Path, open_tier: OpenTier, stage: Stage
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    (root / "d").mkdir()
    staged = await stage(tier)
    system.hook = at("put.rename", 1, lambda *_: os.rename(root / "d", root / "moved"))
    tier.publish_file(staged, Place(b"d", (root / "d").stat().st_ino), b"f")
    assert (root / "moved/f").read_bytes() == b"new"
    assert not (root / "d").exists()


async def test_names_of_tierfs_are_not_published(
    tier: SharedTier, root: Path, stage: Stage
) -> None:
    staged = await stage(tier)
    for name in (b".tierfs", b".staging_x"):
        with pytest.raises(FileNotFoundError, match="reserved"):
            tier.publish_file(staged, TOP, name)


def test_a_directory_appears_with_everything(tier: SharedTier, root: Path) -> None:
    staged = tier.stage_directory(3, b"d", DIRECTORY, {b"user.a": b"1"}, ID)
    assert not (root / "d").exists()
    entry = tier.publish_directory(staged, TOP, b"d")
    st = (root / "d").stat()
    assert entry.st.st_ino == st.st_ino == staged.inode
    assert entry.directory_id == ID
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (1000, 1001, 0o2775)
    assert st.st_mtime_ns == MTIME_NS
    assert tier.xattrs(TOP, b"d") == {b"user.a": b"1"}
    again = tier.publish_directory(staged, TOP, b"d")
    assert again.st.st_ino == st.st_ino


def test_a_directory_that_another_node_made_is_adopted(tier: SharedTier, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/f").touch()
    staged = tier.stage_directory(3, b"d", DIRECTORY, {}, ID)
    entry = tier.publish_directory(staged, TOP, b"d")
    assert entry.st.st_ino == (root / "d").stat().st_ino != staged.inode
    assert entry.directory_id is None
    assert (root / "d/f").exists()
    assert staging_names(tier) == []
    (root / "file").touch()
    staged = tier.stage_directory(4, b"file", DIRECTORY, {}, ID)
    with pytest.raises(FileExistsError):
        tier.publish_directory(staged, TOP, b"file")
    assert (root / "file").is_file()


def test_a_symlink_replaces_a_symlink(tier: SharedTier, root: Path) -> None:
    (root / "latest").symlink_to("step-1")
    kind = attributes(Kind.SYMLINK, uid=5, gid=6)
    staged = tier.stage_symlink(4, b"latest", b"step-2", kind)
    st = tier.publish_file(staged, TOP, b"latest")
    assert os.readlink(root / "latest") == "step-2"
    assert (st.st_uid, st.st_gid, st.st_mtime_ns) == (5, 6, MTIME_NS)
    assert st.st_ino == staged.inode


@pytest.mark.parametrize("step", ["mkdir.id", "mkdir.chown", "mkdir.fsync", "mkdir.stat"])
def test_a_failed_directory_leaves_nothing(root: Path, open_tier: OpenTier, step: str) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    system.hook = failing(step, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        tier.stage_directory(3, b"d", DIRECTORY, {}, ID)
    assert staging_names(tier) == []


@pytest.fixture
def other_device(root: Path) -> Iterator[Path]:
    """A directory below the root that is on another file system: renames into it give EXDEV."""
    path = root / "other"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


async def test_staging_beside_the_target_on_another_file_system(
    tier: SharedTier, root: Path, stage: Stage, other_device: Path
) -> None:
    place = Place(b"other")
    staged = await stage(tier, place=place)
    assert staged.beside == place
    assert tier.listing(place) == {}
    assert names(other_device) == [f".staging_{tier.member}_1"]
    tier.publish_file(staged, place, b"f")
    made = tier.stage_directory(2, b"d", DIRECTORY, {}, ID, place=place)
    tier.publish_directory(made, place, b"d")
    link = tier.stage_symlink(3, b"l", b"f", attributes(Kind.SYMLINK), place=place)
    tier.publish_file(link, place, b"l")
    assert names(other_device) == ["d", "f", "l"]
    assert staging_names(tier) == []


async def test_a_directory_that_refuses_renames_is_remembered(
    root: Path, open_tier: OpenTier, stage: Stage
) -> None:
    """As under XFS project quotas: one file system, and yet EXDEV."""
    system = FaultyOS()
    tier = open_tier(root, system)
    (root / "d").mkdir()
    place = Place(b"d")
    staged = await stage(tier, place=place)
    assert staged.beside is None
    system.hook = failing("put.rename", errno.EXDEV)
    with pytest.raises(OSError, match="cross-device"):
        tier.publish_file(staged, place, b"f")
    tier.discard(staged)
    staged = await stage(tier, place=place)
    assert staged.beside == place
    tier.publish_file(staged, place, b"f")
    assert [path.name for path in (root / "d").iterdir()] == ["f"]
    assert staging_names(tier) == []


async def test_what_is_beside_a_target_is_swept_too(
    tier: SharedTier, root: Path, stage: Stage, open_tier: OpenTier, other_device: Path
) -> None:
    place = Place(b"other")
    await stage(tier, place=place)
    (other_device / ".staging_by-somebody-else").touch()
    later = open_tier(root)
    assert later.retire_old_generations() == 1
    assert names(other_device) == [".staging_by-somebody-else"]
    later.sweep()
    assert staging_names(later) == []


def test_unlink_only_what_is_meant(tier: SharedTier, root: Path) -> None:
    (root / "f").touch()
    inode = (root / "f").stat().st_ino
    assert tier.unlink(TOP, b"f", inode + 1) is False
    assert (root / "f").exists()
    assert tier.unlink(TOP, b"f", inode) is True
    assert tier.unlink(TOP, b"f", inode) is False
    (root / "g").touch()
    assert tier.unlink(TOP, b"g", None) is True


def test_rmdir(tier: SharedTier, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/f").touch()
    with pytest.raises(OSError, match="not empty"):
        tier.rmdir(TOP, b"d", None)
    (root / "d/f").unlink()
    assert tier.rmdir(TOP, b"d", (root / "d").stat().st_ino) is True
    assert tier.rmdir(TOP, b"d", None) is False


def test_rename(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    (root / "a").mkdir()
    (root / "b").mkdir()
    (root / "a/f").write_text("moved")
    (root / "b/g").write_text("replaced")
    a, b = Place(b"a"), Place(b"b")
    inode = (root / "a/f").stat().st_ino
    with pytest.raises(DirectoryGone):
        tier.rename(a, b"f", b, b"g", inode + 1)
    with pytest.raises(FileExistsError):
        tier.rename(a, b"f", b, b"g", inode, RENAME_NOREPLACE)
    system.hook = failing("rename.fsync_source", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        tier.rename(a, b"f", b, b"g", inode)
    st = tier.rename(a, b"f", b, b"g", inode)
    assert st.st_ino == inode
    assert (root / "b/g").read_text() == "moved"
    with pytest.raises(FileNotFoundError):
        tier.rename(a, b"f", b, b"h", inode)


@pytest.mark.parametrize("replace", [False, True])
def test_link(tier: SharedTier, root: Path, replace: bool) -> None:
    (root / "f").touch()
    inode = (root / "f").stat().st_ino
    if replace:
        (root / "g").write_text("old")
    for _ in range(2):
        st = tier.link(TOP, b"f", inode, TOP, b"g", row=1, replace=replace)
        assert (st.st_ino, st.st_nlink) == (inode, 2)
    (root / "h").touch()
    with pytest.raises(FileExistsError):
        tier.link(TOP, b"f", inode, TOP, b"h", row=2)
    with pytest.raises(DirectoryGone):
        tier.link(TOP, b"h", inode, TOP, b"i", row=3)
    assert staging_names(tier) == []


def test_attributes_of_files_symlinks_and_the_directory_itself(
    tier: SharedTier, root: Path
) -> None:
    (root / "f").touch()
    os.setxattr(root / "f", "user.old", b"1")
    change = AttributeChange(
        mode=0o4711, uid=3, gid=4, mtime_ns=5, xattrs={b"user.old": None, b"user.new": b"2"}
    )
    inode = (root / "f").stat().st_ino
    assert tier.set_attributes(TOP, b"f", inode + 1, change) is None
    assert tier.set_attributes(TOP, b"gone", None, change) is None
    for _ in range(2):
        st = tier.set_attributes(TOP, b"f", inode, change)
        assert st is not None
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (3, 4, 0o4711)
        assert st.st_mtime_ns == 5
        assert os.listxattr(root / "f") == ["user.new"]
    (root / "l").symlink_to("f")
    st = tier.set_attributes(TOP, b"l", None, AttributeChange(uid=9, mtime_ns=8))
    assert st is not None
    assert stat.S_ISLNK(st.st_mode)
    assert (st.st_uid, st.st_mtime_ns) == (9, 8)
    assert (root / "f").stat().st_uid == 3
    st = tier.set_attributes(TOP, b"", tier.root_inode, AttributeChange(mtime_ns=77))
    assert st is not None
    assert root.stat().st_mtime_ns == 77


def test_a_time_is_not_put_back_behind_what_another_node_did(tier: SharedTier, root: Path) -> None:
    (root / "d").mkdir()
    mtime = (root / "d").stat().st_mtime_ns
    place, change = Place(b"d"), AttributeChange(mtime_ns=1000)
    (root / "d/from-another-node").touch()
    assert tier.set_attributes(place, b"", None, change, if_mtime_ns=mtime) is None
    mtime = (root / "d").stat().st_mtime_ns
    assert tier.set_attributes(place, b"", None, change, if_mtime_ns=mtime) is not None
    assert (root / "d").stat().st_mtime_ns == 1000


def test_whether_an_op_happened(tier: SharedTier, root: Path) -> None:
    (root / "f").touch()
    inode = (root / "f").stat().st_ino
    for kind in (OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.RENAME, OpKind.LINK):
        assert tier.happened(kind, TOP, b"f", inode)
        assert not tier.happened(kind, TOP, b"f", inode + 1)
        assert not tier.happened(kind, TOP, b"g", inode)
        assert not tier.happened(kind, TOP, b"f", None)
    for kind in (OpKind.UNLINK, OpKind.RMDIR):
        assert not tier.happened(kind, TOP, b"f", inode)
        assert tier.happened(kind, TOP, b"f", inode + 1)
        assert tier.happened(kind, TOP, b"g", inode)
    assert not tier.happened(OpKind.SETATTR, TOP, b"f", inode)
    with pytest.raises(DirectoryGone):
        tier.happened(OpKind.UNLINK, Place(b"gone"), b"f", inode)
