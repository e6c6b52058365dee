"""Ranks on two nodes that write one checkpoint: two file systems on one shared tier."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from tests.behaviour.direct import Direct
from tests.harness import LoopDevice, wait_until
from tierfs.model import OpKind

STEP = "run/step_1"
MARKER = f"{STEP}/.metadata"
Pair = Callable[..., tuple[Direct, Direct]]


@pytest.fixture
def make_pair(
    tiers: tuple[LoopDevice, LoopDevice], request: pytest.FixtureRequest
) -> Iterator[Pair]:
    """Two nodes on one shared tier, with the directory `run`; the second is held."""
    made: list[Direct] = []
    name = request.node.name[:80]
    shared = tiers[1].mountpoint / name

    def make(**settings: float) -> tuple[Direct, Direct]:
        for member in ("one", "other"):
            direct = Direct(tiers[0].mountpoint / name / member, shared, **settings)
            direct.start(held=member == "other")
            made.append(direct)
            if member == "one":
                direct.mkdir("run")
                direct.settle()
        return made[0], made[1]

    yield make
    for direct in made:
        direct.system.hook = None
        direct.stop()
    shutil.rmtree(tiers[0].mountpoint / name)
    shutil.rmtree(shared)


def flush(*nodes: Direct) -> dict[str, bytes]:
    """As `flush --wait` on each; what is published, and staged nowhere."""

    async def seal(direct: Direct) -> None:
        for group in direct.fs.core.groups:
            await direct.fs.sealing.flush(group, frozenset(), time.monotonic())

    def published() -> bool:
        for direct in nodes:
            direct.settle()
            direct.run(seal, direct)
            direct.settle()
        staged = list((nodes[0].shared / "run").glob(".staging_*"))
        return not staged and (nodes[0].shared / STEP).exists()

    wait_until(published, "the checkpoint to be published")
    return content(nodes[0])


def content(direct: Direct) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (direct.shared / STEP).iterdir()}


def records(direct: Direct) -> list[str]:
    """The checkpoints of which there is a state on the shared tier."""
    return [path.name for path in (direct.shared / ".tierfs" / "groups").iterdir()]


def pending(direct: Direct) -> list[OpKind]:
    return direct.run_sync(lambda: [op.kind for op in direct.rooms.backlog.under(1)])


def test_two_that_make_the_directory_at_the_same_time_write_one_checkpoint(make_pair: Pair) -> None:
    one, other = make_pair(lease=1.0)
    other.mkdir(STEP)
    one.mkdir(STEP)
    one.settle()
    fd = other.open(f"{STEP}/__1_0.distcp", 0o1102)
    other.write(fd, b"other")
    other.go()
    wait_until(lambda: pending(other) == [OpKind.PUT], "the directory to be that of the first")
    (group,) = records(one)
    assert len(list((one.shared / ".tierfs" / "groups" / group).glob("writer-*"))) == 2
    one.write_file(f"{STEP}/__0_0.distcp", b"one")
    one.write_file(MARKER, b"all")
    one.settle()

    async def judged() -> str:
        (found,) = one.fs.core.groups
        verdict = await one.fs.sealing.flush(found, frozenset(), time.monotonic())
        return "" if verdict is None else verdict.reason

    waits = "another node still writes it"  # as soon as it is known that both live
    wait_until(lambda: waits in one.run(judged), "the first to know that the other writes")
    other.close(fd)
    other.restart()
    with_it = {"__0_0.distcp": b"one", "__1_0.distcp": b"other", ".metadata": b"all"}
    assert flush(one, other) == with_it
    assert records(one) == [group]
    for node in (one, other):
        node.drop_caches()
        assert sorted(node.listdir(STEP)) == sorted(with_it)
    # and who adopted it removes it as one, when there is another
    (one.shared / "run" / "step_2").mkdir()
    for name in with_it:
        other.unlink(f"{STEP}/{name}")
    other.rmdir(STEP)
    other.settle()
    assert [path.name for path in (one.shared / "run").iterdir()] == ["step_2"]
    assert records(one) == []


def test_one_that_made_the_directory_adds_to_what_another_published_meanwhile(
    make_pair: Pair,
) -> None:
    one, other = make_pair(lease=1.0)
    other.mkdir(STEP)
    other.write_file(f"{STEP}/__1_0.distcp", b"other")
    one.mkdir(STEP)
    one.write_file(f"{STEP}/__0_0.distcp", b"one")
    one.write_file(MARKER, b"all")
    assert flush(one) == {"__0_0.distcp": b"one", ".metadata": b"all"}
    (group,) = records(one)
    other.settle()
    with_it = {"__0_0.distcp": b"one", "__1_0.distcp": b"other", ".metadata": b"all"}
    assert flush(one, other) == with_it
    assert records(one) == [group]
    assert not (one.shared / ".tierfs" / "quarantine").exists()


def test_a_file_begun_before_another_node_publishes_is_added_to_what_that_published(
    make_pair: Pair,
) -> None:
    one, other = make_pair(lease=1.0)
    one.mkdir(STEP)
    one.write_file(f"{STEP}/__0_0.distcp", b"one")
    one.settle()
    other.write_file(f"{STEP}/__1_0.distcp", b"other")
    assert pending(other) == [OpKind.REOPEN, OpKind.PUT]
    one.write_file(MARKER, b"all")
    assert flush(one) == {"__0_0.distcp": b"one", ".metadata": b"all"}
    other.settle()
    with_it = {"__0_0.distcp": b"one", "__1_0.distcp": b"other", ".metadata": b"all"}
    assert flush(one, other) == with_it
    assert pending(other) == []
    for node in (one, other):
        assert sorted(node.listdir(STEP)) == sorted(with_it)
        assert node.read_file(f"{STEP}/__1_0.distcp") == b"other"


def test_a_checkpoint_that_is_moved_away_is_none_that_another_node_has_published(
    make_pair: Pair,
) -> None:
    """What is made under its name is a new one, also before the move is committed."""
    one, _ = make_pair()
    one.mkdir("run/a")
    one.write_file("run/a/old", b"old")
    one.rename("run/a", STEP)
    one.settle()
    one.system.hook = unmoved
    one.rename(STEP, "run/b")
    one.mkdir(STEP)
    wait_until(lambda: (one.shared / "run/.staging_step_1").exists(), "it to be made there")
    assert one.listdir(STEP) == []
    one.write_file(f"{STEP}/new", b"new")
    one.system.hook = None
    one.settle()
    assert one.listdir("run/b") == ["old"]
    assert one.listdir(STEP) == ["new"]


def unmoved(step: str, _: tuple[object, ...]) -> None:
    """Nothing is moved on the shared tier."""
    if step == "rename.rename":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
