"""A directory of the shared tier that takes no renames from staging: another XFS project."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.harness import Node, compare
from tests.harness.devices import run


def make_project(path: Path) -> None:
    """Renames into `path` from outside its project fail with EXDEV; what is made in it inherits."""
    path.mkdir()
    run("xfs_io", "-c", "chproj 42", "-c", "chattr +P", path)


def test_everything_arrives_in_a_directory_of_another_project(node: Node) -> None:
    make_project(node.shared / "p")
    folder = node.mount / "p"
    (folder / "sub").mkdir()
    (folder / "sub" / "f").write_bytes(b"f" * 100_000)
    (folder / "latest").symlink_to("sub")
    (folder / "f").write_bytes(b"one")
    os.link(folder / "f", folder / "g")
    node.settle()
    (folder / "f").write_bytes(b"two")
    with (folder / "g").open("ab") as file:
        file.write(b"three")
    node.settle()
    assert (folder / "f").read_bytes() == (folder / "g").read_bytes() == b"twothree"
    compare(folder, node.shared / "p")
    assert node.status()["stuck"] == []
    assert [n for n in os.listdir(node.shared / "p") if n.startswith(".staging")] == []


def test_a_committed_file_is_not_renamed_into_another_project(node: Node) -> None:
    """As on XFS: EXDEV at once, and mv(1) copies; what is pending can be renamed."""
    make_project(node.shared / "p")
    folder, outside = node.mount / "p", node.mount / "outside"
    outside.mkdir()
    for name in ("moved", "linked"):
        (outside / name).write_bytes(b"content")
    (outside / "sub").mkdir()
    (folder / "inside").write_bytes(b"of the project")
    (folder / "into").mkdir()
    node.settle()
    for call, name in ((os.rename, "moved"), (os.link, "linked"), (os.rename, "sub")):
        with pytest.raises(OSError, match="cross-device") as refused:
            call(outside / name, folder / name)
        assert refused.value.errno == errno.EXDEV
    (outside / "fresh").write_bytes(b"pending")
    (outside / "fresh").rename(folder / "fresh")
    (folder / "inside").rename(folder / "into" / "inside")
    run("mv", outside / "moved", folder / "moved")
    (folder / "into" / "inside").rename(outside / "inside")
    node.settle()
    compare(node.mount, node.shared, ignore=["nlink"])
    assert sorted(os.listdir(folder)) == ["fresh", "into", "moved"]
    assert sorted(os.listdir(outside)) == ["inside", "linked", "sub"]
