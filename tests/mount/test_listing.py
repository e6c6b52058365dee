"""What a listing tells, with attributes and without: the same as stat(2) and lookups say."""

from __future__ import annotations

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
