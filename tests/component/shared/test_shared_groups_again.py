"""Checkpoints that are written again: their next generation, and how it gets the name."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.shared.group_support import (
    FINAL,
    GROUP,
    KEEP,
    MTIME_NS,
    NAME,
    OLDER,
    STAGED,
    SUB,
    begin_next,
    fail_to_seal,
    files_in,
    make_directory,
    seal,
    sealed_group,
    stage_group,
    whole,
)
from tests.component.shared.support import MEMBER, TOP, names
from tests.faults import FaultyOS, failing
from tierfs.errors import DirectoryGone
from tierfs.shared import GroupState, Place, SharedTier, staging_name

OpenTier = Callable[..., SharedTier]
STAGED_PLACE = Place(STAGED.encode())


def test_the_next_generation_shares_the_files(tier: SharedTier, root: Path) -> None:
    old = sealed_group(tier, root, GROUP, "old")
    subprocess.run(["setfacl", "-m", "u:1234:rwx", root / FINAL / "sub"], check=True)
    (root / FINAL / "foreign").mkdir()
    (root / FINAL / "foreign/gone").mkdir()
    (root / FINAL / "foreign/gone/f").touch()
    (root / FINAL / "link").symlink_to("model.bin")
    os.utime(root / FINAL, ns=(MTIME_NS, MTIME_NS))
    rebuilt = tier.reopen_linked(TOP, NAME, GROUP, 7, skip=[b"foreign/gone"])
    assert tier.reopen_linked(TOP, NAME, GROUP, 7, skip=[b"foreign/gone"]) == rebuilt
    assert (root / FINAL).stat().st_ino == old
    ids = {each.path: each.id for each in rebuilt}
    assert ids == {b"": GROUP, b"foreign": None, b"sub": SUB}
    for each in rebuilt:
        path = os.fsdecode(each.path)
        was, now = (root / FINAL / path).stat(), (root / STAGED / path).stat()
        assert (each.old_inode, each.inode) == (was.st_ino, now.st_ino)
        assert (was.st_mode, was.st_uid, was.st_gid) == (now.st_mode, now.st_uid, now.st_gid)
        assert was.st_mtime_ns == now.st_mtime_ns
    for name in ("user.a", "user.tierfs.id", "system.posix_acl_access"):
        new = os.getxattr(root / STAGED / "sub", name)
        assert new == os.getxattr(root / FINAL / "sub", name)
    assert files_in(root / STAGED) == {**whole("old"), "link": "old model.bin"}
    for name in ("model.bin", "sub/shard.bin"):
        assert (root / STAGED / name).stat().st_ino == (root / FINAL / name).stat().st_ino
    record = tier.group_records(GROUP)[-1]
    assert (record.state, record.generation) == (GroupState.OPEN, 2)
    assert record.inode == rebuilt[0].inode


def test_an_overwritten_checkpoint_takes_the_place_of_the_old_one(
    tier: SharedTier, root: Path
) -> None:
    sealed_group(tier, root, GROUP, "old")
    [top, _] = tier.reopen_linked(TOP, NAME, GROUP, 7, skip=[b"sub/shard.bin"])
    (root / STAGED / "fresh").write_text("new")
    os.rename(root / STAGED / "fresh", root / STAGED / "model.bin")
    (root / FINAL / "late").write_text("put there by somebody else meanwhile")
    seal(tier, GROUP, top.inode)
    assert files_in(root / FINAL) == {"model.bin": "new"}
    assert names(root) == [".tierfs", FINAL]
    assert names(root / ".tierfs/trash") == [f"{GROUP:016x}-0001"]
    assert tier.sweep_trash(KEEP) == 1
    assert names(root / ".tierfs/trash") == []
    [kept] = tier.quarantined()  # what nobody removed is not lost with the old generation
    assert Path(kept.shown).read_text().startswith("put there")
    assert names(root / f".tierfs/groups/{GROUP:016x}") == ["0006.json", "manifest"]


def test_an_unsealed_checkpoint_in_it_goes_along(tier: SharedTier, root: Path) -> None:
    """It is in no generation, and where the mount calls it: in the one that goes on."""
    sealed_group(tier, root, GROUP, "old")
    inner = "sub/.staging_checkpoint-1"
    (root / FINAL / inner / "part").mkdir(parents=True)
    (root / FINAL / inner / "f").write_text("f")
    inode = (root / FINAL / inner).stat().st_ino
    os.utime(root / FINAL / "sub", ns=(MTIME_NS, MTIME_NS))
    tier.reopen_linked(TOP, NAME, GROUP, 7)
    tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert names(root / FINAL / "sub") == ["shard.bin"]
    assert (root / STAGED / inner).stat().st_ino == inode
    assert (root / STAGED / inner / "f").read_text() == "f"
    assert (root / STAGED / "sub").stat().st_mtime_ns == MTIME_NS
    assert (root / FINAL / "sub").stat().st_mtime_ns == MTIME_NS
    tier.give_up_next(TOP, NAME, GROUP)
    tier.give_up_next(TOP, NAME, GROUP)
    assert (root / FINAL / inner).stat().st_ino == inode
    assert (root / FINAL / inner / "f").read_text() == "f"
    assert names(root) == [".tierfs", FINAL]
    [kept] = tier.quarantined()
    assert names(Path(kept.shown) / "sub") == []


@pytest.mark.parametrize("step", ["", "manifest.publish", "record.publish", "seal.exchange"])
@pytest.mark.parametrize("earlier", [False, True])
def test_the_manifest_of_one_that_is_given_up_is_that_of_the_published_one(
    root: Path, open_tier: OpenTier, step: str, earlier: bool
) -> None:
    """Whatever an attempt to seal the next one came to: it was refused, or failed."""
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="f" * len(MEMBER), lease=60.0)
    inode = begin_next(tier, root)
    published = tier.manifest(GROUP)
    (root / STAGED / "fresh").write_text("half")
    os.rename(root / STAGED / "fresh", root / STAGED / "model.bin")
    if step:
        fail_to_seal(tier, system, step, inode)
    else:
        last = tier.last_record(GROUP)
        assert last is not None
        other.begin(GROUP, last)
        other.say_alive(GROUP)
        with pytest.raises(BlockingIOError):
            tier.seal(TOP, NAME, GROUP, inode, manifest=[], alone=True)
        other.leave_off(GROUP)
    if earlier:  # a manifest that does not say what it is about
        tier.write_manifest(GROUP, tier.manifest(GROUP) or [], None)
    tier.give_up_next(TOP, NAME, GROUP)
    assert files_in(root / FINAL) == whole("old")
    if not earlier or step == "seal.exchange":
        assert tier.manifest(GROUP) == published


def test_an_unsealed_checkpoint_in_what_was_removed_of_it_stays(
    tier: SharedTier, root: Path
) -> None:
    sealed_group(tier, root, GROUP, "old")
    (root / FINAL / "sub/.staging_checkpoint-1").mkdir()
    tier.reopen_linked(TOP, NAME, GROUP, 7, skip=[b"sub"])
    assert files_in(root / STAGED) == {"model.bin": "old model.bin"}
    assert (root / FINAL / "sub/.staging_checkpoint-1").exists()


def test_a_foreign_checkpoint_is_overwritten(tier: SharedTier, root: Path) -> None:
    """It was put there without tierfs: no id, no record."""
    (root / FINAL).mkdir()
    (root / FINAL / "f").write_text("f")
    [top] = tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert top.id == GROUP
    seal(tier, GROUP, top.inode)
    assert files_in(root / FINAL) == {"f": "f"}
    tier.sweep_trash(KEEP)
    assert names(root) == [".tierfs", FINAL]


def test_the_next_generation_where_staging_is_another_file_system(
    root: Path, open_tier: OpenTier
) -> None:
    system = FaultyOS(failing("reopen.link", errno.EXDEV, nth=2))
    tier = open_tier(root, system)
    sealed_group(tier, root, GROUP, "old")
    [top, _] = tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert files_in(root / STAGED) == whole("old")
    assert names(root) == [STAGED, ".tierfs", FINAL]
    assert top.inode == (root / STAGED).stat().st_ino


def test_in_a_directory_with_a_project_quota(tier: SharedTier, root: Path) -> None:
    """XFS lets nothing be renamed into it that does not belong to the project (EXDEV)."""
    run = root / "run"
    run.mkdir()
    subprocess.run(["xfs_io", "-c", "chproj 77", "-c", "chattr +P", run], check=True)
    place = Place(b"run")
    (run / FINAL).mkdir()
    (run / FINAL / "f").write_text("f")
    [top] = tier.reopen_linked(place, NAME, GROUP, 7)
    tier.seal(place, NAME, GROUP, top.inode, manifest=[])
    assert files_in(run / FINAL) == {"f": "f"}
    trashed = tier.trash(place, NAME, top.inode, GROUP)
    assert names(run) == [trashed.name.decode()] * trashed.beside
    tier.sweep_trash(KEEP)
    assert names(root / ".tierfs/trash") == [f"{GROUP:016x}"] * (not trashed.beside)
    assert list((root / ".tierfs/staging" / MEMBER).glob("*/*")) == []


def test_too_many_links(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS(failing("reopen.link", errno.EMLINK, nth=2))
    tier = open_tier(root, system)
    sealed_group(tier, root, GROUP, "old")
    with pytest.raises(OSError, match="Too many links"):
        tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert names(root) == [".tierfs", FINAL]
    assert list((root / ".tierfs/staging" / MEMBER).glob("*/*")) == []
    tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert tier.group_records(GROUP)[-1].generation == 2


def test_reopened_as_a_whole(tier: SharedTier, root: Path) -> None:
    inode = sealed_group(tier, root, GROUP, "old")
    with pytest.raises(DirectoryGone):
        tier.reopen_whole(TOP, NAME, GROUP, inode + 1)
    record = tier.reopen_whole(TOP, NAME, GROUP, inode)
    assert tier.reopen_whole(TOP, NAME, GROUP, inode) == record
    assert (record.state, record.generation) == (GroupState.OPEN, 2)
    assert names(root) == [STAGED, ".tierfs"]
    assert files_in(root / STAGED) == whole("old")
    seal(tier, GROUP, inode)
    assert files_in(root / FINAL) == whole("old")


def test_another_checkpoint_is_staged_already(tier: SharedTier, root: Path) -> None:
    old = sealed_group(tier, root, OLDER, "old")
    make_directory(tier, TOP, staging_name(NAME), GROUP)
    with pytest.raises(FileExistsError):
        tier.reopen_linked(TOP, NAME, OLDER, 7)
    with pytest.raises(FileExistsError):
        tier.reopen_whole(TOP, NAME, OLDER, old)


def test_another_node_finishes_what_a_lost_one_began(root: Path, open_tier: OpenTier) -> None:
    """The exchange was made, the old generation is still staged, the node and its disk are gone."""
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = begin_next(tier, root)
    (root / STAGED / "more").write_text("new")
    fail_to_seal(tier, system, "trash.rename", inode)
    assert names(root) == [STAGED, ".tierfs", FINAL]
    assert other.finish_any_seal(TOP, NAME)
    assert not other.finish_any_seal(TOP, NAME)
    assert names(root) == [".tierfs", FINAL]
    assert files_in(root / FINAL) == {**whole("old"), "more": "new"}
    assert other.group_records(GROUP)[-1].state is GroupState.SEALED


def test_a_seal_that_only_began_is_left_alone(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)
    fail_to_seal(tier, system, "seal.rename", inode)
    assert not other.finish_any_seal(TOP, NAME)
    assert names(root) == [STAGED, ".tierfs"]


def test_a_seal_waits_for_who_took_part_after_it_was_decided(
    root: Path, open_tier: OpenTier
) -> None:
    tier, other = open_tier(root), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)
    other.open_group(TOP, NAME, GROUP, inode)
    with pytest.raises(BlockingIOError):
        tier.seal(TOP, NAME, GROUP, inode, manifest=[], alone=True)
    assert tier.group_records(GROUP)[-1].members == {tier.member, other.member}
    assert (root / STAGED).exists()
    other.say_alive(GROUP, busy=False)
    assert tier.seal(TOP, NAME, GROUP, inode, manifest=[], alone=True).st_ino == inode
    assert other.open_group(TOP, NAME, GROUP, inode).state is GroupState.SEALED


def test_nobody_takes_part_between_the_look_and_the_seal(root: Path, open_tier: OpenTier) -> None:
    """Who comes in between has the number that the record of the seal would have."""
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)

    def join(step: str, *_: object) -> None:
        if step == "record.publish":
            system.hook = None
            other.open_group(TOP, NAME, GROUP, inode)

    system.hook = join
    with pytest.raises(BlockingIOError):
        tier.seal(TOP, NAME, GROUP, inode, manifest=[], alone=True)
    last = tier.last_record(GROUP)
    assert last is not None
    assert last.members == {tier.member, other.member}
    assert (root / STAGED).exists()


def test_nobody_takes_part_in_one_that_is_being_published(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)

    def join(step: str, *_: object) -> None:
        if step == "seal.rename":
            system.hook = None
            with pytest.raises(BlockingIOError):
                other.join_group(TOP, NAME, GROUP, inode)

    system.hook = join
    assert tier.seal(TOP, NAME, GROUP, inode, manifest=[], alone=True).st_ino == inode
    last = tier.last_record(GROUP)
    assert last is not None
    assert (last.state, last.stale) == (GroupState.SEALED, frozenset())
