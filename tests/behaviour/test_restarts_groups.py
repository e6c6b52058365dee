"""Restarts at any point, with names of checkpoints among the others: the mount shows none of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.test_restarts import FRESH, KNOWN, Machine, Tree
from tests.harness import LoopDevice
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    # the second one with many examples: TIERFS_TEST_EXAMPLES
    [GroupMachine, pytest.param(JobMachine, marks=pytest.mark.soak)],
)
def test_restarts_at_any_point_with_checkpoints(
    tiers: tuple[LoopDevice, LoopDevice], machine: type[GroupMachine]
) -> None:
    machine.devices = tiers
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("TIERFS_TEST_EXAMPLES", "10")),
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
