"""A flush calls whole what was there when it was called, not the save that goes on meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, frozen, wait_until

SECONDS = 3.0
"""Longer than a checkpoint that may be sealed takes to be."""


@pytest.fixture
def run(node: Node) -> Path:
    """A directory for checkpoints."""
    path = node.mount / "run"
    path.mkdir()
    return path


def all_sent(node: Node) -> None:
    """Returns when nothing is pending but what waits for a seal."""
    wait_until(lambda: not node.status()["pending_files"], "everything to be sent")


def is_published(checkpoint: Path, node: Node) -> bool:
    """Whether the shared tier has `checkpoint` of the mount under its name."""
    return (node.shared / checkpoint.relative_to(node.mount)).exists()


def never_published(checkpoint: Path, node: Node) -> None:
    """Requires that all of `checkpoint` is sent, and that it is not published for a while."""
    all_sent(node)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert not is_published(checkpoint, node), os.listdir(checkpoint)
        time.sleep(0.05)


def test_the_word_of_a_flush_does_not_hold_for_what_comes_later(node: Node, run: Path) -> None:
    """One that came in the middle of a save; then rank 0 writes the marker, rank 1 its file."""
    checkpoint = run / "step-1"
    checkpoint.mkdir()
    (checkpoint / "__0_0.distcp").write_bytes(b"a" * 100_000)
    assert node.flush(run).code == 6
    (checkpoint / ".metadata").write_bytes(b"m")
    never_published(checkpoint, node)
    (checkpoint / "__1_0.distcp").write_bytes(b"b" * 100_000)
    node.settle(run)
    assert is_published(checkpoint, node)


def test_a_flush_says_nothing_of_what_is_begun_while_it_waits(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """A job that flushes its run in a thread after each save, and goes on to the next."""
    tier = make_device("slow", 512 << 20)
    node = make_node(shared=tier.mountpoint).start()
    run = node.mount / "run"
    (run / "checkpoint_1").mkdir(parents=True)
    with frozen(tier):
        (run / "checkpoint_1" / "model.safetensors").write_bytes(b"a" * (8 << 20))
        words = node.command("flush", "--wait", "--json", "--timeout", "60", run)
        flush = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert flush.stdout is not None
        assert "progress" in flush.stdout.readline()
        (run / "checkpoint_2").mkdir()
        (run / "checkpoint_2" / "model.safetensors").write_bytes(b"a" * 100_000)
    with flush:
        flush.communicate()
    assert flush.returncode == 0
    assert is_published(run / "checkpoint_1", node)
    never_published(run / "checkpoint_2", node)
    (run / "checkpoint_2" / "optimizer.bin").write_bytes(b"b" * 100_000)
    node.settle(run)
    assert is_published(run / "checkpoint_2", node)


def test_what_was_written_for_long_is_changed_until_it_is_closed(
    make_node: Callable[..., Node],
) -> None:
    """Rank 1 closes a file long after the marker of rank 0, and begins its next one."""
    node = make_node()
    node.settings |= {"group_settle": SECONDS + 2}
    node.start()
    checkpoint = node.mount / "step-1"
    checkpoint.mkdir()
    with (checkpoint / "__1_0.distcp").open("wb") as shard:
        shard.write(b"b" * 100_000)
        (checkpoint / "__0_0.distcp").write_bytes(b"a" * 100_000)
        (checkpoint / ".metadata").write_bytes(b"m")
        time.sleep(SECONDS + 2.5)
    never_published(checkpoint, node)
    wait_until(lambda: is_published(checkpoint, node), "it to be published by itself")


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_who_truncates_by_a_path_is_known(node: Node, run: Path, end: str) -> None:
    """As who opens a file for writing: what it leaves is whole when it has ended well."""
    checkpoint = run / "checkpoint-1"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (checkpoint / name).write_bytes(b"a" * 100)
    node.settle(run)
    assert is_published(checkpoint, node)
    call = "import os, sys; os.truncate(sys.argv[1], 50)"
    if end == "is killed":
        call += "; os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", call, checkpoint / "optimizer.pt"], check=False)
    assert done.returncode == (0 if end == "ends" else -9)
    assert node.flush(run).code == 0
    there = node.shared / "run" / "checkpoint-1" / "optimizer.pt"
    assert there.stat().st_size == (50 if end == "ends" else 100)
    if end == "is killed":
        assert not node.status()["stuck"], "the call was over"
        assert (checkpoint / "optimizer.pt").read_bytes() == b"a" * 100
        (kept,) = node.shared.glob(".tierfs/quarantine/*/content/optimizer.pt")
        assert kept.read_bytes() == b"a" * 50
