"""Random histories: whatever happens, the promises hold and nothing waits in a circle."""

from __future__ import annotations

import pytest

from tests.unit.order.groups_world import GroupsWorld
from tests.unit.order.world import World
from tierfs.order.blocked import Reason
from tierfs.order.rules import Rules

ISSUE = ["create"] * 5 + ["rewrite"] * 2 + ["flush"] * 4 + ["release"] * 5 + ["mkdir"] * 3 + [
    "symlink", "unlink", "unlink", "rename", "rename", "rename", "rmtree", "link"]  # fmt: skip
GROUPS = ["group"] * 3 + ["seal"] * 4 + ["edit"] * 2 + ["publish_by_rename", "make_again",
          "symlink", "symlink", "release_one"]  # fmt: skip
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
        if backlog.is_held(op):
            continue
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
    """After a drain only what waits for a mark, an open file or a seal is left, or is held."""
    backlog = world.backlog
    for op in world.pending.values():
        roots = backlog.blocked_for_good(op, world.now)
        explanation = backlog.explain(op, world.now)
        assert roots, explanation
        for root in roots:
            held = backlog.is_held(root) or {*root.targets} & world.unsealed
            assert held or root.mark is not None or root.state.value in ("open", "closed")


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


@pytest.mark.parametrize("seed", range(3000, 3040))
def test_checkpoints_arrive_whole(seed: int) -> None:
    world = GroupsWorld(seed)
    for _ in range(4):
        for _ in range(60):
            step(world, ISSUE + SEND + GROUPS)
        check_waits(world)
        if seed % 2:
            world.drain()
            check_dead_ends(world)
        if seed % 3 == 0:
            world.crash()
    arrive(world)


@pytest.mark.parametrize("seed", range(4000, 4030))
def test_checkpoints_and_marks(seed: int) -> None:
    world = GroupsWorld(seed)
    for round_ in range(4):
        for _ in range(50):
            step(world, ISSUE + SEND + GROUPS + ["mark"])
        check_waits(world)
        if round_ % 2:
            world.drain()
            check_dead_ends(world)
    arrive(world)


def arrive(world: GroupsWorld) -> None:
    world.close_all()
    world.unmark_all()
    world.finish()
    assert not world.pending, [
        world.backlog.explain(op, world.now) for op in world.pending.values()
    ]
    assert world.shared == world.shown()


def test_the_histories_come_across_what_they_are_about() -> None:
    missing = {"dropped seal", "LINKED", "WHOLE", "UNLISTED", "held", "not held", "exchanged",
               "obsolete pointer", "begun before what is pending"}  # fmt: skip
    for seed in range(3000, 3100):
        world = GroupsWorld(seed)
        for _ in range(2):
            for _ in range(120):
                step(world, ISSUE + SEND + GROUPS)
            world.drain()
        missing -= world.seen
        if not missing:
            return
    assert not missing
