"""Files that leave a published checkpoint one by one: its manifest has them no more."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.behaviour.direct import Direct
from tests.behaviour.test_checkpoints import flush
from tierfs.mend.sealed import Manifests

FILES = ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json")
AT = "run/checkpoint-1"


@pytest.fixture
def direct(make_direct: Callable[..., Direct]) -> Direct:
    """With a published checkpoint."""
    direct = make_direct(group_settle=0.05)
    for directory in ("run", AT, f"{AT}/rank"):
        direct.mkdir(directory)
    for name in (*FILES, "rank/0.pt", "rank/1.pt"):
        direct.write_file(f"{AT}/{name}", name.encode())
    direct.settle()
    flush(direct)
    assert listed(direct) == {*FILES, "rank/0.pt", "rank/1.pt"}
    return direct


def listed(direct: Direct, at: str = AT) -> set[str]:
    """What the manifest has, all of which has to be there."""
    top = str(direct.shared / at)
    manifests = Manifests(str(direct.shared))
    try:
        lines = manifests.of(top)
    finally:
        manifests.close()
    assert lines is not None
    assert not [path for path in lines if not os.path.lexists(path)]
    return {os.path.relpath(path, top) for path in lines}


def test_removed(direct: Direct) -> None:
    direct.unlink(f"{AT}/optimizer.pt")
    direct.unlink(f"{AT}/rank/1.pt")
    direct.settle()
    assert listed(direct) == {"config.json", "model.safetensors", "trainer_state.json", "rank/0.pt"}


def test_removed_and_made_again(direct: Direct) -> None:
    direct.unlink(f"{AT}/optimizer.pt")
    direct.settle()
    direct.write_file(f"{AT}/optimizer.pt", b"of somebody else")
    direct.settle()
    assert "optimizer.pt" not in listed(direct)


@pytest.mark.parametrize("way", ["straight", "restarted"])
def test_renamed(direct: Direct, way: str) -> None:
    if way == "restarted":
        direct.restart(held=True)
    direct.rename(f"{AT}/optimizer.pt", f"{AT}/old.pt")
    direct.rename(f"{AT}/config.json", "run/config.json")
    direct.rename(f"{AT}/rank", f"{AT}/ranks")
    if way == "restarted":
        direct.restart()
    direct.settle()
    assert listed(direct) == {"model.safetensors", "trainer_state.json"}


def test_the_checkpoint_renamed(direct: Direct) -> None:
    direct.rename(AT, "run/checkpoint-2")
    direct.unlink("run/checkpoint-2/optimizer.pt")
    direct.settle()
    assert "optimizer.pt" not in listed(direct, "run/checkpoint-2")
    assert "config.json" in listed(direct, "run/checkpoint-2")
