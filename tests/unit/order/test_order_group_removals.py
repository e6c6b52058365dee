"""Checkpoints that are removed whole, and removals that are held (G4)."""

from __future__ import annotations

import pytest

from tests.unit.order.group_support import NOW, commit, in_group, removed, sent, why
from tests.unit.order.tree import Tree
from tierfs.model import EXCHANGED, Phase
from tierfs.order import Backlog, Reason


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def test_a_sealed_checkpoint_goes_in_one_piece_and_is_emptied_after(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-2")
    fields = {"group": group}
    first = tree.unlink("run/checkpoint-2/x.bin", **fields)
    deep = tree.unlink("run/checkpoint-2/sub/y.bin", **fields)
    inner = tree.rmdir("run/checkpoint-2/sub", **fields)
    marker = tree.unlink("run/checkpoint-2/trainer_state.json", **fields)
    assert tree.backlog.take(NOW) is None
    trash, rmdir = tree.trash("run/checkpoint-2"), tree.rmdir("run/checkpoint-2")
    assert tree.backlog.removals_in(tree.directory("run")) == {b"checkpoint-2"}
    assert [why(tree, op) for op in (first, marker)] == [(Reason.REBUILT, trash)] * 2
    assert sent(tree) == [trash, marker, first, deep, inner, rmdir]
    assert tree.backlog.removals_in(tree.directory("run")) == set()


def test_unlinks_in_a_sealed_checkpoint_are_collected_markers_too(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-2")
    shard = tree.unlink("run/checkpoint-2/x.bin", group=group)
    assert tree.backlog.take(NOW) is None
    for second in (15, 30, 45):
        assert tree.backlog.take(NOW + second) is None
        tree.unlink(f"run/checkpoint-2/{second}.bin", group=group)
    marker = tree.unlink("run/checkpoint-2/trainer_state.json", group=group)
    assert tree.backlog.take(NOW + 50) is None
    assert tree.backlog.take(NOW + 79) is None
    assert tree.backlog.take(NOW + 80) is marker
    assert tree.backlog.take(NOW + 80) is None
    tree.backlog.remove(marker)
    assert tree.backlog.take(NOW + 80) is shard


def test_what_one_unlinks_who_lives_is_no_edit_until_he_is_done(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-2")
    tree.backlog.is_under_way = lambda op: op is shard
    shard = tree.unlink("run/checkpoint-2/x.bin", group=group)
    for second in (0, 30, 31, 3600):
        assert tree.backlog.take(NOW + second) is None
    tree.backlog.is_under_way = lambda op: False
    assert tree.backlog.take(NOW + 3602) is shard


@pytest.mark.parametrize("late", [False, True])
def test_what_one_unlinks_who_lives_keeps_no_save_back(tree: Tree, late: bool) -> None:
    group = tree.directory("run/checkpoint-2")
    tree.backlog.is_under_way = lambda op: op.group is not None
    unlinked = [tree.unlink(f"run/checkpoint-2/{name}.bin", group=group) for name in "xyz"]
    assert tree.backlog.take(NOW) is None
    if late:
        assert tree.backlog.take(NOW + 3600) is None
    tree.directory("run/checkpoint-3")
    seal = tree.seal("run/checkpoint-3")
    assert tree.backlog.take(NOW + 29) is None
    now = NOW + (3602 if late else 30)
    gone = sent(tree, now)
    assert gone == unlinked[-1:]
    gone += sent(tree, now + 2)
    assert gone[-1] is seal
    assert sorted(op.number for op in gone[:-1]) == [op.number for op in unlinked]


def test_a_flush_waits_for_one_who_unlinks_only_until_he_is_quiet(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-2")
    tree.backlog.is_under_way = lambda op: op.group is not None
    shard = tree.unlink("run/checkpoint-2/x.bin", group=group)
    assert tree.backlog.take(NOW + 100) is None
    tree.backlog.release_holds(None, lambda op: op is shard)
    assert tree.backlog.take(NOW + 129) is None
    assert tree.backlog.take(NOW + 130) is shard


def test_a_flush_ends_the_collecting(tree: Tree) -> None:
    group = tree.directory("run/checkpoint-2")
    shard = tree.unlink("run/checkpoint-2/x.bin", group=group)
    assert tree.backlog.take(NOW) is None
    tree.backlog.release_holds(tree.directory("run"))
    assert sent(tree) == [shard]


def test_a_removal_waits_for_the_saves_before_it(tree: Tree) -> None:
    save = tree.put("run/checkpoint-4/x.bin")
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    assert why(tree, trash) == (Reason.EARLIER, save)
    commit(tree, save, trash, unlink, rmdir)


def test_an_unlink_that_is_under_way_when_the_checkpoint_goes(tree: Tree) -> None:
    """Taken, but not yet past the point of no return: it is made in the trash."""
    group = tree.directory("run/checkpoint-2")
    taken = tree.unlink("run/checkpoint-2/x.bin", group=group)
    published = tree.unlink("run/checkpoint-2/y.bin", group=group)
    tree.backlog.release_holds()
    assert [tree.backlog.take(NOW), tree.backlog.take(NOW)] == [taken, published]
    published.phase = Phase.PUBLISHING
    tree.backlog.update(published)
    trash = tree.trash("run/checkpoint-2")
    assert why(tree, taken) == (Reason.REBUILT, trash)
    assert why(tree, published) is None


def test_a_held_removal_is_out_of_the_order(tree: Tree) -> None:
    other = tree.put("run/x.bin")
    unlink, trash, rmdir = parts = removed(tree, "run/checkpoint-2", "x.bin")
    commit(tree, other)
    assert tree.backlog.take(NOW) is trash
    assert tree.backlog.hold_removal(trash, "no other checkpoint in 'run' is sealed")
    tree.backlog.done_with(trash)
    assert [why(tree, op) for op in parts] == [(Reason.REMOVAL, None)] * 3
    assert [tree.backlog.is_held(op) for op in (*parts,)] == [True] * 3
    assert [tree.backlog.blocked_for_good(op, NOW) for op in parts] == [[op] for op in parts]
    assert tree.backlog.held() == [(trash, "no other checkpoint in 'run' is sealed")]
    assert tree.backlog.explain(rmdir, NOW) == (
        "'run/checkpoint-2' is held: no other checkpoint in 'run' is sealed"
    )
    assert tree.backlog.removals_in(tree.directory("run")) == {b"checkpoint-2"}
    new = [tree.put("run/.metadata", size=9), tree.symlink("run/newest", "run/checkpoint-4")]
    assert sent(tree) == new
    tree.backlog.release_removal(trash)
    assert tree.backlog.held() == []
    assert sent(tree) == [trash, unlink, rmdir]


def test_a_held_removal_lets_its_successor_be_sealed(tree: Tree) -> None:
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    made = tree.group("run/checkpoint-2")
    shard = in_group(tree, "run/checkpoint-2/x.bin")
    pointer = tree.put("run/latest", size=9, targets=(made.object,))
    assert tree.backlog.held()
    commit(tree, made, shard)
    seal = tree.seal("run/checkpoint-2")
    commit(tree, seal)
    tree.backlog.group_sealed(made.object)
    tree.backlog.release_removal(trash)
    assert sent(tree) == [trash, unlink, rmdir, pointer]


def test_a_seal_does_not_wait_for_the_removal_of_what_it_replaces(tree: Tree) -> None:
    save = tree.put("run/y.bin")
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    made = tree.group("run/checkpoint-2")
    commit(tree, made)
    seal = tree.seal("run/checkpoint-2")
    assert why(tree, seal) == (Reason.EARLIER, save)
    commit(tree, save)
    assert why(tree, seal) is None
    other = tree.seal("run/checkpoint-9")
    assert why(tree, other)[0] is Reason.EARLIER
    commit(tree, seal, trash, unlink, rmdir, other)


def test_a_seal_and_the_removal_of_what_it_replaces_exclude_each_other(tree: Tree) -> None:
    _, trash, _ = removed(tree, "run/checkpoint-2", "x.bin")
    seal = tree.seal("run/checkpoint-2")
    assert [tree.backlog.take(NOW), tree.backlog.take(NOW)] == [trash, seal]
    for first, second in ((trash, seal), (seal, trash)):
        first.phase = Phase.PUBLISHING
        tree.backlog.update(first)
        assert why(tree, second) == (Reason.SAME_NAME, first)
        tree.backlog.done_with(second)
        assert tree.backlog.take(NOW) is None
        first.phase = Phase.QUEUED
        tree.backlog.done_with(first)
        assert {tree.backlog.take(NOW), tree.backlog.take(NOW)} == {first, second}


@pytest.mark.parametrize("directory", ["run", "a"])
def test_the_removal_of_a_directory_above_ends_the_hold(tree: Tree, directory: str) -> None:
    unlink, trash, rmdir = removed(tree, "a/run/checkpoint-2", "x.bin")
    assert tree.backlog.hold_removal(trash, "why")
    elsewhere = tree.rmdir("a/other")
    assert tree.backlog.held()
    above = tree.rmdir("a/run" if directory == "run" else "a")
    assert tree.backlog.held() == []
    assert not tree.backlog.hold_removal(trash, "why")
    assert sent(tree) == [trash, unlink, rmdir, elsewhere, above]


def test_no_hold_begins_when_something_needs_the_name_already(tree: Tree) -> None:
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    rename = tree.rename("run/x.orbax-checkpoint-tmp", "run/checkpoint-2")
    assert not tree.backlog.hold_removal(trash, "why")
    assert sent(tree) == [trash, unlink, rmdir, rename]


def test_a_directory_above_is_known_whatever_it_is_called_now(tree: Tree) -> None:
    _, trash, _ = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    tree.rename("run", "old", object=tree.directory("run"))
    assert tree.backlog.held()
    tree.rmdir("old", object=tree.directory("run"))
    assert tree.backlog.held() == []


@pytest.mark.parametrize("held_first", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_name_that_leads_there_no_more_may_be_given_again(
    tree: Tree, held_first: bool, committed: bool
) -> None:
    """mv run old; mkdir run"""
    _, trash, _ = removed(tree, "run/checkpoint-2", "x.bin")
    if held_first:
        tree.backlog.hold_removal(trash, "why")
    rename = tree.rename("run", "old", object=tree.forget("run"))
    if committed:
        tree.backlog.remove(rename)
    tree.mkdir("run")
    assert held_first or tree.backlog.hold_removal(trash, "why")
    assert tree.backlog.held()


@pytest.mark.parametrize("held_first", [True, False])
def test_a_name_that_leads_there_since_a_rename_is_needed(tree: Tree, held_first: bool) -> None:
    """mkdir old; rmdir old; mv run old; mv runs archive; mv other archive"""
    _, trash, _ = removed(tree, "runs/run/checkpoint-2", "x.bin")
    if held_first:
        tree.backlog.hold_removal(trash, "why")
    before = tree.mkdir("old")
    tree.rmdir("old", object=before.object)
    runs = tree.forget("runs")
    moved = tree.rename("runs", "old", object=runs)
    tree.directories[b"old"] = runs
    assert held_first or tree.backlog.hold_removal(trash, "why")
    assert tree.backlog.held()
    tree.backlog.release_removal(trash)
    assert tree.backlog.hold_removal(trash, "why")
    tree.rename("other", "old", object=tree.directory("other"))
    assert moved in tree.backlog
    assert not tree.backlog.held()
    assert not tree.backlog.hold_removal(trash, "why")


def test_a_directory_that_the_way_leads_through_now_ends_the_hold(tree: Tree) -> None:
    _, trash, _ = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    archive = tree.directory("archive")
    tree.rename("run", "archive/run", object=tree.directory("run"))
    tree.forget("archive")
    tree.rename("archive", "old", object=archive)
    tree.mkdir("archive")
    tree.mkdir("run2")
    assert tree.backlog.held()
    tree.rmdir("old", object=archive)
    assert not tree.backlog.held()


def test_directories_that_are_exchanged_lead_the_other_way(tree: Tree) -> None:
    _, trash, _ = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    fields = (f"{EXCHANGED}{tree.directory('run'):x}",)
    tree.rename("old", "run", object=tree.directory("old"), fields=fields)
    assert tree.backlog.held()
    tree.rename("x", "old", object=tree.object("x"))
    assert not tree.backlog.held()


def test_what_needs_the_name_ends_the_hold(tree: Tree) -> None:
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    rename = tree.rename("run/x.orbax-checkpoint-tmp", "run/checkpoint-2")
    assert tree.backlog.held() == []
    assert sent(tree) == [trash, unlink, rmdir, rename]


def test_a_hard_link_elsewhere_does_not_wait_for_a_held_removal(tree: Tree) -> None:
    inode = tree.object("inode")
    group = tree.directory("run/checkpoint-2")
    tree.unlink("run/checkpoint-2/x.bin", object=inode, group=group)
    trash = tree.trash("run/checkpoint-2")
    tree.backlog.hold_removal(trash, "why")
    other = tree.unlink("kept/x.bin", object=inode)
    assert sent(tree) == [other]


def test_a_part_of_a_held_removal_can_be_dropped(tree: Tree) -> None:
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    tree.backlog.remove(unlink)
    tree.backlog.release_removal(trash)
    assert sent(tree) == [trash, rmdir]


def test_a_dropped_trash_lets_the_rest_go(tree: Tree) -> None:
    unlink, trash, rmdir = removed(tree, "run/checkpoint-2", "x.bin")
    tree.backlog.hold_removal(trash, "why")
    tree.backlog.remove(trash)
    assert tree.backlog.held() == []
    assert sent(tree) == [unlink, rmdir]


def test_a_removal_behind_a_held_pointer_can_be_seen(tree: Tree) -> None:
    """What `latest` led to before may go although the new one is not there yet."""
    group = tree.group("run/checkpoint-4")
    commit(tree, group)
    early = tree.trash("run/checkpoint-1")
    pointer = tree.put("run/latest", size=9, targets=(group.object,))
    trash = tree.trash("run/checkpoint-2")
    assert tree.backlog.held_pointer_before(trash) is pointer
    assert tree.backlog.held_pointer_before(early) is None
    tree.seal("run/checkpoint-4")
    assert tree.backlog.held_pointer_before(trash) is None


def test_only_a_trash_is_held(tree: Tree) -> None:
    with pytest.raises(ValueError, match="no removal of a checkpoint"):
        tree.backlog.hold_removal(tree.rmdir("run/x"), "why")


def test_after_a_restart_the_removals_are_behind_the_trash_again(tree: Tree) -> None:
    parts = removed(tree, "run/checkpoint-2", "x.bin", "trainer_state.json")
    again = Tree(Backlog())
    for op in parts:
        again.backlog.add(op)
    unlink, marker, trash, rmdir = parts
    assert sent(again) == [trash, marker, unlink, rmdir]
