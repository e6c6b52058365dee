"""Checkpoints that are published and removed whole: seals, new generations, pointers, removals."""

from __future__ import annotations

import pytest

from tests.unit.order.tree import Tree
from tierfs.model import STAGED, Mark, Op, Phase, Reopen
from tierfs.order import Backlog, Reason

NOW = 1000.0


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


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


# Staging and seals


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


# Pointers


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


# New generations


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


# Removals


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
