"""Pointers to checkpoints: held until what they lead to is sealed."""

from __future__ import annotations

import pytest

from tests.unit.order.group_support import NOW, commit, in_group, sent, why
from tests.unit.order.tree import Tree
from tierfs.model import STAGED, Mark, Phase
from tierfs.order import Backlog, Reason


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def test_a_pointer_to_an_unsealed_checkpoint_is_held_and_holds_nobody(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    removal, beside = tree.unlink("run/old.bin"), tree.symlink("run/other", "elsewhere")
    assert why(tree, pointer) == (Reason.UNSEALED, None)
    assert tree.backlog.explain(pointer, NOW) == (
        "'run/latest' is held: 'checkpoint-4' is not sealed yet"
    )
    assert tree.backlog.may_publish(pointer, NOW).held
    assert tree.backlog.blocked_for_good(pointer, NOW) == [pointer]
    assert sent(tree) == [removal, beside]
    assert not tree.backlog.is_held(pointer)


def test_a_seal_goes_before_the_pointer_that_asked_for_it(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    older = tree.put("run/older.bin")
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    newer, removal = tree.put("run/newer.bin"), tree.unlink("run/old.bin")
    seal = tree.seal("run/checkpoint-4")
    assert why(tree, seal) == (Reason.EARLIER, older)
    commit(tree, older)
    assert why(tree, pointer) == (Reason.EARLIER, seal)
    assert tree.backlog.blocked_for_good(pointer, NOW) == []
    assert why(tree, removal) == (Reason.EARLIER, seal)
    commit(tree, seal)
    tree.backlog.group_sealed(group.object)
    commit(tree, pointer, newer, removal)


def test_a_pointer_in_another_tree_waits_for_the_seal_too(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    link = tree.symlink("links/best", "run/checkpoint-4")
    commit(tree, group)
    assert why(tree, link) == (Reason.UNSEALED, None)
    seal = tree.seal("run/checkpoint-4")
    assert why(tree, link) == (Reason.EARLIER, seal)
    tree.backlog.remove(seal)
    assert why(tree, link) == (Reason.UNSEALED, None)
    tree.backlog.group_sealed(group.object)
    commit(tree, link)


def test_a_dropped_seal_leaves_its_pointer_held(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    seal = tree.seal("run/checkpoint-4")
    assert not tree.backlog.depended(seal)
    tree.backlog.remove(seal)
    assert why(tree, pointer) == (Reason.UNSEALED, None)
    assert sent(tree) == []


def test_a_seal_that_is_being_published_is_not_dropped(tree: Tree) -> None:
    seal = tree.seal("run/checkpoint-4")
    tree.put("run/latest", size=9, targets=(seal.object,))
    seal.phase = Phase.PUBLISHING
    tree.backlog.update(seal)
    assert tree.backlog.depended(seal)


def test_a_seal_that_cannot_go_before_a_pointer_leaves_it_held(tree: Tree) -> None:
    """The checkpoint was renamed after the pointer: rename, seal and pointer would be a circle."""
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    rename = tree.rename(
        "run/checkpoint-4", "run/checkpoint-5", fields=(STAGED,), object=group.object
    )
    seal = tree.seal("run/checkpoint-5", object=group.object)
    assert why(tree, seal) == (Reason.SAME_NAME, rename)
    assert why(tree, pointer) == (Reason.UNSEALED, None)
    commit(tree, rename)
    assert why(tree, pointer) == (Reason.EARLIER, seal)
    commit(tree, seal)


def test_of_two_pointers_the_seal_goes_before_the_older(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    first = tree.symlink("links/best", "run/checkpoint-4")
    second = tree.put("run/latest", size=9, targets=(group.object,))
    between = tree.put("run/x.bin")
    seal = tree.seal("run/checkpoint-4")
    assert [why(tree, op) for op in (first, second)] == [(Reason.EARLIER, seal)] * 2
    tree.backlog.remove(first)
    tree.backlog.remove(second)
    assert why(tree, seal) == (Reason.EARLIER, between)


def test_a_newer_version_takes_the_place_of_a_held_pointer(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    tree.unlink("run/old.bin")
    newer = tree.put("run/latest", size=9, overwrites=True)
    assert why(tree, newer) == (Reason.SAME_NAME, pointer)
    assert not tree.backlog.depended(pointer, besides=newer)
    assert tree.backlog.blocked_for_good(newer, NOW) == [pointer]


def test_a_pointer_to_a_checkpoint_with_a_stuck_file_is_held_by_that(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    shard = in_group(tree, "run/checkpoint-4/x.bin", mark=Mark.STUCK)
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    assert why(tree, pointer) == (Reason.HELD, shard)


def test_a_pointer_with_a_seal_can_be_staged_before_and_after(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    assert tree.backlog.take(NOW) is pointer
    pointer.phase = Phase.STAGED
    tree.backlog.done_with(pointer)
    assert tree.backlog.take(NOW) is None
    seal = tree.seal("run/checkpoint-4")
    assert sent(tree) == [seal]
    tree.backlog.group_sealed(group.object)
    assert sent(tree) == [pointer]


def test_a_held_pointer_that_is_replaced_is_to_be_dropped(tree: Tree) -> None:
    """Its seal was there when it was replaced, so that it could not be dropped then."""
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer, other = (
        tree.symlink("run/newest", "run/checkpoint-4"),
        tree.symlink("run/other", "run/checkpoint-4"),
    )
    seal = tree.seal("run/checkpoint-4")
    gone = tree.unlink("run/newest")
    assert tree.backlog.obsolete_pointers() == []
    tree.backlog.remove(seal)
    assert tree.backlog.held_pointers() == [pointer, other]
    assert tree.backlog.obsolete_pointers() == [pointer]
    tree.backlog.remove(pointer)
    assert sent(tree) == [gone]


def test_a_rename_of_a_held_pointer_is_held_with_it(tree: Tree) -> None:
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    pointer = tree.symlink("run/newest", "run/checkpoint-4")
    rename = tree.rename("run/newest", "run/last", object=pointer.object)
    later = tree.unlink("run/old.bin")
    assert why(tree, rename) == (Reason.SAME_NAME, pointer)
    assert sent(tree) == [later]
    assert tree.backlog.obsolete_pointers() == []
    seal = tree.seal("run/checkpoint-4")
    assert sent(tree) == [seal]
    tree.backlog.group_sealed(group.object)
    assert sent(tree) == [pointer, rename]


def test_a_pointer_in_an_unsealed_checkpoint_is_as_plain_as_the_rest(tree: Tree) -> None:
    """Issued while that was sealed: it must be committed before it is sealed again."""
    inside = tree.symlink("run/checkpoint-4/self", "run/checkpoint-4")
    tree.backlog.group_unsealed(tree.directory("run/checkpoint-4"), b"checkpoint-4")
    assert why(tree, inside) is None
    tree.backlog.group_sealed(tree.directory("run/checkpoint-4"))
    assert sent(tree) == [inside]
