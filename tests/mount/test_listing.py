"""What a listing tells, with attributes and without: the same as stat(2) and lookups say."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.harness import Node


def _told(directory: Path) -> dict[str, tuple[int, bool, bool]]:
    """What readdir(3) itself says of each name: its d_ino and what its d_type says."""
    with os.scandir(directory) as entries:
        return {
            each.name: (
                each.inode(),
                each.is_dir(follow_symlinks=False),
                each.is_symlink(),
            )
            for each in entries
        }


def test_names_alone_are_told_as_those_with_attributes(node: Node) -> None:
    """A reader that never looks at what it lists is told the names alone from then on."""
    shared = node.shared
    for number in range(3):
        directory = shared / f"d{number}"
        (directory / "below").mkdir(parents=True)
        (directory / "link").symlink_to("file")
        for name in ("file", "other", "removed", "renamed"):
            (directory / name).write_bytes(b"committed")
    for number in range(3):
        directory = node.mount / f"d{number}"
        (directory / "pending").write_bytes(b"here")
        (directory / "removed").unlink()
        (directory / "renamed").rename(directory / "moved")
    expected = {"below", "link", "file", "other", "pending", "moved"}
    told = [_told(node.mount / f"d{number}") for number in range(3)]
    for number in range(3):
        directory = node.mount / f"d{number}"
        assert told[number].keys() == expected
        for name, (inode, is_directory, is_link) in told[number].items():
            st = os.lstat(directory / name)
            assert st.st_ino == inode, name
            assert is_directory == (name == "below")
            assert is_link == (name == "link")
    assert [set(os.listdir(node.mount / f"d{number}")) for number in range(3)] == [expected] * 3


def test_a_position_holds_while_names_alone_are_told(node: Node) -> None:
    """telldir and seekdir in a directory of several blocks, while names come and go."""
    shared = node.shared
    names = {f"file-{number:04d}" for number in range(900)}
    for part in ("first", "second"):
        (shared / part).mkdir(parents=True)
        for name in names:
            (shared / part / name).touch()
    assert set(os.listdir(node.mount / "first")) == names
    with os.scandir(node.mount / "second") as entries:
        seen = [next(entries).name]
        for name in names - set(seen):
            (node.mount / "second" / name).unlink()
        (node.mount / "second" / "new").touch()
        seen += [each.name for each in entries]
    assert len(seen) == len(set(seen))
    assert set(seen) <= names
    assert set(os.listdir(node.mount / "second")) == {seen[0], "new"}


def _xattr(path: Path) -> bytes | None:
    try:
        return os.getxattr(path, "user.note", follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return None


def test_xattrs_asked_for_behind_a_listing_are_true(node: Node) -> None:
    """Whoever lists asks for them; they are looked for in many files at once."""
    directory = node.mount / "d"
    directory.mkdir()
    for number in range(40):
        (directory / f"f{number}").write_bytes(b"")
    os.setxattr(directory / "f7", "user.note", b"first")
    os.link(directory / "f8", directory / "g8")
    node.settle()
    told = {each.name: _xattr(Path(each.path)) for each in os.scandir(directory)}
    assert {name for name, value in told.items() if value} == {"f7"}
    for name in ("f3", "g8"):
        os.setxattr(directory / name, "user.note", b"later")
    assert [_xattr(directory / name) for name in ("f3", "f8", "f9")] == [b"later", b"later", None]
    node.settle()
    told = {each.name: _xattr(Path(each.path)) for each in os.scandir(directory)}
    assert {name for name, value in told.items() if value} == {"f3", "f7", "f8", "g8"}


def test_what_was_just_listed_is_removed_and_made_again(node: Node) -> None:
    """A removal goes by what the listing told, as long as nothing was done to it since."""
    directory = node.mount / "d"
    directory.mkdir()
    names = ("gone", "rewritten", "replaced", "linked", "open")
    for name in names:
        (directory / name).write_bytes(b"old")
    node.settle()
    assert {each.name for each in os.scandir(directory)} == set(names)
    held = os.open(directory / "open", os.O_RDONLY)
    (directory / "rewritten").write_bytes(b"new")
    (directory / "fresh").write_bytes(b"fresh")
    os.replace(directory / "fresh", directory / "replaced")
    os.link(directory / "linked", directory / "link")
    for name in names:
        (directory / name).unlink()
    assert os.listdir(directory) == ["link"]
    assert os.stat(directory / "link").st_nlink == 1
    assert (os.pread(held, 9, 0), os.fstat(held).st_nlink) == (b"old", 0)
    os.close(held)
    (directory / "gone").write_bytes(b"again")
    node.settle()
    assert {path.name: path.read_bytes() for path in (node.shared / "d").iterdir()} == {
        "link": b"old",
        "gone": b"again",
    }
