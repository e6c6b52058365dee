"""The node dies at every labelled step of every kind of op, is started again, and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.component.writeback.crashing import NEW, OLD, SHARD
from tests.component.writeback.rig import open_rig, running, staged_files
from tests.faults import KILLED

TWICE = (
    "rename.rename",
    "rename.fsync_dir",
    "put.rename",
    "put.fsync_dir",
    "unlink.unlink",
    "symlink.rename",
)
"""Steps at whose second call the node dies too: other ops are half done then."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.component.writeback.crashing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield Server(process.stdin, process.stdout)
    process.stdin.close()
    process.stdout.close()
    assert process.wait(10) == 0


class Server:
    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests = requests
        self._answers = answers

    def ask(self, step: str, nth: int, base: Path) -> str:
        """The next line of the answer to a life in `base` that ends at a step."""
        print(step, nth, base / "local", base / "shared", file=self._requests, flush=True)
        return self._answers.readline().strip()

    def labels(self, base: Path) -> list[str]:
        labels = self.ask("-", 1, base).split()
        assert self._answers.readline().strip() == "0"
        return labels


def looks(shared: Path) -> None:
    """What must hold at every instant, and so also where the node died."""
    old, new = shared / "step-1", shared / "step-2"
    if (new / ".metadata").exists():
        assert (new / "__0_0.distcp").read_bytes() == SHARD
    if (old / ".metadata").exists():
        assert (old / "__0_0.distcp").read_bytes() == OLD, "a marker without its shard"
    if not (old / "__0_0.distcp").exists():
        assert (new / ".metadata").exists(), "a removal before an earlier save"
    target = os.readlink(shared / "latest")
    assert (shared / target / ".metadata").exists() or target == "step-1"
    if target == "step-2":
        assert (new / ".metadata").exists(), "a pointer before its shards"
    assert (shared / "last.pt").read_bytes() in (OLD, NEW)
    assert {(shared / name).read_bytes() for name in ("left", "right")} == {b"left", b"right"}
    assert {p.read_bytes() for p in (shared / "plain", shared / "renamed") if p.exists()} == {
        b"plain"
    }


def is_final(shared: Path) -> None:
    names = {p.name for p in shared.iterdir()}
    assert names == {".tierfs", "step-2", "latest", "last.pt", "renamed", "hard", "left", "right"}
    assert ((shared / "left").read_bytes(), (shared / "right").read_bytes()) == (b"right", b"left")
    assert {p.name for p in (shared / "step-2").iterdir()} == {".metadata", "__0_0.distcp"}
    assert os.readlink(shared / "latest") == "step-2"
    assert (shared / "last.pt").read_bytes() == NEW
    assert (shared / "hard").stat().st_ino == (shared / "renamed").stat().st_ino
    assert (shared / "renamed").stat().st_mode & 0o777 == 0o600
    assert staged_files(shared) == []


@pytest.mark.slow
async def test_dying_at_every_step(server: Server, tmp_path: Path) -> None:
    labels = server.labels(tmp_path / "whole")
    assert {
        "local.fsync", "put.create", "put.fsync", "put.rename", "put.fsync_dir", "mkdir.rename",
        "symlink.rename", "link.link", "rename.rename", "unlink.unlink", "rmdir.rmdir",
        "setattr.chmod",
    } <= {*labels}  # fmt: skip
    died = 0
    for number, step in enumerate(labels):
        for nth in (1, 2) if step in TWICE else (1,):
            base = tmp_path / f"{number}-{nth}"
            status = server.ask(step, nth, base)
            assert status in ("0", str(KILLED)), step
            died += status == str(KILLED)
            looks(base / "shared")
            async with running(open_rig(base / "local", base / "shared")) as rig:
                await rig.drain()
                assert rig.journal.load().ops == [], step
            is_final(base / "shared")
    assert died >= len(labels)
