"""Up to 100,000 pending ops: the work is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.order.tree import Tree
from tierfs.model import Mark, Op, OpKind, Phase
from tierfs.order import Backlog

NOW = 1000.0


def send_all(tree: Tree) -> int:
    sent = 0
    while (op := tree.backlog.take(NOW)) is not None:
        if op.kind is OpKind.PUT and op.phase is Phase.QUEUED:
            op.phase = Phase.STAGED
            tree.backlog.done_with(op)
        else:
            tree.backlog.remove(op)
            sent += 1
    return sent


def looks_per_op(issue: Callable[[Tree], None], at_least: int) -> float:
    """How often an op was looked at on its way through the backlog."""
    tree = Tree(Backlog())
    issue(tree)
    tree.backlog.take(NOW, lambda op: False)
    tree.backlog.release_holds()
    pending = len(tree.backlog)
    assert pending >= at_least
    assert send_all(tree) == pending
    return tree.backlog.examined / pending


def test_many_checkpoints_with_markers_pointers_and_rotation() -> None:
    def issue(tree: Tree) -> None:
        for step in range(500):
            for shard in range(8):
                tree.put(f"run/step-{step}/__{shard}_0.distcp")
            tree.put(f"run/step-{step}/.metadata", size=9)
            tree.put("run/latest", size=6, overwrites=True, object=tree.object(f"latest-{step}"))
            for shard in range(8):
                tree.unlink(f"old/step-{step}/__{shard}_0.distcp")
            tree.unlink(f"old/step-{step}/.metadata")
            tree.rmdir(f"old/step-{step}")

    assert looks_per_op(issue, 9_500) < 6


@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_removals_behind_many_saves(many: int) -> None:
    """All of them wait for all saves; looking again after each save would be n * n / 4 looks."""

    def issue(tree: Tree) -> None:
        for i in range(many // 2):
            tree.put(f"run/{i % 100}-/x{i}.bin")
        for i in range(many // 2):
            tree.unlink(f"run/old{i}.bin")

    assert looks_per_op(issue, many) < 6


def test_a_mark_costs_what_it_blocks_not_what_is_pending() -> None:
    tree = Tree(Backlog())
    shards = [tree.put(f"run/step-{i % 100}/{i}.bin") for i in range(10_000)]
    marker = tree.put("run/step-7/.metadata", size=9)
    tree.backlog.take(NOW, lambda op: False)
    before = tree.backlog.examined
    stuck: Op = shards[7]
    stuck.mark, stuck.error = Mark.STUCK, "Permission denied"
    tree.backlog.update(stuck)
    assert tree.backlog.blocked_for_good(marker, NOW) == [stuck]
    assert tree.backlog.examined - before < 10
