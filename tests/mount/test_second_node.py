"""Plain files and other nodes: what was committed is there for anybody, in its newest version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.harness import Node, compare, wait_until
from tests.harness.checkpoints import SHAPES

MIB = 1 << 20


def test_replacement_node_reads_everything(node: Node, replacement: Callable[[], Node]) -> None:
    for shape in SHAPES:
        folder = node.mount / shape.name
        folder.mkdir()
        for step in (1, 2, 3):
            shape.save(folder, step, 300_000)
        (folder / "latest").symlink_to(shape.folder(3))
    node.settle()
    before = node.mount
    want = {p: (before / p).read_bytes() for p in _files(before)}
    node.kill()
    node.close()
    shutil.rmtree(node.local)
    other = replacement()
    assert {p: (other.mount / p).read_bytes() for p in _files(other.mount)} == want
    compare(other.mount, node.shared)


def _files(root: Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, files in os.walk(root)
        for name in files
    )


def test_files_from_before_tierfs_are_simply_there(make_node: Callable[..., Node]) -> None:
    node = make_node()
    (node.shared / "old" / "deep").mkdir(parents=True)
    (node.shared / "old" / "deep" / "f").write_bytes(b"old")
    (node.shared / "old" / "link").symlink_to("deep/f")
    node.start()
    compare(node.mount, node.shared)
    with (node.mount / "old" / "deep" / "f").open("ab") as file:
        file.write(b" and new")
    os.rename(node.mount / "old", node.mount / "renamed")
    node.settle()
    assert (node.shared / "renamed" / "deep" / "f").read_bytes() == b"old and new"
    compare(node.mount, node.shared)


def test_what_others_put_on_the_shared_tier_appears(node: Node) -> None:
    (node.mount / "d").mkdir()
    (node.mount / "d" / "mine").write_bytes(b"1")
    node.settle()
    assert os.listdir(node.mount / "d") == ["mine"]
    (node.shared / "d" / "theirs").write_bytes(b"2")
    wait_until(
        lambda: sorted(os.listdir(node.mount / "d")) == ["mine", "theirs"],
        "the foreign file to be visible", timeout=2,
    )  # fmt: skip
    assert (node.mount / "d" / "theirs").read_bytes() == b"2"


def test_a_local_copy_is_not_served_once_another_node_replaced_it(
    node: Node, replacement: Callable[[], Node]
) -> None:
    (node.mount / "f").write_bytes(b"first")
    node.settle()
    assert (node.mount / "f").read_bytes() == b"first"
    other = replacement()
    (other.mount / "f").write_bytes(b"again")  # of the same size
    other.settle()
    wait_until(lambda: (node.mount / "f").read_bytes() == b"again", "the new content", timeout=2)


def test_a_file_removed_elsewhere_is_gone(node: Node, replacement: Callable[[], Node]) -> None:
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    other = replacement()
    (other.mount / "f").unlink()
    other.settle()
    wait_until(lambda: not (node.mount / "f").exists(), "the file to be gone", timeout=2)
    assert os.listdir(node.mount) == []


def test_two_nodes_write_side_by_side(node: Node, replacement: Callable[[], Node]) -> None:
    other = replacement()
    (node.mount / "shards").mkdir()
    node.settle()
    wait_until(lambda: (other.mount / "shards").is_dir(), "the directory on the other node")
    (node.mount / "shards" / "__0_0.distcp").write_bytes(b"0" * MIB)
    (other.mount / "shards" / "__1_0.distcp").write_bytes(b"1" * MIB)
    node.settle()
    other.settle()
    for mount in (node.mount, other.mount):
        wait_until(
            lambda mount=mount: sorted(os.listdir(mount / "shards"))
            == ["__0_0.distcp", "__1_0.distcp"],
            "both shards on both nodes", timeout=2,
        )  # fmt: skip
    compare(node.mount, other.mount)


def test_symlinks_do_not_lead_out_of_a_tier(node: Node, tmp_path: Path) -> None:
    """The daemon is root: a link planted on the shared tier must not make it write elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (node.mount / "d").mkdir()
    (node.mount / "d" / "f").write_bytes(b"1")
    node.settle()
    node.expected = [r"d/g|moved, replaced or removed|moved or removed|stuck"]
    with (node.mount / "d" / "g").open("wb") as file:
        file.write(b"2")
        shutil.rmtree(node.shared / "d")
        (node.shared / "d").symlink_to(outside)
    assert node.flush(timeout=3).code != 0
    assert list(outside.iterdir()) == []
