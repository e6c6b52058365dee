"""Checkpoints: staged, sealed, removed; each call once, and after a failure."""

from __future__ import annotations

import errno
import json
import os
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
    files_in,
    manifest_of,
    seal,
    sealed_group,
    stage_group,
    texts,
    whole,
)
from tests.component.shared.support import MEMBER, TOP, names
from tests.faults import FaultyOS, at, failing
from tierfs.errors import DirectoryGone
from tierfs.model import Kind, ObjectId, OpKind
from tierfs.osio import RENAME_EXCHANGE
from tierfs.shared import GroupState, ManifestLine, Place, SharedTier, staging_name, unstaged_name

OpenTier = Callable[..., SharedTier]
STAGED_PLACE = Place(STAGED.encode())


def no_exchange(step: str, detail: tuple[object, ...]) -> None:
    """As a file system that knows no RENAME_EXCHANGE."""
    if detail[-1:] == (RENAME_EXCHANGE,):
        raise OSError(errno.EINVAL, "Invalid argument")


# -- names ---------------------------------------------------------------------------------------


def test_names_of_unsealed_checkpoints() -> None:
    assert staging_name(NAME) == STAGED.encode()
    assert unstaged_name(STAGED.encode()) == NAME
    own = [
        b".staging_%s_12" % MEMBER.encode(), b".staging_probe_%s_0a0b0c0d" % MEMBER.encode(),
        b".staging_trash_%016x" % GROUP, b".staging_trash_%016x-0001" % GROUP,
        b".staging_quarantine_17-0a0b0c0d", b".staging_", b"checkpoint-5",
    ]  # fmt: skip
    assert [unstaged_name(name) for name in own] == [None] * len(own)


def test_ops_reach_unsealed_checkpoints_and_the_trash_and_nothing_else_of_ours(
    tier: SharedTier, root: Path
) -> None:
    inode = stage_group(tier, root)
    assert tier.lookup(TOP, STAGED.encode()) is None
    staged = tier.lookup_staged(TOP, STAGED.encode())
    assert staged is not None
    assert (staged.st.st_ino, staged.directory_id) == (inode, GROUP)
    assert tier.listing(TOP) == {}
    for place, name in ((TOP, b".tierfs"), (Place(b".tierfs"), b"groups")):
        with pytest.raises(FileNotFoundError):
            tier.rmdir(place, name, None)
        with pytest.raises(FileNotFoundError):
            tier.lookup_staged(place, name)
    for place, name in ((TOP, STAGED.encode()), (Place(b".tierfs"), b"id")):
        with pytest.raises(FileNotFoundError):
            tier.unlink(place, name, None)
    seal(tier, GROUP, inode)
    trashed = tier.trash(TOP, NAME, inode, GROUP)
    inside = Place(b".tierfs/trash/" + trashed.name, inode, GROUP)
    assert tier.unlink(inside, b"model.bin", None)
    assert tier.unlink(Place(inside.path + b"/sub"), b"shard.bin", None)
    assert tier.rmdir(inside, b"sub", None)
    assert tier.rmdir(Place(b".tierfs/trash"), trashed.name, inode)
    assert texts(root, "trash") == []


# -- looking -------------------------------------------------------------------------------------


def test_walk_tells_all_and_follows_nothing(tier: SharedTier, root: Path) -> None:
    stage_group(tier, root)
    folder = root / STAGED
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "sub/large.index.json").touch()
    os.truncate(folder / "sub/large.index.json", 1 << 30)
    os.setxattr(folder / "model.bin", "user.tierfs.digest", b"sha256:64MiB:00")
    (folder / "link").symlink_to("/etc")
    (folder / f".staging_{MEMBER}_3").mkdir()
    found = {each.path: each for each in tier.walk(STAGED_PLACE)}
    assert sorted(found) == [
        b"link", b"model.bin", b"model.safetensors.index.json", b"sub", b"sub/large.index.json",
        b"sub/shard.bin",
    ]  # fmt: skip
    model = found[b"model.bin"]
    st = (folder / "model.bin").stat()
    assert (model.kind, model.inode, model.size) == (Kind.FILE, st.st_ino, st.st_size)
    assert (model.mode, model.mtime_ns) == (st.st_mode & 0o7777, st.st_mtime_ns)
    assert model.digest == "sha256:64MiB:00"
    assert model.incarnation[1] > 0
    assert found[b"model.safetensors.index.json"].index == b"{}"
    assert found[b"sub/large.index.json"].index is None
    assert found[b"link"].kind is Kind.SYMLINK
    assert found[b"sub"].directory_id == SUB
    with pytest.raises(DirectoryGone):
        tier.walk(Place(STAGED.encode() + b"/link"))


def test_sealed_groups(tier: SharedTier, root: Path) -> None:
    stage_group(tier, root)
    for name in ("checkpoint-1", "checkpoint-20", "other"):
        (root / name).mkdir()
    (root / "checkpoint-3").touch()
    found = tier.sealed_groups(TOP, lambda name: name.startswith(b"checkpoint-"))
    assert found == [b"checkpoint-1", b"checkpoint-20"]


# -- seal ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_published_whole(tier: SharedTier, root: Path) -> None:
    inode = stage_group(tier, root)
    assert [record.state for record in tier.group_records(GROUP)] == [GroupState.OPEN]
    assert not tier.happened(OpKind.SEAL, TOP, NAME, inode, GROUP)
    seal(tier, GROUP, inode)
    assert names(root) == [".tierfs", FINAL]
    assert files_in(root / FINAL) == whole("new")
    assert (root / FINAL).stat().st_mtime_ns == MTIME_NS
    assert tier.happened(OpKind.SEAL, TOP, NAME, inode, GROUP)
    records = tier.group_records(GROUP)
    assert [(r.state, r.number, r.inode, r.path) for r in records] == [
        (GroupState.SEALED, 3, inode, NAME)
    ]
    assert tier.manifest(GROUP) == manifest_of(tier.walk(Place(NAME)))
    seal(tier, GROUP, inode)
    assert tier.group_records(GROUP) == records


def test_what_is_not_staged_cannot_be_sealed(tier: SharedTier, root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tier.seal(TOP, NAME, GROUP, 1, manifest=[])
    inode = stage_group(tier, root)
    with pytest.raises(DirectoryGone):
        tier.seal(TOP, NAME, GROUP, inode + 1, manifest=[])
    assert names(root) == [STAGED, ".tierfs"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_removed_one_of_the_same_name_goes_where_its_removal_would_bring_it(
    root: Path, open_tier: OpenTier, exchange: bool
) -> None:
    system = FaultyOS(None if exchange else no_exchange)
    tier = open_tier(root, system)
    old = sealed_group(tier, root, OLDER, "old")
    inode = stage_group(tier, root)
    seal(tier, GROUP, inode, replaced=OLDER)
    assert files_in(root / FINAL) == whole("new")
    assert names(root) == [".tierfs", FINAL]
    assert tier.happened(OpKind.TRASH, TOP, NAME, old, OLDER)
    trashed = tier.trash(TOP, NAME, old, OLDER)
    assert (trashed.st.st_ino, trashed.name, trashed.beside) == (old, b"%016x" % OLDER, False)
    assert texts(root, "trash") == [whole("old")]
    tier.sweep_trash(KEEP)
    assert texts(root, "trash") == [whole("old")]  # its own removals empty it


def test_what_nobody_removed_goes_to_quarantine(tier: SharedTier, root: Path) -> None:
    sealed_group(tier, root, OLDER, "old")
    inode = stage_group(tier, root)
    seal(tier, GROUP, inode)
    assert files_in(root / FINAL) == whole("new")
    [kept] = tier.quarantined()
    assert kept.path == STAGED.encode()
    assert "same name" in kept.why
    assert files_in(Path(kept.shown)) == whole("old")


def test_somebody_takes_the_name_at_the_last_moment(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    inode = stage_group(tier, root)

    def intrude(*_: object) -> None:
        (root / FINAL).mkdir()
        (root / FINAL / "foreign").touch()

    system.hook = at("seal.rename", 1, intrude)
    seal(tier, GROUP, inode)
    assert files_in(root / FINAL) == whole("new")
    [kept] = tier.quarantined()
    assert files_in(Path(kept.shown)) == {"foreign": ""}


def test_files_of_dead_writers_go_to_quarantine(tier: SharedTier, root: Path) -> None:
    inode = stage_group(tier, root, text="dead")
    record = tier.reopen_unlisted(STAGED_PLACE, GROUP)
    assert tier.reopen_unlisted(STAGED_PLACE, GROUP) == record
    assert record.generation == 2
    (root / STAGED / "fresh").write_text("again")
    os.rename(root / STAGED / "fresh", root / STAGED / "model.bin")
    os.utime(root / STAGED, ns=(MTIME_NS, MTIME_NS))
    found = tier.walk(STAGED_PLACE)
    stale = [each.path for each in found if each.incarnation in record.stale]
    assert stale == [b"sub/shard.bin"]
    tier.seal(TOP, NAME, GROUP, inode, manifest=[], stale=record.stale)
    assert files_in(root / FINAL) == {"model.bin": "again"}
    assert (root / FINAL).stat().st_mtime_ns == MTIME_NS
    [kept] = tier.quarantined()
    assert Path(kept.shown).read_text() == "dead sub/shard.bin"
    assert tier.group_records(GROUP)[-1].generation == 2


def test_another_node_changes_the_state_at_the_same_moment(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)
    system.hook = at("record.publish", 1, lambda *_: seal(other, GROUP, inode))
    with pytest.raises(BlockingIOError):
        seal(tier, GROUP, inode)
    seal(tier, GROUP, inode)
    assert [record.member for record in tier.group_records(GROUP)] == ["b" * 32]


def test_every_node_knows_that_a_checkpoint_is_broken(root: Path, open_tier: OpenTier) -> None:
    tier, other = open_tier(root), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)
    tier.note_broken(GROUP, "", ())
    tier.note_broken(GROUP, "torn", [b"shard-\xff", b"model.bin"])
    tier.note_broken(GROUP, "torn", [b"model.bin", b"shard-\xff"])
    states = [record.state for record in other.group_records(GROUP)]
    assert states == [GroupState.OPEN, GroupState.BROKEN]
    said = other.last_record(GROUP)
    assert said is not None
    assert (said.why, said.files, said.inode) == ("torn", (b"model.bin", b"shard-\xff"), inode)
    other.note_broken(GROUP, "", ())  # it has not said so
    assert other.last_record(GROUP) == said
    tier.note_broken(GROUP, "", ())
    mended = other.last_record(GROUP)
    assert mended is not None
    assert (mended.state, mended.broken) == (GroupState.OPEN, "")
    tier.note_broken(GROUP, "torn again", [b"model.bin"])
    seal(other, GROUP, inode)
    tier.note_broken(GROUP, "too late", [b"model.bin"])
    assert [record.state for record in other.group_records(GROUP)] == [GroupState.SEALED]


def test_sealed_while_it_is_said_to_be_broken(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member="b" * 32)
    inode = stage_group(tier, root)
    system.hook = at("record.publish", 1, lambda *_: seal(other, GROUP, inode))
    with pytest.raises(BlockingIOError):
        tier.note_broken(GROUP, "torn", [b"model.bin"])
    assert [record.state for record in other.group_records(GROUP)] == [GroupState.SEALED]


def test_a_broken_one_that_dead_writers_left_is_begun_anew(tier: SharedTier, root: Path) -> None:
    stage_group(tier, root)
    tier.note_broken(GROUP, "torn", [b"model.bin"])
    record = tier.reopen_unlisted(STAGED_PLACE, GROUP)
    assert (record.state, record.generation, len(record.stale)) == (GroupState.OPEN, 2, 2)
    assert record.files == ()


def test_a_record_of_another_version_is_refused(tier: SharedTier, root: Path) -> None:
    inode = stage_group(tier, root)
    record = root / f".tierfs/groups/{GROUP:016x}/0001.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "format": 2}))
    with pytest.raises(OSError, match="version") as caught:
        seal(tier, GROUP, inode)
    assert caught.value.errno == errno.EINVAL
    assert names(root) == [STAGED, ".tierfs"]


def test_manifest_with_names_that_are_no_text(tier: SharedTier) -> None:
    lines = [ManifestLine(b"a/\xff\n", 7, 0o640, None), ManifestLine(b"b", 0, 0o4755, "sha256:x")]
    tier.write_manifest(GROUP, lines, 7)
    assert tier.manifest(GROUP) == lines
    assert tier.manifest_inode(GROUP) == 7
    assert tier.manifest(OLDER) is None


def test_a_damaged_manifest_names_no_files(tier: SharedTier, root: Path) -> None:
    """Least of all fewer than it had: what is missing then would be nobody's loss."""
    lines = [ManifestLine(b"file%d" % index, 7, 0o640, None) for index in range(3)]
    tier.write_manifest(GROUP, lines, 7)
    manifest = root / f".tierfs/groups/{GROUP:016x}/manifest"
    whole = manifest.read_bytes()
    for size in range(len(whole)):
        manifest.write_bytes(whole[:size])
        with pytest.raises(OSError, match="damaged"):
            tier.manifest(GROUP)
    manifest.write_bytes(whole.replace(b"%016x" % GROUP, b"%016x" % OLDER))
    with pytest.raises(OSError, match="damaged"):
        tier.manifest(GROUP)
    head, _, rest = whole.partition(b"\n")
    manifest.write_bytes(head.replace(b', "files": 3', b"") + b"\n" + rest)
    assert tier.manifest(GROUP) == lines  # of an earlier version


# -- removal -------------------------------------------------------------------------------------


def test_a_removal_that_cannot_leave_its_directory(root: Path, open_tier: OpenTier) -> None:
    """Project quotas: nothing can be renamed from there into the trash."""
    system = FaultyOS()
    tier = open_tier(root, system)
    inode = sealed_group(tier, root, GROUP, "old")
    system.hook = failing("trash.rename", errno.EXDEV)
    trashed = tier.trash(TOP, NAME, inode, GROUP)
    assert (trashed.name, trashed.beside) == (b".staging_trash_%016x" % GROUP, True)
    assert names(root) == [f".staging_trash_{GROUP:016x}", ".tierfs"]
    assert tier.trash(TOP, NAME, inode, GROUP).name == trashed.name
    inside = Place(trashed.name, inode, GROUP)
    tier.unlink(Place(inside.path + b"/sub"), b"shard.bin", None)
    tier.unlink(inside, b"model.bin", None)
    tier.rmdir(inside, b"sub", None)
    assert tier.rmdir(TOP, trashed.name, inode)
    assert names(root) == [".tierfs"]


def test_a_checkpoint_is_forgotten(tier: SharedTier, root: Path) -> None:
    inode = sealed_group(tier, root, GROUP, "old")
    tier.trash(TOP, NAME, inode, GROUP)
    tier.forget_group(GROUP)
    tier.forget_group(GROUP)
    assert tier.group_records(GROUP) == []
    assert texts(root, "groups") == []


def test_trash_that_nobody_empties(tier: SharedTier, root: Path) -> None:
    inode = sealed_group(tier, root, GROUP, "old")
    tier.trash(TOP, NAME, inode, GROUP)
    (root / ".tierfs/trash" / f"{OLDER:016x}").mkdir()
    (root / ".tierfs/trash/foreign").mkdir()
    assert tier.sweep_trash(KEEP) == 0
    assert tier.sweep_trash(-1) == 2
    assert names(root / ".tierfs/trash") == ["foreign"]
    assert tier.foreign() == [str(root / ".tierfs/trash/foreign")]
    [kept] = tier.quarantined()
    assert files_in(Path(kept.shown)) == whole("old")


def test_quarantine_is_kept_for_a_while(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    inode = stage_group(tier, root)
    shown = tier.quarantine(TOP, STAGED.encode(), inode, "why not")
    assert shown is not None
    assert files_in(Path(shown)) == whole("new")
    assert tier.quarantine(TOP, STAGED.encode(), inode, "why not") is None
    (root / "f").write_text("f")
    system.hook = failing("quarantine.rename", errno.EXDEV)
    beside = tier.quarantine(TOP, b"f", (root / "f").stat().st_ino, "f")
    assert beside is not None
    assert Path(beside).parent == root
    assert [(kept.path, kept.why) for kept in tier.quarantined()] == [
        (STAGED.encode(), "why not"),
        (b"f", "f"),
    ]
    assert tier.sweep_quarantine(KEEP) == 0
    assert tier.sweep_quarantine(-1) == 2
    assert tier.quarantined() == []
    assert names(root) == [".tierfs"]
    assert names(root / ".tierfs/quarantine") == []


def test_an_unknown_inode_of_a_group(tier: SharedTier) -> None:
    assert not tier.happened(OpKind.SEAL, TOP, NAME, 5, ObjectId(0x77))
    assert not tier.happened(OpKind.REOPEN, TOP, NAME, 5, ObjectId(0x77))
