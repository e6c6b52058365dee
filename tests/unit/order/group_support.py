"""What the tests of checkpoints in the order share."""

from __future__ import annotations

from tests.unit.order.tree import Tree
from tierfs.model import Op, Phase
from tierfs.order import Reason

NOW = 1000.0


def why(tree: Tree, op: Op, now: float = NOW) -> tuple[Reason, Op | None] | None:
    blocked = tree.backlog.may_publish(op, now)
    return None if blocked is None else (blocked.reason, blocked.by)


def commit(tree: Tree, *ops: Op) -> None:
    for op in ops:
        assert why(tree, op) is None, tree.backlog.explain(op, NOW)
        tree.backlog.remove(op)


def sent(tree: Tree, now: float = NOW) -> list[Op]:
    """What goes at `now`, one after the other."""
    ops = []
    while (op := tree.backlog.take(now)) is not None:
        if op.phase is Phase.QUEUED and op.kind == "put":
            op.phase = Phase.STAGED
            tree.backlog.done_with(op)
            continue
        assert tree.backlog.may_publish(op, now) is None
        tree.backlog.remove(op)
        ops.append(op)
    return ops


def in_group(tree: Tree, path: str, **fields: object) -> Op:
    return tree.put(path, unsealed=True, **fields)


def removed(tree: Tree, path: str, *names: str) -> list[Op]:
    """rmtree of a sealed checkpoint: what is in it, then itself."""
    group = tree.directory(path)
    ops = [tree.unlink(f"{path}/{name}", group=group) for name in names]
    ops += [tree.trash(path), tree.rmdir(path)]
    tree.forget(path)
    return ops
