"""Unsealed checkpoints, and the seals that publish them whole."""

from __future__ import annotations

import pytest

from tests.unit.order.group_support import commit, in_group, removed, why
from tests.unit.order.tree import Tree
from tierfs.model import STAGED
from tierfs.order import Backlog, Reason


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def test_what_is_in_an_unsealed_checkpoint_waits_for_its_directory_only(tree: Tree) -> None:
    made = tree.group("run/checkpoint-4")
    shard = in_group(tree, "run/checkpoint-4/x.bin")
    marker = in_group(tree, "run/checkpoint-4/trainer_state.json", size=9)
    small = in_group(tree, "run/checkpoint-4/config.json", size=9)
    assert why(tree, marker) == (Reason.PARENT, made)
    commit(tree, made, marker, small, shard)


def test_a_staged_directory_needs_its_staging_name_not_the_final_one(tree: Tree) -> None:
    _, trash, rmdir = removed(tree, "run/checkpoint-4", "x.bin")
    made = tree.group("run/checkpoint-4")
    tree.forget("run/checkpoint-4")
    again = tree.group("run/checkpoint-4")
    assert why(tree, made) is None
    assert why(tree, again) == (Reason.SAME_NAME, made)
    assert why(tree, rmdir) == (Reason.SAME_NAME, trash)


def test_the_removal_of_an_unsealed_checkpoint_waits_for_what_is_in_it(tree: Tree) -> None:
    elsewhere = tree.put("run/y.bin")
    inside = tree.unlink("run/checkpoint-4/x.bin", unsealed=True)
    rmdir = tree.rmdir("run/checkpoint-4", fields=(STAGED,))
    tree.forget("run/checkpoint-4")
    made = tree.group("run/checkpoint-4")
    assert why(tree, rmdir) == (Reason.EARLIER, inside)
    assert why(tree, made) == (Reason.SAME_NAME, rmdir)
    commit(tree, inside, rmdir, made, elsewhere)


def test_a_seal_waits_for_what_is_earlier_beside_it(tree: Tree) -> None:
    beside = tree.put("run/notes.bin")
    seal = tree.seal("run/checkpoint-4")
    later = tree.put("run/later.bin")
    assert why(tree, seal) == (Reason.EARLIER, beside)
    commit(tree, beside, seal, later)


def test_others_wait_for_the_files_of_an_unsealed_checkpoint_not_for_its_seal(tree: Tree) -> None:
    made, shard = tree.group("run/checkpoint-4"), in_group(tree, "run/checkpoint-4/x.bin")
    removal = tree.unlink("run/old.bin")
    commit(tree, made)
    assert why(tree, removal) == (Reason.EARLIER, shard)
    commit(tree, shard)
    seal = tree.seal("run/checkpoint-4")
    later = tree.unlink("run/older.bin")
    assert why(tree, removal) is None
    assert why(tree, later) == (Reason.EARLIER, seal)


def test_a_negative_name_beside_it_comes_before_the_seal(tree: Tree) -> None:
    negative = tree.put("run/step_5-unfinished", size=0)
    seal = tree.seal("run/step_5")
    assert why(tree, seal) == (Reason.NEGATIVE, negative)
    gone = tree.unlink("run/step_5-unfinished")
    commit(tree, negative)
    assert why(tree, seal) is None
    assert why(tree, gone) == (Reason.EARLIER, seal)
