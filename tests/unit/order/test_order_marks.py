"""Marked ops are out of the order; what they hold up, and what they do not (R3 *stuck*, G4)."""

from __future__ import annotations

import pytest

from tests.unit.order.tree import Tree
from tierfs.model import Mark, Op, Phase
from tierfs.order import Backlog, Reason

NOW = 1000.0
EVERY_MARK = list(Mark)


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def mark(tree: Tree, op: Op, kind: Mark | None = Mark.STUCK) -> None:
    op.mark = kind
    tree.backlog.update(op)


def why(tree: Tree, op: Op) -> Reason | None:
    blocked = tree.backlog.may_publish(op, NOW)
    return None if blocked is None else blocked.reason


@pytest.mark.parametrize("kind", EVERY_MARK)
def test_one_stuck_file_holds_up_nobody_else(tree: Tree, kind: Mark) -> None:
    stuck = tree.put("run/step-4/x.bin")
    others = [
        tree.put("run/step-4/y.bin"),
        tree.put("run/step-6/.metadata", size=9),
        tree.put("run/latest", size=6, targets=(tree.directory("run/step-6"),)),
        tree.symlink("run/newest", "run/step-6"),
        tree.put("run/step-6/z.bin", overwrites=True),
    ]
    mark(tree, stuck, kind)
    assert why(tree, stuck) is Reason.MARKED
    for op in others:
        assert why(tree, op) is None
        assert tree.backlog.blocked_for_good(op, NOW) == []
        tree.backlog.remove(op)


@pytest.mark.parametrize("kind", EVERY_MARK)
def test_commit_names_and_pointers_to_its_directory_are_withdrawn(tree: Tree, kind: Mark) -> None:
    stuck = tree.put("run/step-4/deep/x.bin")
    marker = tree.put("run/step-4/.metadata", size=9)
    pointer = tree.symlink("newest", "run/step-4")
    mark(tree, stuck, kind)
    later = tree.put("run/step-4/meta.pt", size=9)
    assert [why(tree, op) for op in (marker, later)] == [Reason.WITHDRAWN] * 2
    assert why(tree, pointer) is Reason.HELD
    for op in (marker, later, pointer):
        assert tree.backlog.may_publish(op, NOW).held
        assert tree.backlog.blocked_for_good(op, NOW) == [stuck]
    mark(tree, stuck, None)
    assert why(tree, marker) is Reason.EARLIER
    tree.backlog.remove(stuck)
    assert why(tree, marker) is None


def test_what_waits_for_a_withdrawn_op_only_by_its_cover_goes_on(tree: Tree) -> None:
    stuck = tree.put("run/step-4/x.bin")
    marker = tree.put("run/step-4/.metadata", size=9)
    other = tree.symlink("run/newest", "run/step-2")
    assert why(tree, other) is Reason.EARLIER
    mark(tree, stuck)
    assert why(tree, marker) is Reason.WITHDRAWN
    assert why(tree, other) is None


@pytest.mark.parametrize("kind", [Mark.STUCK, Mark.SUSPECT])
def test_removals_are_held_by_earlier_saves_that_are_missing(tree: Tree, kind: Mark) -> None:
    stuck = tree.put("run/step-4/x.bin")
    removal = tree.unlink("run/step-2/x.bin")
    rmdir = tree.rmdir("run/step-2")
    replacing = tree.rename("run/y", "run/z", overwrites=True)
    mark(tree, stuck, kind)
    assert tree.backlog.take(NOW) is None
    tree.backlog.release_holds()
    assert [why(tree, op) for op in (removal, replacing)] == [Reason.HELD] * 2
    assert tree.backlog.blocked_for_good(rmdir, NOW) == [stuck]
    assert tree.backlog.take(NOW) is None
    later = tree.put("run/step-6/.metadata", size=9)
    assert why(tree, later) is None


def test_a_held_removal_is_not_waited_for(tree: Tree) -> None:
    stuck = tree.put("run/step-4/x.bin")
    removal = tree.unlink("run/step-2/x.bin")
    pointer = tree.put("run/latest", size=6, targets=(tree.directory("run/step-6"),))
    tree.backlog.release_holds()
    mark(tree, stuck)
    assert why(tree, removal) is Reason.HELD
    assert why(tree, pointer) is None
    mark(tree, stuck, None)
    assert why(tree, pointer) is Reason.EARLIER


def test_a_withdrawn_marker_is_a_save_that_removals_wait_for(tree: Tree) -> None:
    marker = tree.put("run/step-4/.metadata", size=9)
    removal = tree.unlink("run/step-2/x.bin")
    mark(tree, tree.put("run/step-4/late.bin"))
    tree.backlog.take(NOW, lambda op: False)
    tree.backlog.release_holds()
    blocked = tree.backlog.may_publish(removal, NOW)
    assert (blocked.reason, blocked.by) == (Reason.HELD, marker)


def test_removals_do_not_wait_for_torn_files(tree: Tree) -> None:
    torn = tree.put("run/step-4/x.bin")
    removal = tree.unlink("run/old.bin")
    mark(tree, torn, Mark.TORN)
    assert why(tree, removal) is None


def test_a_stuck_directory_holds_all_that_is_made_in_it(tree: Tree) -> None:
    made = tree.mkdir("run/a")
    inner = tree.mkdir("run/a/b")
    shard = tree.put("run/a/b/x.bin")
    mark(tree, made)
    assert why(tree, inner) is Reason.PARENT
    assert tree.backlog.may_publish(inner, NOW).held
    assert tree.backlog.blocked_for_good(shard, NOW) == [made]
    mark(tree, made, None)
    assert tree.backlog.take(NOW) is made


def test_ops_on_a_stuck_name_wait(tree: Tree) -> None:
    stuck = tree.put("run/x.bin")
    again = tree.put("run/x.bin", overwrites=True, object=tree.object("new"))
    mark(tree, stuck)
    blocked = tree.backlog.may_publish(again, NOW)
    assert (blocked.reason, blocked.by, blocked.held) == (Reason.SAME_NAME, stuck, True)
    assert not tree.backlog.depended(stuck, besides=again)
    tree.backlog.remove(stuck)
    assert why(tree, again) is None


def test_a_stuck_unlink_of_a_commit_name_holds_the_others(tree: Tree) -> None:
    shard = tree.unlink("run/step-2/x.bin")
    marker = tree.unlink("run/step-2/.metadata")
    pointer = tree.symlink("run/newest", "run/step-4")
    tree.backlog.take(NOW, lambda op: False)
    tree.backlog.release_holds()
    mark(tree, marker)
    assert why(tree, shard) is Reason.COMMIT_NAME
    assert tree.backlog.blocked_for_good(shard, NOW) == [marker]
    assert why(tree, pointer) is None


def test_a_stuck_log_breaks_nothing(tree: Tree) -> None:
    log = tree.put("run/step-4/train.log")
    marker = tree.put("run/step-4/.metadata", size=9)
    removal = tree.unlink("run/old.bin")
    mark(tree, log)
    assert why(tree, marker) is None
    tree.backlog.remove(marker)
    assert why(tree, removal) is None


def test_open_files_block_for_good_what_waits_for_their_close(tree: Tree) -> None:
    writing = tree.open("s/x.bin")
    marker = tree.put("s/.metadata", size=9)
    pointer = tree.symlink("newest", "s")
    free = tree.put("s/y.bin")
    blocked = tree.backlog.blocked_for_good
    assert [blocked(op, NOW) for op in (writing, marker, pointer)] == [[writing]] * 3
    assert blocked(free, NOW) == []
    tree.flush(writing)
    tree.release(writing)
    assert [blocked(op, NOW) for op in (writing, marker, pointer)] == [[]] * 3


def test_a_marked_op_is_not_given_out_even_when_it_was_ready(tree: Tree) -> None:
    shard = tree.put("s/x.bin", phase=Phase.STAGED)
    assert why(tree, shard) is None
    mark(tree, shard)
    assert tree.backlog.take(NOW) is None
    mark(tree, shard, None)
    assert tree.backlog.take(NOW) is shard
