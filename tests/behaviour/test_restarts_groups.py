"""Restarts at any point, with names of checkpoints among the others: the mount shows none of it."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.behaviour.calls import Calls
from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.test_restarts import (
    FRESH,
    KNOWN,
    KilledMachine,
    Machine,
    Tree,
    run_machine,
    seen,
)
from tests.harness import LoopDevice, wait_until
from tierfs.model import ROOT, OpState


class GroupMachine(Machine):
    """The same, and in the end every checkpoint is said to be whole, every removal let go."""

    names = st.sampled_from(["a", "checkpoint-1", "checkpoint-2"])

    def told(self, tree: Tree) -> Tree:
        """All but link counts: two generations of a checkpoint share their files for a while."""
        return {path: facts[:-1] for path, facts in tree.items()}

    @rule()
    def commit(self) -> None:
        self.direct.go()
        self.direct.run(self.settle_all)

    @rule(path=KNOWN)
    def remove_tree(self, path: str) -> None:
        """rm -rf."""
        for below in sorted(self.model.below(path), reverse=True):
            self.remove(below)
        self.remove(path)

    @rule(path=FRESH)
    def save(self, path: str) -> None:
        """A checkpoint as a framework writes it."""
        self.make_directory(path)
        if path in self.model.at and self.model.is_directory(path):
            self.write(f"{path}/model.safetensors", b"1")
            self.write(f"{path}/trainer_state.json", b"2")

    def finish(self) -> None:
        self.direct.run(self.settle_all)
        self.direct.run(self.seal_all)

    async def settle_all(self) -> None:
        """Wait for what can go by itself."""
        rooms = self.direct.rooms
        while ops := [
            op for op in rooms.backlog.under(ROOT)
            if op.state is not OpState.OPEN and not rooms.backlog.is_held(op)
        ]:  # fmt: skip
            result = await rooms.writeback.wait(ops)
            assert not [*result.stuck, *result.dropped]

    async def seal_all(self) -> None:
        """What is not sealed is to be, as it is; what is held is let go."""
        rooms = self.direct.rooms
        while True:
            for group in rooms.fs.core.groups:
                rooms.fs.core.groups.ask(group, -1)
                await rooms.fs.sealing.judge_again(group)
            rooms.writeback.removals.purge(list(rooms.backlog.under(ROOT)))
            await self.settle_all()
            if not [*rooms.backlog.under(ROOT)] and not [*rooms.fs.core.groups]:
                return


class KilledGroupMachine(KilledMachine, GroupMachine):
    """And it is killed in the very moment in which it has answered."""


class JobMachine(GroupMachine):
    """A living process does it all: what it removes and had finished is published first.

    Its checkpoints have no end marker (docs/decisions/0022-sealed-to-be-removed.md).
    """

    settings: ClassVar[Mapping[str, float]] = {"group_settle": 0.0}
    names = st.sampled_from(["a", "checkpoint_1", "checkpoint_2"])

    def __init__(self) -> None:
        super().__init__()
        self.job = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.direct.caller = dataclasses.replace(CALLER, process=self.job.pid)

    def teardown(self) -> None:
        with self.job:
            super().teardown()

    @rule(path=FRESH)
    def save(self, path: str) -> None:
        self.make_directory(path)
        if path in self.model.at and self.model.is_directory(path):
            self.write(f"{path}/model.safetensors", b"1")
            self.write(f"{path}/optimizer.bin", b"2")

    @rule(name=st.sampled_from(["checkpoint_1", "checkpoint_2"]))
    def save_again(self, name: str) -> None:
        """As accelerate does it."""
        if self.model.is_directory(name):
            self.remove_tree(name)
        self.save(name)


class CutOffMachine(GroupMachine):
    """Processes are killed while they remove published checkpoints.

    What they leave is not listed until it is written again, or in the end said to be whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[str] = set()

    @rule(path=KNOWN, count=st.integers(1, 2))
    def cut_off(self, path: str, count: int) -> None:
        """A process removes some files of the checkpoint that `path` lies in, and is killed."""
        top = next(filter(is_checkpoint, above(path)), None)
        if top is None or not self.model.is_directory(top) or self.model.through_symlink(top):
            return
        files = [each for each in self.model.below(top) if self.model.is_file(each)]
        self.direct.go()
        self.finish()
        self.cut.clear()
        with subprocess.Popen(["sleep", "60"]) as remover:
            for each in sorted(files)[:count]:
                self.direct.unlink(each, remover.pid)
                del self.model.at[each]
            remover.kill()
        unlinkers = self.direct.fs.core.groups.unlinkers
        wait_until(
            lambda: self.direct.run_sync(lambda: not unlinkers.is_at(remover.pid)), "its end"
        )
        if files:
            self.cut.add(top)

    def check(self, calls: Calls) -> None:
        """What is not listed is there by its name."""
        listed, model = seen(calls), self.model.seen()
        hidden = {path for path in model.keys() - listed.keys() if self.cut & {*above(path)}}
        steps = "\n".join(self.direct.steps)
        assert calls is self.direct or not hidden, f"after\n{steps}"
        for path in hidden:
            assert self.direct.exists(path), f"{path} is gone after\n{steps}"
            if self.model.is_file(path):
                assert self.direct.read_file(path) == self.model.at[path].content, f"after\n{steps}"
        rest = {path: facts for path, facts in model.items() if path not in hidden}
        assert self.told(listed) == self.told(rest), f"after\n{steps}"

    def finish(self) -> None:
        super().finish()
        self.cut.clear()


def above(path: str) -> list[str]:
    """The directories that lead to `path`, and itself."""
    parts = path.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def is_checkpoint(path: str) -> bool:
    return path.rpartition("/")[2].startswith("checkpoint-")


def test_a_checkpoint_in_a_directory_that_is_renamed_to_one_is_there_after_a_restart(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct()
    direct.mkdir("a")
    direct.mkdir("a/checkpoint-2")
    direct.write_file("a/checkpoint-2/f", b"1")
    direct.settle()
    direct.restart(held=True)
    direct.rename("a", "checkpoint-2")
    direct.restart(held=True)
    assert direct.read_file("checkpoint-2/checkpoint-2/f") == b"1"
    direct.settle()
    assert direct.read_file("checkpoint-2/checkpoint-2/f") == b"1"


def test_a_file_replaced_in_a_checkpoint_that_came_into_another_with_its_directory(
    make_direct: Callable[..., Direct],
) -> None:
    """The other one needs no next generation for that, which would not have the inner one in it."""
    direct = make_direct()
    direct.mkdir("a")
    direct.write_file("f", b"1")
    direct.settle()
    direct.restart(held=True)
    direct.mkdir("a/checkpoint-2")
    direct.rename("a", "checkpoint-1")
    direct.rename("f", "checkpoint-1/checkpoint-2/f")
    direct.write_file("checkpoint-1/checkpoint-2/f", b"2")
    direct.settle()
    assert direct.read_file("checkpoint-1/checkpoint-2/f") == b"2"
    assert (direct.shared / "checkpoint-1/.staging_checkpoint-2/f").read_bytes() == b"2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    # the last ones with many examples: TIERFS_TEST_EXAMPLES
    [GroupMachine, CutOffMachine]
    + [pytest.param(each, marks=pytest.mark.soak) for each in (JobMachine, KilledGroupMachine)],
)
def test_restarts_at_any_point_with_checkpoints(
    tiers: tuple[LoopDevice, LoopDevice], machine: type[GroupMachine]
) -> None:
    run_machine(machine, tiers)
