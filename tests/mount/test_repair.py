"""`tierfs verify --repair`: damage on the shared tier, mended from the copies of a node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Node
from tests.harness.node import CommandResult

CONTENT = os.urandom(300_000)


def flip(path: Path, offset: int = 1000) -> None:
    """One bit of `path`, and nothing that a stat would show but its ctime."""
    st = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def repair(node: Node, *words: str | Path) -> CommandResult:
    return node.cli("verify", "--repair", "--json", *words)


def kept(node: Node) -> list[Path]:
    """What is in quarantine."""
    return list((node.shared / ".tierfs" / "quarantine").glob("*/content"))


@pytest.fixture
def victim(node: Node) -> Path:
    """A committed file with attributes of its own, on the shared tier."""
    (node.mount / "d").mkdir()
    path = node.mount / "d" / "model.bin"
    path.write_bytes(CONTENT)
    path.chmod(0o640)
    os.chown(path, 1234, 4321)
    os.setxattr(path, "user.note", b"kept")
    os.utime(path, ns=(1_600_000_000_000_000_001, 1_600_000_000_000_000_002))
    node.settle()
    return node.shared / "d" / "model.bin"


def test_a_flipped_bit_is_mended(node: Node, victim: Path) -> None:
    before = victim.stat()
    flip(victim)
    found = node.cli("verify", "--json", node.mount)
    assert found.code == 3
    result = repair(node, node.mount)
    assert result.code == 0, result.out
    assert [r["path"] for r in result.json["repaired"]] == [str(victim)]
    assert result.json["problems"] == []
    assert victim.read_bytes() == CONTENT
    after = victim.stat()
    for name in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns"):
        assert getattr(after, name) == getattr(before, name), name
    assert os.getxattr(victim, "user.note") == b"kept"
    assert (node.mount / "d" / "model.bin").read_bytes() == CONTENT
    (damaged,) = kept(node)
    assert len(damaged.read_bytes()) == len(CONTENT)
    assert damaged.read_bytes() != CONTENT
    assert json.loads((damaged.parent / "why.json").read_text())["path"] == "d/model.bin"
    assert node.cli("verify", "--json", node.mount).code == 0


def test_a_cut_file_is_mended(node: Node, victim: Path) -> None:
    st = victim.stat()
    os.truncate(victim, 1000)
    os.utime(victim, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert repair(node, node.mount / "d" / "model.bin").code == 0
    assert victim.read_bytes() == CONTENT


def test_without_a_daemon(node: Node, victim: Path) -> None:
    assert node.umount().code == 0
    flip(victim)
    result = repair(node, "--shared", node.shared, "--local", node.local, "d")
    assert result.code == 0, result.out
    assert victim.read_bytes() == CONTENT
    staging = node.shared / ".tierfs" / "staging"
    assert not [path for path in staging.rglob("*") if not path.is_dir()]


def test_both_names_of_a_file_are_mended_as_one(node: Node, victim: Path) -> None:
    os.link(victim, victim.parent / "second")
    flip(victim)
    assert repair(node, "--shared", node.shared, "--local", node.local).code == 0
    assert victim.read_bytes() == CONTENT
    assert victim.stat().st_ino == (victim.parent / "second").stat().st_ino


def test_what_somebody_changed_on_purpose_stays(node: Node, victim: Path) -> None:
    victim.write_bytes(b"edited in place, without tierfs")
    result = repair(node, node.mount)
    assert result.code == 3
    assert "modification time" in result.json["problems"][0]["problem"]
    assert victim.read_bytes() == b"edited in place, without tierfs"
    assert kept(node) == []


def test_without_a_copy_it_is_named(
    node: Node, victim: Path, make_node: Callable[..., Node]
) -> None:
    """Another node has no copy of it; and a damaged local copy mends nothing."""
    flip(victim)
    other = make_node("other").start()
    damaged = victim.read_bytes()
    assert repair(other, other.mount).code == 3
    assert node.umount().code == 0
    for copy in (node.local / "objects").glob("*/*"):
        if copy.is_file() and copy.stat().st_size == len(CONTENT):
            flip(copy, 5)
    result = repair(node, "--shared", node.shared, "--local", node.local)
    assert result.code == 3
    assert victim.read_bytes() == damaged


def test_another_local_tier_is_refused(node: Node, victim: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    (stranger / "objects").mkdir(parents=True)
    (stranger / "MEMBER").write_text("ab" * 16 + "\n")
    result = repair(node, "--shared", node.shared, "--local", stranger)
    assert result.code == 1
    assert "never mounted" in result.err


def test_the_manifest_of_a_checkpoint_is_compared(node: Node) -> None:
    checkpoint = node.mount / "run" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    for name in ("model.safetensors", "trainer_state.json", "linked", "folder"):
        (checkpoint / name).write_bytes(name.encode() * 100)
    (checkpoint / "symlink").symlink_to("linked")
    node.settle()
    stands = node.shared / "run" / "checkpoint-5"
    good = node.cli("verify", "--json", node.mount).json
    assert (good["exit_code"], good["checkpoints"]) == (0, 1), good
    (stands / "trainer_state.json").rename(stands / "elsewhere")
    for name in ("linked", "folder"):
        (stands / name).unlink()
    (stands / "linked").symlink_to("elsewhere")
    (stands / "folder").mkdir()
    content = b"put there without tierfs"
    (stands / "model.safetensors").unlink()
    (stands / "model.safetensors").write_bytes(content)
    for words in ((node.mount,), (checkpoint,), ("--shared", node.shared, "run/checkpoint-5")):
        found = node.cli("verify", "--json", *words)
        assert found.code == 3
        problems = {Path(p["path"]).name: p["problem"] for p in found.json["problems"]}
        assert "missing" in problems["trainer_state.json"]
        assert "found" in problems["model.safetensors"]
        assert "not a file" in problems["linked"]
        assert "not a file" in problems["folder"]
        assert "symlink" not in problems
