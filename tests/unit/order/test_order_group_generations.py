"""Sealed checkpoints that are written again."""

from __future__ import annotations

import pytest

from tests.unit.order.group_support import NOW, commit, in_group, sent, why
from tests.unit.order.tree import Tree
from tierfs.model import Mark, Phase, Reopen
from tierfs.order import Backlog, Reason


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def test_a_pointer_from_before_the_new_generation_means_the_one_before(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-4")
    before = tree.symlink("run/newest", "run/checkpoint-4")
    reopen = tree.reopen("run/checkpoint-4")
    tree.backlog.group_unsealed(group, b"checkpoint-4", reopen.number)
    after = tree.symlink("run/again", "run/checkpoint-4")
    tree.backlog.group_unsealed(group, b"checkpoint-4")
    assert why(tree, after) == (Reason.UNSEALED, None)
    assert sent(tree) == [before, reopen]
    seal = tree.seal("run/checkpoint-4")
    assert why(tree, after) == (Reason.EARLIER, seal)


@pytest.mark.parametrize("how", list(Reopen))
def test_what_is_issued_inside_waits_for_the_new_generation(tree: Tree, how: Reopen) -> None:
    before = tree.put("run/checkpoint-4/added.bin")
    reopen = tree.reopen("run/checkpoint-4", how)
    shard = in_group(tree, "run/checkpoint-4/sub/x.bin")
    elsewhere = tree.put("run/checkpoint-6/x.bin")
    assert why(tree, shard) == (Reason.REBUILT, reopen)
    assert [why(tree, op) for op in (before, elsewhere)] == [None, None]
    assert tree.backlog.depended(reopen)
    assert tree.backlog.take(NOW) is before  # to be staged, as is the shard
    seal = tree.seal("run/checkpoint-4")
    assert why(tree, seal) == (Reason.SAME_NAME, reopen)
    assert why(tree, reopen) == (Reason.EARLIER, before)
    commit(tree, before, reopen, shard)


@pytest.mark.parametrize("how", [Reopen.LINKED, Reopen.GIVEN_UP])
def test_what_was_removed_in_what_is_given_up_goes_before_it(tree: Tree, how: Reopen) -> None:
    """It is no removal in what stands there then."""
    removal = tree.unlink("run/checkpoint-4/x.bin", unsealed=True)
    reopen = tree.reopen("run/checkpoint-4", how)
    if how is Reopen.GIVEN_UP:
        assert why(tree, reopen) == (Reason.EARLIER, removal)
    else:
        assert why(tree, removal) == (Reason.REBUILT, reopen)


def test_a_file_that_was_flushed_before_the_new_generation_does_not_go_round(tree: Tree) -> None:
    shard = tree.open("run/checkpoint-4/x.bin")
    tree.flush(shard)
    reopen = tree.reopen("run/checkpoint-4")
    link = tree.symlink("run/checkpoint-4/l")
    tree.flush(shard)
    tree.release(shard)
    assert why(tree, shard) == (Reason.REBUILT, reopen)
    commit(tree, reopen)
    assert sent(tree) == [link, shard]


def test_edits_of_a_sealed_checkpoint_are_made_in_the_new_generation(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-4")
    marker = tree.unlink("run/checkpoint-4/trainer_state.json", group=group)
    shard = tree.unlink("run/checkpoint-4/sub/x.bin", group=group)
    assert tree.backlog.take(NOW) is None
    reopen = tree.reopen("run/checkpoint-4", Reopen.WHOLE)
    assert why(tree, shard) == (Reason.REBUILT, reopen)
    assert sent(tree) == [reopen, marker, shard]


def test_ops_inside_wait_for_a_seal_in_the_middle_of_its_rename(tree: Tree) -> None:
    seal = tree.seal("run/checkpoint-4")
    late = tree.put("run/checkpoint-4/late.bin", phase=Phase.STAGED)
    assert why(tree, late) is None
    seal.phase = Phase.PUBLISHING
    tree.backlog.update(seal)
    assert why(tree, late) == (Reason.REBUILT, seal)
    assert tree.backlog.take(NOW) is seal
    assert tree.backlog.take(NOW) is None
    seal.phase = Phase.QUEUED
    tree.backlog.done_with(seal)
    assert why(tree, late) is None


def test_a_new_generation_is_made_of_what_was_saved_before_it(tree: Tree) -> None:
    """A file that is new in a sealed checkpoint goes to it as it is, then all is linked anew."""
    tree.directory("run/step_5")
    new = in_group(tree, "run/step_5/new")
    stuck = in_group(tree, "run/step_5/stuck", mark=Mark.STUCK)
    reopened = tree.reopen("run/step_5", Reopen.LINKED)
    again = in_group(tree, "run/step_5/again")
    assert why(tree, reopened) == (Reason.EARLIER, new)
    assert why(tree, again) == (Reason.REBUILT, reopened)
    commit(tree, new, reopened, again)
    assert stuck in tree.backlog
