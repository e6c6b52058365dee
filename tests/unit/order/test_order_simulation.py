"""Random histories: whatever happens, the promises hold and nothing waits in a circle."""

from __future__ import annotations

import pytest

from tests.unit.order.world import World
from tierfs.order.blocked import Reason
from tierfs.order.rules import Rules

ISSUE = ["create"] * 5 + ["rewrite"] * 2 + ["flush"] * 4 + ["release"] * 5 + ["mkdir"] * 3 + [
    "symlink", "unlink", "unlink", "rename", "rename", "rename", "rmtree", "link"]  # fmt: skip
SEND = ["take"] * 6 + ["complete"] * 6
NO_EDGES = (Reason.OPEN_FILE, Reason.WITHDRAWN)


def step(world: World, actions: list[str]) -> None:
    getattr(world, world.random.choice(actions))()
    world.now += world.random.choice([0.0, 0.01, 0.01, 1.5])


def check_waits(world: World) -> None:
    """Every wait leads down in rank, and is known from the other side too."""
    backlog = world.backlog
    rules: Rules = backlog._rules
    for op in world.pending.values():
        item = backlog._items[op.row]
        for latest in (False, True):
            wait = rules.wait(item, latest=latest)
            if wait is None:
                continue
            watched = wait.reason is Reason.HELD and not item.facts.guarded
            if wait.reason not in NO_EDGES and not watched:
                assert wait.item.facts.rank < item.facts.rank, (op, wait)
                if wait.reason is not Reason.SAME_NAME:
                    assert item in set(backlog._dependents.of(wait.item)), (op, wait)
            else:
                assert item in set(backlog._dependents.held_by(wait.item)), (op, wait)


def check_dead_ends(world: World) -> None:
    """After a drain only what waits for a mark or an open file is left."""
    for op in world.pending.values():
        roots = world.backlog.blocked_for_good(op, world.now)
        explanation = world.backlog.explain(op, world.now)
        assert roots, explanation
        assert all(
            root.mark is not None or root.state.value in ("open", "closed") for root in roots
        )


@pytest.mark.parametrize("seed", range(30))
def test_everything_arrives_in_order(seed: int) -> None:
    world = World(seed)
    for _ in range(200):
        step(world, ISSUE + SEND)
    check_waits(world)
    world.close_all()
    world.drain()
    assert not world.pending, [
        world.backlog.explain(op, world.now) for op in world.pending.values()
    ]
    assert world.shared == world.shown()
    assert world.published > 10


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_crashes_lose_nothing(seed: int) -> None:
    world = World(seed)
    for _ in range(5):
        for _ in range(30):
            step(world, ISSUE + SEND + ["mark"])
        world.crash()
    world.close_all()
    world.unmark_all()
    world.drain()
    assert not world.pending, [
        world.backlog.explain(op, world.now) for op in world.pending.values()
    ]
    assert world.shared == world.shown()


@pytest.mark.parametrize("seed", range(2000, 2040))
def test_marks_hold_up_only_what_they_must(seed: int) -> None:
    world = World(seed)
    for round_ in range(4):
        for _ in range(30):
            step(world, ISSUE + SEND + ["mark"])
        check_waits(world)
        if round_ % 2:
            world.close_all()
        world.drain()
        check_dead_ends(world)
    world.close_all()
    world.unmark_all()
    world.drain()
    assert not world.pending, [
        world.backlog.explain(op, world.now) for op in world.pending.values()
    ]
    assert world.shared == world.shown()
