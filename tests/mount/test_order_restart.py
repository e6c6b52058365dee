"""G3 across a restart: what a pointer or a link leads to is found again after a kill."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.faults import fault_environment
from tests.harness import LoopDevice, Node, immutable, wait_until

MIB = 1 << 20


def _link(node: Node, where: str) -> None:
    target = {
        "relative": "../ckpt/step-1",
        "absolute": os.fspath(node.mount / "ckpt" / "step-1"),
    }[where]
    (node.mount / "links" / "latest").symlink_to(target)


@pytest.mark.parametrize("where", ["relative", "absolute"])
@pytest.mark.parametrize("killed", [False, True], ids=["running", "restarted"])
def test_link_in_another_tree_waits_for_its_target(
    make_device: Callable[..., LoopDevice],
    make_node: Callable[..., Node],
    where: str,
    killed: bool,
) -> None:
    tier = make_device("slow")
    node = make_node(shared=tier.mountpoint)
    node.environment = fault_environment("put.write:1+:EIO")
    node.expected.append(r"tried again|Input/output")
    node.start()
    for name in ("ckpt", "ckpt/step-1", "links"):
        (node.mount / name).mkdir()
    (node.mount / "ckpt" / "step-1" / "shard").write_bytes(bytes(2 * MIB))
    _link(node, where)
    if killed:
        node.kill()
        node.start()
    (node.mount / "links" / "other").mkdir()
    wait_until(lambda: (tier.mountpoint / "links" / "other").is_dir(), "a directory to be sent")
    wait_until(lambda: node.status()["retrying"], "the shard to fail")
    assert not (tier.mountpoint / "links" / "latest").is_symlink()
    node.kill()
    node.environment = {}
    node.start()
    node.settle()
    assert (tier.mountpoint / "links" / "latest").is_symlink()
    assert (tier.mountpoint / "ckpt" / "step-1" / "shard").stat().st_size == 2 * MIB


def test_pointer_is_held_after_a_restart_while_what_it_names_is_stuck(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    tier = make_device("slow")
    node = make_node(shared=tier.mountpoint)
    node.settings["group_settle"] = 1
    node.start()
    node.expected.append(r"immutable|not permitted|stuck")
    (node.mount / "global_step1").mkdir()
    assert node.flush().code == 6
    with immutable(tier.mountpoint / ".staging_global_step1"):
        (node.mount / "global_step1" / "mp_rank_00_model_states.pt").write_bytes(b"x" * MIB)
        (node.mount / "latest").write_bytes(b"global_step1")
        wait_until(lambda: node.status()["stuck"], "the shard to be stuck")
        node.kill()
        node.start()
        wait_until(lambda: node.status()["stuck"], "the shard to be stuck")
        assert node.cli("flush", "--wait", node.mount).code == 3
        assert not (tier.mountpoint / "latest").exists()
    node.settle()
    assert (tier.mountpoint / "latest").read_bytes() == b"global_step1"
    assert os.listdir(tier.mountpoint / "global_step1") == ["mp_rank_00_model_states.pt"]
