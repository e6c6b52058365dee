"""Mounting a shared tier: refusals that leave nothing behind, registration, generations."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.shared.support import MEMBER, make_tier, staging_names
from tests.faults import FaultyOS, at, failing
from tierfs.errors import TierError
from tierfs.shared import SharedTier

OpenTier = Callable[..., SharedTier]


def refused(root: Path, system: FaultyOS | None = None, expected_id: str | None = None) -> str:
    """Why `root` is refused: one line that names it."""
    tier = make_tier(root, system, expected_id=expected_id)
    with pytest.raises(TierError) as caught:
        tier.probe()
    tier.close()
    text = str(caught.value)
    assert str(root) in text
    assert "\n" not in text
    return text


def test_a_good_tier_is_accepted_and_nothing_stays(root: Path) -> None:
    tier = make_tier(root)
    tier.probe()
    assert tier.can_exchange
    assert list(root.iterdir()) == []
    assert tier.shared_id is None
    assert tier.can_exchange
    tier.close()


def test_a_file_system_that_cannot_exchange_names_is_accepted(root: Path) -> None:
    tier = make_tier(root, FaultyOS(failing("probe.exchange", errno.EINVAL)))
    tier.probe()
    assert not tier.can_exchange
    assert list(root.iterdir()) == []
    tier.close()


def test_missing_or_no_directory(root: Path) -> None:
    with pytest.raises(TierError, match="does not exist"):
        make_tier(root / "nothing")
    (root / "file").touch()
    with pytest.raises(TierError, match="not a directory"):
        make_tier(root / "file")


def test_read_only(root: Path) -> None:
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    try:
        assert "read-only" in refused(root)
    finally:
        subprocess.run(["umount", "-l", root], check=True)


@pytest.mark.parametrize(
    ("step", "number", "text"),
    [
        ("probe.mkdir", errno.EACCES, "not writable: Permission denied (is root squashed"),
        ("probe.chown", errno.EPERM, "squashes root"),
        ("probe.fsync", errno.EINVAL, "cannot do fsync"),
        ("probe.fsync_dir", errno.EINVAL, "fsync of directories"),
        ("probe.xattr", errno.EOPNOTSUPP, "user xattrs"),
        ("probe.noreplace", errno.EINVAL, "RENAME_NOREPLACE"),
        ("probe.rename", errno.EEXIST, "rename over a file"),
    ],
)
def test_a_file_system_without_an_ability(root: Path, step: str, number: int, text: str) -> None:
    assert text in refused(root, FaultyOS(failing(step, number)))
    assert list(root.iterdir()) == []


def test_root_is_squashed(root: Path) -> None:
    """As by an NFS server: what root makes belongs to nobody."""

    def squash(fd: object) -> None:
        os.fchown(int(str(fd)), 65534, 65534)

    assert "squashes root" in refused(root, FaultyOS(at("probe.stat", 1, squash)))
    assert list(root.iterdir()) == []


def test_the_first_mount_makes_the_id_and_later_ones_find_it(
    root: Path, open_tier: OpenTier
) -> None:
    first = open_tier(root)
    second = open_tier(root, member="b" * 32)
    assert first.shared_id == second.shared_id
    again = make_tier(root, expected_id=first.shared_id)
    again.probe()
    again.close()
    control = root / ".tierfs"
    assert stat.S_IMODE(control.stat().st_mode) == 0o700
    assert sorted(path.name for path in (control / "nodes").iterdir()) == [MEMBER, "b" * 32]
    record = json.loads((control / "nodes" / MEMBER / "member.json").read_text())
    assert (record["node"], record["member"], record["format"]) == ("node-a", MEMBER, 1)
    third = open_tier(root)
    later = json.loads((control / "nodes" / MEMBER / "member.json").read_text())
    assert later["registered_ns"] == record["registered_ns"]
    assert later["mounted_ns"] > record["mounted_ns"]
    assert third.foreign() == []


def test_two_first_mounts_at_once_agree(root: Path, open_tier: OpenTier) -> None:
    """The other one makes the id between this one's look and its link."""
    others: list[SharedTier] = []
    system = FaultyOS()
    system.hook = at("register.id", 1, lambda *_: others.append(open_tier(root, member="b" * 32)))
    tier = open_tier(root, system)
    assert tier.shared_id == others[0].shared_id
    assert tier.foreign() == []


def test_an_empty_mount_point_is_not_written_to(root: Path, open_tier: OpenTier) -> None:
    known = open_tier(root).shared_id
    bare = root / "bare"
    bare.mkdir()
    assert "is its file system mounted" in refused(bare, expected_id=known)
    assert list(bare.iterdir()) == []
    open_tier(bare)
    assert "another one" in refused(bare, expected_id=known)


@pytest.mark.parametrize("content", ["", "tierfs 2 " + "0" * 32 + "\n", "something"])
def test_an_id_of_another_version(root: Path, content: str) -> None:
    (root / ".tierfs").mkdir(mode=0o700)
    (root / ".tierfs/id").write_text(content)
    assert "not of this version" in refused(root)
    assert (root / ".tierfs/id").read_text() == content


def test_a_control_directory_that_is_not_ours(root: Path) -> None:
    (root / ".tierfs").symlink_to("/tmp")
    assert "move it away" in refused(root)
    (root / ".tierfs").unlink()
    (root / ".tierfs").touch()
    assert "move it away" in refused(root)


def test_a_control_directory_that_somebody_made_before(root: Path, open_tier: OpenTier) -> None:
    """It could hold anything, and would be open to whoever made it."""
    control = root / ".tierfs"
    control.mkdir(mode=0o700)
    os.chown(control, 65534, 65534)
    assert "owner 65534" in refused(root)
    os.chown(control, 0, 0)
    control.chmod(0o755)
    assert "mode 0755" in refused(root)
    assert list(control.iterdir()) == []
    control.chmod(0o700)
    open_tier(root)


def test_foreign_files_are_reported_and_left_alone(
    tier: SharedTier, root: Path, open_tier: OpenTier
) -> None:
    mine = root / ".tierfs/staging" / MEMBER
    generation = mine / os.fsdecode(tier.generation)
    (root / ".tierfs/notes.txt").touch()
    (root / ".tierfs/nodes/README").touch()
    (mine / "old-stuff").mkdir()
    (generation / "mine.txt").touch()
    (generation / "7-ours").touch()
    later = open_tier(root)
    later.retire_old_generations()
    later.sweep()
    retired = mine / f"old-{os.fsdecode(tier.generation)}"
    assert sorted(later.foreign()) == sorted(
        str(path)
        for path in (
            root / ".tierfs/notes.txt",
            root / ".tierfs/nodes/README",
            mine / "old-stuff",
            retired / "mine.txt",
        )
    )
    assert [path.name for path in retired.iterdir()] == ["mine.txt"]
    assert (mine / "old-stuff").is_dir()


def test_generations_rise_and_older_ones_are_retired(root: Path, open_tier: OpenTier) -> None:
    other = open_tier(root, member="b" * 32)
    (Path(f"/proc/self/fd/{other.staging_fd}") / "1-other").touch()
    generations = []
    for row in range(3):
        tier = open_tier(root)
        generations.append(tier.generation)
        os.close(os.open(b"%d-file" % row, os.O_CREAT, dir_fd=tier.staging_fd))
        os.mkdir(b"1%d-dir" % row, dir_fd=tier.staging_fd)
    assert [generation[:8] for generation in generations] == [b"00000001", b"00000002", b"00000003"]
    assert tier.retire_old_generations() == 2
    retired = f"old-{os.fsdecode(generations[0])}/0-file"
    assert retired in staging_names(tier)
    assert tier.sweep() == 4
    assert sorted(staging_names(tier)) == [
        f"{os.fsdecode(generations[2])}/12-dir",
        f"{os.fsdecode(generations[2])}/2-file",
    ]
    assert len(staging_names(other)) == 1
    assert open_tier(root).generation.startswith(b"00000004")
