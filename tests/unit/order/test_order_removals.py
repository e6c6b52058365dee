"""Removals: never before earlier saves, and the commit names of a directory first (G4, R2)."""

from __future__ import annotations

import pytest

from tests.unit.order.tree import Tree
from tierfs.model import Mark, Op, OpState, Phase
from tierfs.order import Backlog, Reason

NOW = 1000.0


@pytest.fixture
def tree() -> Tree:
    return Tree(Backlog())


def sent(tree: Tree, now: float = NOW) -> list[Op]:
    """What goes at `now`, one after the other."""
    ops = []
    while (op := tree.backlog.take(now)) is not None:
        if op.kind == "put" and op.phase is Phase.QUEUED:
            op.phase = Phase.STAGED
            tree.backlog.done_with(op)
            continue
        tree.backlog.remove(op)
        ops.append(op)
    return ops


def settle(tree: Tree) -> None:
    """Let the holds of what is pending end."""
    assert tree.backlog.take(NOW, lambda op: False) is None
    tree.backlog.release_holds()


def test_a_removal_waits_for_the_saves_before_it(tree: Tree) -> None:
    """Rotation: the old checkpoint goes when the new one beside it is there."""
    new = tree.put("run/checkpoint-4/model.safetensors")
    old = tree.unlink("run/checkpoint-2/model.safetensors")
    later = tree.put("run/checkpoint-6/model.safetensors")
    settle(tree)
    blocked = tree.backlog.may_publish(old, NOW)
    assert (blocked.reason, blocked.by) == (Reason.EARLIER, new)
    tree.backlog.remove(new)
    assert tree.backlog.may_publish(old, NOW) is None
    assert tree.backlog.may_publish(later, NOW) is None


def test_a_removal_that_makes_room_goes_before_the_saves(tree: Tree) -> None:
    """It waits as before for what has its name, and for what a person has to decide."""
    new = tree.put("run/new.bin")
    old, same = tree.unlink("run/old.bin"), tree.unlink("run/new.bin")
    settle(tree)
    assert tree.backlog.waiting_removals() == [old, same]
    for op in (old, same):
        tree.backlog.let_pass(op)
    assert tree.backlog.waiting_removals() == []
    assert tree.backlog.may_publish(old, NOW) is None
    assert tree.backlog.take(NOW, lambda op: op.kind == "unlink") is old
    blocked = tree.backlog.may_publish(same, NOW)
    assert (blocked.reason, blocked.by) == (Reason.SAME_NAME, new)
    new.mark = Mark.STUCK
    tree.backlog.update(new)
    tree.backlog.done_with(old)
    assert tree.backlog.may_publish(old, NOW).reason is Reason.HELD
    with pytest.raises(ValueError, match="no removal"):
        tree.backlog.let_pass(new)


def test_with_room_again_removals_are_behind_the_saves_again(tree: Tree) -> None:
    """Whatever else they waited for meanwhile, and whatever became of those beside them."""
    new = tree.put("run/new.bin")
    old, same, gone = (tree.unlink(f"run/{name}.bin") for name in ("old", "new", "gone"))
    settle(tree)
    for op in (old, same, gone):
        tree.backlog.let_pass(op)
    assert tree.backlog.take(NOW, lambda op: op is gone) is gone
    tree.backlog.remove(gone)
    tree.backlog.let_none_pass()
    assert tree.backlog.waiting_removals() == [old, same]
    for op in (old, same):
        blocked = tree.backlog.may_publish(op, NOW)
        assert blocked is not None
        assert blocked.by is new
    assert sent(tree) == [new, old, same]


def test_removals_do_not_wait_for_each_other(tree: Tree) -> None:
    ops = [tree.unlink(f"run/{i}.bin") for i in range(3)]
    assert [tree.backlog.take(NOW) for _ in ops] == ops


def test_a_directory_goes_after_its_content(tree: Tree) -> None:
    tree.unlink("run/a/x.bin")
    inner = tree.rmdir("run/a")
    outer = tree.rmdir("run")
    blocked = tree.backlog.may_publish(outer, NOW)
    assert blocked.reason is Reason.EARLIER
    assert sent(tree)[1:] == [inner, outer]


@pytest.mark.parametrize("position", range(4))
def test_the_commit_name_is_unlinked_first(tree: Tree, position: int) -> None:
    """rmtree in the order of the directory (FRAMEWORKS d 8)."""
    names = ["__0_0.distcp", "__1_0.distcp", "sub/x.bin"]
    names.insert(position, ".metadata")
    ops = {name: tree.unlink(f"run/step-4/{name}") for name in names}
    inner, outer = tree.rmdir("run/step-4/sub"), tree.rmdir("run/step-4")
    assert tree.backlog.take(NOW) is ops[".metadata"]
    assert tree.backlog.take(NOW) is None
    blocked = tree.backlog.may_publish(ops["sub/x.bin"], NOW + 60)
    assert (blocked.reason, blocked.by) == (Reason.COMMIT_NAME, ops[".metadata"])
    tree.backlog.remove(ops[".metadata"])
    rest = sent(tree, NOW + 60)
    assert rest == [*(ops[name] for name in names if name != ".metadata"), inner, outer]


def test_unlinks_in_a_checkpoint_are_held_until_no_more_come(tree: Tree) -> None:
    first = tree.unlink("run/step-4/a.bin")
    assert tree.backlog.take(NOW) is None
    assert tree.backlog.next_time(NOW) == NOW + 2
    second = tree.unlink("run/step-4/deep/b.bin")
    assert tree.backlog.take(NOW + 1.5) is None
    assert tree.backlog.take(NOW + 2.5) is None
    assert sent(tree, NOW + 3.5) == [first, second]


def test_unlinks_are_not_held_for_ever(tree: Tree) -> None:
    first = tree.unlink("run/2024/a.bin")
    for second in range(20):
        assert tree.backlog.take(NOW + second) is None
        tree.unlink(f"run/2024/{second}.bin")
    assert tree.backlog.take(NOW + 20) is first


def test_unlinks_elsewhere_are_not_held(tree: Tree) -> None:
    assert sent(tree) == []
    op = tree.unlink("run/a.bin")
    assert sent(tree) == [op]


def test_a_directory_with_a_committed_commit_name_counts_as_a_checkpoint(tree: Tree) -> None:
    tree.backlog.note_commit_names(tree.directory("run/final"))
    shard = tree.unlink("run/final/model-1.safetensors")
    assert tree.backlog.take(NOW) is None
    index = tree.unlink("run/final/model.safetensors.index.json")
    assert sent(tree) == [index]
    assert sent(tree, NOW + 2) == [shard]
    # Noted for that removal only.
    assert sent(tree, NOW + 2) == []
    other = tree.unlink("run/final/other")
    assert sent(tree, NOW + 2) == [other]


def test_a_flush_ends_the_hold(tree: Tree) -> None:
    here, there = tree.unlink("a/step-4/x.bin"), tree.unlink("b/step-4/x.bin")
    assert tree.backlog.take(NOW) is None
    tree.backlog.release_holds(tree.directory("a"))
    assert sent(tree) == [here]
    tree.backlog.release_holds()
    assert sent(tree) == [there]


def test_saves_between_come_before_the_commit_name_is_unlinked(tree: Tree) -> None:
    shard = tree.unlink("run/step-2/x.bin")
    save = tree.put("run/step-4/x.bin")
    pointer = tree.symlink("run/newest", "run/step-4")
    marker = tree.unlink("run/step-2/.metadata")
    settle(tree)
    assert sent(tree) == [save, pointer, marker, shard]


def test_what_is_needed_in_its_place_is_not_moved(tree: Tree) -> None:
    shard = tree.unlink("run/step-2/x.bin")
    again = tree.put("run/step-2/x.bin")
    inside = tree.unlink("run/step-2/sub/y.bin")
    replacing = tree.rename("run/step-2/new", "run/step-2/sub", overwrites=True)
    marker = tree.unlink("run/step-2/.metadata")
    settle(tree)
    # The new file first needs the old one gone; the rename needs an empty directory.
    order = sent(tree)
    assert order.index(shard) < order.index(again) < order.index(marker)
    assert order.index(inside) < order.index(replacing) < order.index(marker)


def test_a_taken_unlink_is_not_moved(tree: Tree) -> None:
    shard = tree.unlink("run/step-2/x.bin")
    settle(tree)
    assert tree.backlog.take(NOW) is shard
    tree.unlink("run/step-2/.metadata")
    assert tree.backlog.may_publish(shard, NOW) is None


def test_a_hard_linked_shard_is_moved_with_its_other_name(tree: Tree) -> None:
    shared = tree.object("inode")
    ops = [tree.unlink(f"run/step-2/{name}", object=shared) for name in ("a.bin", "b.bin")]
    marker = tree.unlink("run/step-2/.metadata")
    settle(tree)
    assert sent(tree) == [marker, *ops]


def saved_again(tree: Tree) -> tuple[Op, Op, Op]:
    """save_pretrained into the same folder: old shards go, new ones come, the index last."""
    tree.backlog.note_commit_names(tree.directory("m"))
    old = tree.unlink("m/model-2.safetensors")
    new = tree.put("m/model-1.safetensors", overwrites=True)
    index = tree.put("m/model.safetensors.index.json", size=99, overwrites=True)
    return old, new, index


def test_what_an_old_index_names_goes_when_the_new_one_is_there(tree: Tree) -> None:
    old, new, index = saved_again(tree)
    assert sent(tree) == [new, index, old]


def test_a_new_index_does_not_let_anything_wait(tree: Tree) -> None:
    """Nothing named what was removed before it: it comes after that, as after all else."""
    old = tree.unlink("m/model-2.safetensors")
    index = tree.put("m/model.safetensors.index.json", size=99)
    assert sent(tree) == [old, index]


def test_a_name_that_is_needed_again_is_removed_where_it_was(tree: Tree) -> None:
    old = tree.unlink("m/model-1.safetensors")
    again = tree.put("m/model-1.safetensors")
    index = tree.put("m/model.safetensors.index.json", size=99, overwrites=True)
    assert sent(tree) == [old, again, index]


def test_an_index_that_is_flushed_again_takes_them_along(tree: Tree) -> None:
    old, new, index = saved_again(tree)
    more = tree.unlink("m/model-3.safetensors")
    tree.backlog.renumber(index, next(tree.numbers))
    assert sent(tree) == [new, index, old, more]


def test_unlinks_beside_a_file_that_is_written_wait_for_a_new_index(tree: Tree) -> None:
    """The shards of a large model take their time, and the index comes after them."""
    tree.backlog.note_commit_names(tree.directory("m"))
    old = tree.unlink("m/model-2.safetensors")
    shard = tree.put("m/model-1.safetensors", state=OpState.OPEN)
    for now in (NOW, NOW + 10, NOW + 100, NOW + 599):
        assert tree.backlog.take(now) is None
    shard.state = OpState.PENDING
    tree.backlog.renumber(shard, next(tree.numbers))
    index = tree.put("m/model.safetensors.index.json", size=99, overwrites=True)
    assert sent(tree, NOW + 599.5) == [shard, index, old]
