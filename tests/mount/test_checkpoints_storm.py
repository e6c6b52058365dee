"""Many jobs, killed anywhere; a daemon and a node, killed anywhere; one shared tier, watched.

What looks whole there is whole; once something is, something always is, and never an older one;
whoever resumes, on whatever node, gets the newest of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.harness import LoopDevice, Node, jobs, wait_until
from tests.harness.campaign import Campaign, Watch

MIB = 1 << 20


def storm(
    make_node: Callable[..., Node], device: LoopDevice, kinds: tuple[jobs.Kind, ...],
    seed: int, seconds: float,
) -> None:  # fmt: skip
    def make(name: str) -> Node:
        node = make_node(name, shared=device.mountpoint)
        node.settings |= {"supervisor": True, "group_settle": 1.0, "lease": 1.0}
        node.settings["log_level"] = os.environ.get("TIERFS_STORM_LOG", "info")
        node.expected = [
            r"worker \d+ ended \(killed by SIGKILL\)", "another node writes the checkpoint",
        ]  # fmt: skip
        return node

    campaign = Campaign(make, device, kinds, seed)
    with Watch(device, kinds) as watch, campaign:
        campaign.run(seconds, lambda: watch.bad)
        assert campaign.wrong == []
        assert watch.bad == []
        node = campaign.finish()
        assert campaign.wrong == []
        last = {kind.name: jobs.look(kind, node.mount / kind.name).chosen for kind in kinds}
        wait_until(
            lambda: watch.bad or watch.steps == last, f"the shared tier to have {last}", timeout=30
        )
        campaign.take_over()
    assert watch.bad == []
    assert watch.looks > seconds / 2


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(int(os.environ.get("TIERFS_STORM_SEEDS", "3"))))
def test_long_storm(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node], seed: int
) -> None:
    seconds = float(os.environ.get("TIERFS_STORM_SECONDS", "120"))
    device = make_device("storm", 1024 * MIB)
    storm(make_node, device, tuple(jobs.KINDS.values()), seed, seconds)


def test_short_storm(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    storm(make_node, make_device("storm", 512 * MIB), tuple(jobs.KINDS.values()), 1, 3.0)
