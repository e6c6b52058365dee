"""Files of a published checkpoint that are changed one by one."""

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


@pytest.mark.parametrize("way", ["straight", "restarted"])
def test_a_log_that_goes_on(make_direct: Callable[..., Direct], way: str) -> None:
    direct = make_direct(group_settle=0.05)
    direct.mkdir("run")
    direct.mkdir(AT)
    direct.write_file(f"{AT}/model.safetensors", b"1")
    direct.write_file(f"{AT}/train.log", b"one\n")
    direct.settle()  # a seal does not wait for logs
    direct.write_file(f"{AT}/trainer_state.json", b"{}")
    direct.settle()
    flush(direct)
    assert "train.log" in listed(direct)
    direct.restart(held=way == "restarted")
    fd = direct.open(f"{AT}/train.log", os.O_WRONLY)
    direct.pwrite(fd, b"two\n", 4)
    direct.close(fd)
    if way == "restarted":
        direct.restart(held=True)
    direct.settle()
    assert (direct.shared / AT / "train.log").read_bytes() == b"one\ntwo\n"
    assert listed(direct) == {"model.safetensors", "trainer_state.json"}


def test_the_checkpoint_renamed(direct: Direct) -> None:
    direct.rename(AT, "run/checkpoint-2")
    direct.unlink("run/checkpoint-2/optimizer.pt")
    direct.settle()
    assert "optimizer.pt" not in listed(direct, "run/checkpoint-2")
    assert "config.json" in listed(direct, "run/checkpoint-2")


@pytest.mark.parametrize("other", [f"{AT}/again.pt", "run/elsewhere.pt", f"{AT}/rank/again.pt"])
@pytest.mark.parametrize("by", ["its first name", "its other name"])
def test_a_file_of_two_names_is_written_over(direct: Direct, other: str, by: str) -> None:
    """Which of the names is given to the new version first is not said: neither is, there."""
    name = f"{AT}/optimizer.pt"
    direct.link(name, other)
    direct.settle()
    stands = direct.shared / AT
    before = {path: path.read_bytes() for path in stands.rglob("*") if path.is_file()}
    fd = direct.open(name if by == "its first name" else other, os.O_RDWR)
    direct.pwrite(fd, b"NEW", 0)
    direct.close(fd)
    direct.settle()
    assert {path: path.read_bytes() for path in before} == before
    assert direct.read_file(name) == direct.read_file(other) == b"NEWimizer.pt"
    direct.run(commit, direct)
    direct.settle()
    for path in (name, other):
        assert (direct.shared / path).read_bytes() == b"NEWimizer.pt"


async def commit(direct: Direct) -> None:
    """As `tierfs commit`."""
    for group in direct.fs.core.groups:
        direct.fs.core.groups.ask(group, -1)
        await direct.fs.sealing.judge_again(group)
