"""Looking at the shared tier: hidden names, identity of directories, symlinks never followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.shared.support import TOP, attributes
from tests.faults import FaultyOS, failing
from tierfs.errors import DirectoryGone
from tierfs.model import Kind, ObjectId
from tierfs.shared import Place, SharedTier

ID = ObjectId(0x7123456789ABCDEF)


def test_entries_of_every_kind(tier: SharedTier, root: Path) -> None:
    (root / "f").write_bytes(b"12345")
    (root / "l").symlink_to("f")
    (root / "d").mkdir()
    os.mkfifo(root / "p")
    f, link, d, p, missing = tier.stat_many(TOP, [b"f", b"l", b"d", b"p", b"x"])
    assert f is not None
    assert f.st.st_size == 5
    assert link is not None
    assert link.target == b"f"
    assert d is not None
    assert d.directory_id is None
    assert p is not None
    assert Kind.of_mode(p.st.st_mode) is Kind.FIFO
    assert missing is None
    assert tier.lookup(TOP, b"f") == f
    here = tier.lookup(TOP, b"")
    assert here is not None
    assert here.st.st_ino == root.stat().st_ino == tier.root_inode


def test_what_is_tierfs_own_is_hidden(tier: SharedTier, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/.staging_x").touch()
    (root / "sub/.tierfs").touch()
    sub = Place(b"sub")
    assert list(tier.listing(TOP)) == [b"sub"]
    assert tier.listing(sub) == {
        b".tierfs": (Kind.FILE, (root / "sub/.tierfs").stat().st_ino)
    }  # only the root's is ours
    assert tier.lookup(TOP, b".tierfs") is None
    assert tier.lookup(sub, b".staging_x") is None
    with pytest.raises(FileNotFoundError):
        tier.open_file(sub, b".staging_x", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        tier.unlink(sub, b".staging_x", None)
    assert (root / "sub/.staging_x").exists()


def test_a_directory_is_known_by_inode_and_id(tier: SharedTier, root: Path) -> None:
    staged = tier.stage_directory(1, b"d", attributes(Kind.DIRECTORY, mode=0o755), {}, ID)
    entry = tier.publish_directory(staged, TOP, b"d")
    assert entry.directory_id == ID
    inode = entry.st.st_ino
    assert tier.listing(Place(b"d", inode, ID)) == {}
    for wrong in (
        Place(b"d", inode + 1, ID),
        Place(b"d", inode, ObjectId(ID + 1)),
        Place(b"e", inode, ID),
        Place(b"", None, ID),
    ):
        with pytest.raises(DirectoryGone):
            tier.listing(wrong)
    os.rename(root / "d", root / "e")
    (root / "d").mkdir()
    with pytest.raises(DirectoryGone) as caught:
        tier.lookup(Place(b"d", inode, ID), b"x")
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == str(root / "d")
    assert tier.listing(Place(b"e", inode, ID)) == {}


def test_no_symlink_is_followed_to_a_directory(tier: SharedTier, root: Path) -> None:
    (root / "real").mkdir()
    (root / "real/secret").touch()
    (root / "link").symlink_to("real")
    with pytest.raises(DirectoryGone):
        tier.lookup(Place(b"link"), b"secret")
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        tier.open_file(TOP, b"link", os.O_RDONLY)


def test_only_regular_files_are_opened(tier: SharedTier, root: Path) -> None:
    os.mkfifo(root / "p")
    (root / "d").mkdir()
    os.mknod(root / "s", stat.S_IFSOCK | 0o600)
    before = len(os.listdir("/proc/self/fd"))
    for name in (b"p", b"d", b"s"):
        with pytest.raises(FileNotFoundError, match="not a regular file"):
            tier.open_file(TOP, name, os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before
    (root / "f").write_bytes(b"content")
    fd, st = tier.open_file(TOP, b"f", os.O_RDONLY)
    assert os.read(fd, 10) == b"content"
    assert st.st_ino == (root / "f").stat().st_ino
    os.close(fd)


def test_xattrs_without_those_of_tierfs(tier: SharedTier, root: Path) -> None:
    (root / "f").touch()
    os.setxattr(root / "f", "user.a", b"1")
    os.setxattr(root / "f", "user.tierfs.digest", b"sha256:64MiB:00")
    assert tier.xattrs(TOP, b"f") == {b"user.a": b"1"}
    assert tier.recorded_digest(TOP, b"f") == "sha256:64MiB:00"
    os.removexattr(root / "f", "user.tierfs.digest")
    assert tier.recorded_digest(TOP, b"f") is None


@pytest.mark.parametrize("step", ["place.open", "look.stat"])
def test_an_error_of_the_tier_is_never_a_missing_name(
    root: Path, open_tier: Callable[..., SharedTier], step: str
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    system.hook = failing(step, errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as caught:
        tier.lookup(TOP, b"nothing")
    assert caught.value.errno == errno.EIO
    assert tier.lookup(TOP, b"nothing") is None


def test_it_stays_the_directory_that_was_opened(tier: SharedTier, root: Path) -> None:
    """Another directory at its path later, such as a bare mount point, is not looked at."""
    aside = root.with_name(root.name + "-aside")
    os.rename(root, aside)
    root.mkdir()
    (aside / "f").touch()
    try:
        assert tier.lookup(TOP, b"f") is not None
    finally:
        root.rmdir()
        os.rename(aside, root)
