"""Restarts at any point, with names of checkpoints among the others: the mount shows none of it."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.behaviour.test_restarts import FRESH, KNOWN, Machine
from tests.harness import LoopDevice
from tierfs.model import ROOT, OpState


class GroupMachine(Machine):
    """The same, and in the end every checkpoint is said to be whole, every removal let go."""

    names = st.sampled_from(["a", "checkpoint-1", "checkpoint-2"])

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


@pytest.mark.slow
def test_restarts_at_any_point_with_checkpoints(tiers: tuple[LoopDevice, LoopDevice]) -> None:
    GroupMachine.devices = tiers
    run_state_machine_as_test(
        GroupMachine,
        settings=settings(
            max_examples=int(os.environ.get("TIERFS_TEST_EXAMPLES", "10")),
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
