"""One scenario for each rule of the order, and for the one-node races that the order decides."""

from __future__ import annotations

import pytest

from tests.unit.order.tree import Tree
from tierfs.model import Op, OpKind, OpState, Phase
from tierfs.order import Backlog, Reason, Work

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


# Plain, small and ordered


def test_large_files_wait_for_nobody(tree: Tree) -> None:
    ops = [tree.put(f"run/shard-{i}.bin") for i in range(3)]
    assert [why(tree, op) for op in ops] == [None] * 3


def test_a_file_waits_for_its_directory_to_be_made(tree: Tree) -> None:
    outer, inner = tree.mkdir("run"), tree.mkdir("run/a")
    shard = tree.put("run/a/x.bin")
    assert why(tree, shard) == (Reason.PARENT, inner)
    assert why(tree, inner) == (Reason.PARENT, outer)
    commit(tree, outer, inner, shard)


def test_a_small_file_waits_for_larger_ones_of_its_directory_only(tree: Tree) -> None:
    large, _ = tree.put("run/large.bin"), tree.put("other/large.bin")
    small = tree.put("run/config.json", size=10)
    later = tree.put("run/later.bin")
    assert why(tree, small) == (Reason.LARGER, large)
    commit(tree, large, small, later)


@pytest.mark.parametrize(
    "marker", [".metadata", "metadata.json", "trainer_state.json", "model.safetensors.index.json"]
)
def test_a_commit_name_waits_for_all_below_its_directory(tree: Tree, marker: str) -> None:
    shards = [tree.put("s/x.bin"), tree.put("s/deep/er/y.bin")]
    beside = tree.put("other/z.bin")
    commit_name = tree.put(f"s/{marker}", size=9)
    later = tree.put("s/later.bin")
    assert why(tree, commit_name) == (Reason.EARLIER, shards[0])
    commit(tree, *shards, commit_name, later, beside)


def test_a_pointer_waits_for_what_it_leads_to_and_for_its_own_directory(tree: Tree) -> None:
    there, beside = tree.put("ckpts/step-4/x.bin"), tree.put("run/y.bin")
    link = tree.symlink("run/newest", "ckpts/step-4")
    latest = tree.put("links/latest", size=6, targets=(tree.directory("ckpts/step-4"),))
    assert why(tree, latest) == (Reason.EARLIER, there)
    commit(tree, there)
    assert why(tree, latest) is None
    assert why(tree, link) == (Reason.EARLIER, beside)


def test_renames_wait_at_both_ends(tree: Tree) -> None:
    first, second = tree.put("a/x.bin"), tree.put("b/y.bin")
    rename = tree.rename("a/d", "b/d")
    assert why(tree, rename) == (Reason.EARLIER, second)
    commit(tree, second)
    assert why(tree, rename) == (Reason.EARLIER, first)


def test_ordered_ops_whose_covers_do_not_meet_do_not_wait(tree: Tree) -> None:
    tree.put("a/x.bin")
    assert why(tree, tree.symlink("b/newest")) is None


def test_ops_of_one_name_or_file_keep_their_order_whatever_their_class(tree: Tree) -> None:
    first = tree.put("run/x.bin")
    second = tree.put("run/x.bin", object=tree.object("other"))
    change = tree.issue(OpKind.SETATTR, "run/elsewhere", object=tree.object("other"))
    link = tree.link("run/x.bin", "run/y.bin", object=tree.object("other"))
    assert why(tree, second) == (Reason.SAME_NAME, first)
    assert why(tree, change) == (Reason.SAME_NAME, second)
    assert why(tree, link) == (Reason.SAME_NAME, change)
    commit(tree, first, second, change, link)


def test_negative_files_come_before_what_they_speak_of(tree: Tree) -> None:
    here, beside = tree.put("a/.incomplete", size=0), tree.put("run/step_5-unfinished", size=0)
    waiting = [tree.put("a/x.bin"), tree.put("a/b/y.bin")]
    assert [why(tree, op) for op in waiting] == [(Reason.NEGATIVE, here)] * 2
    for path in ("run/step_5/x.bin", "run/step_5.ckpt"):
        assert why(tree, tree.put(path)) == (Reason.NEGATIVE, beside)
    assert why(tree, tree.put("run/step_6/x.bin")) is None
    gone = tree.unlink("run/step_5-unfinished")
    assert why(tree, gone) == (Reason.SAME_NAME, beside)


def test_the_removal_of_a_negative_file_waits_for_what_it_speaks_of(tree: Tree) -> None:
    shard = tree.put("run/step_5/x.bin")
    tree.backlog.release_holds()
    assert why(tree, tree.unlink("run/step_5-unfinished")) == (Reason.EARLIER, shard)


# Open, closed, flushed again


def test_open_files_are_neither_sent_nor_waited_for(tree: Tree) -> None:
    writing = tree.open("run/x.bin")
    assert why(tree, writing) == (Reason.OPEN, None)
    link = tree.symlink("run/newest")
    assert why(tree, link) is None
    assert tree.backlog.take(NOW) is link


def test_a_flushed_file_is_waited_for_but_not_sent_before_its_release(tree: Tree) -> None:
    shard = tree.open("run/x.bin")
    tree.flush(shard)
    link = tree.symlink("run/newest")
    assert why(tree, link) == (Reason.EARLIER, shard)
    assert tree.backlog.take(NOW) is None
    tree.release(shard)
    assert tree.backlog.take(NOW) is shard


def test_a_flush_without_a_release_was_no_close(tree: Tree) -> None:
    shard = tree.open("run/x.bin")
    tree.flush(shard)
    link = tree.symlink("run/newest")
    assert tree.backlog.take(NOW) is None
    assert tree.backlog.next_time(NOW) == NOW + 1.0
    assert tree.backlog.take(NOW + 1.0) is link
    tree.release(shard)
    assert why(tree, tree.symlink("run/newer")) == (Reason.EARLIER, shard)


def test_what_waited_for_a_first_flush_goes_on_waiting(tree: Tree) -> None:
    shard = tree.open("run/x.bin")
    tree.flush(shard)
    link = tree.symlink("run/newest")
    tree.flush(shard)
    assert (shard.first, shard.number) == (2, 4)
    assert why(tree, link) == (Reason.EARLIER, shard)


def test_a_file_keeps_its_number_while_its_name_is_needed_where_it_is(tree: Tree) -> None:
    shard = tree.open("run/x.bin")
    tree.flush(shard)
    link = tree.link("run/x.bin", "run/y.bin")
    tree.flush(shard)
    tree.release(shard)
    assert shard.number < link.number
    commit(tree, shard, link)


def test_a_commit_name_waits_for_open_files_of_its_directory_without_limit(tree: Tree) -> None:
    shard, beside = tree.open("s/deep/x.bin"), tree.open("other/x.bin")
    commit_name = tree.put("s/.metadata", size=9)
    late = tree.open("s/y.bin")
    assert tree.backlog.open_files(tree.directory("s")) == [shard, late]
    assert tree.backlog.open_files() == [shard, beside, late]
    assert why(tree, commit_name, NOW + 1e6) == (Reason.OPEN_FILE, shard)
    tree.backlog.remove(shard)
    assert why(tree, commit_name) == (Reason.OPEN_FILE, late)
    tree.flush(late)
    tree.release(late)
    commit(tree, commit_name)


def test_what_was_open_at_a_commit_name_is_committed_before_it(tree: Tree) -> None:
    """RELEASE overtaken: the marker was renamed into place before the shard was closed."""
    plain, overwriting = tree.open("s/x.bin"), tree.open("s/y.bin", overwrites=True)
    commit_name = tree.put("s/.metadata", size=9)
    pointer = tree.symlink("newest", "s")
    for shard in (plain, overwriting):
        tree.flush(shard)
        tree.release(shard)
    assert why(tree, commit_name) == (Reason.EARLIER, plain)
    assert why(tree, pointer) == (Reason.EARLIER, plain)
    commit(tree, plain)
    assert why(tree, commit_name) == (Reason.EARLIER, overwriting)
    commit(tree, overwriting, commit_name, pointer)


def test_logs_hold_nothing(tree: Tree) -> None:
    tree.open("s/events.out.tfevents.17")
    log = tree.open("s/train.log")
    tree.flush(log)
    tree.backlog.take(NOW)
    commit_name = tree.put("s/.metadata", size=9)
    assert why(tree, commit_name) is None


def test_a_snapshot_of_an_open_marker_does_not_wait_for_itself(tree: Tree) -> None:
    snapshot = tree.put("s/.metadata", size=9)
    still_open = tree.open("s/.metadata")
    assert why(tree, snapshot) is None
    assert tree.backlog.blocked_for_good(snapshot, NOW) == []
    shard = tree.open("s/shard.bin")
    assert why(tree, snapshot) == (Reason.OPEN_FILE, shard)
    assert tree.backlog.blocked_for_good(snapshot, NOW) == [shard]
    assert still_open in tree.backlog


# Names that change


def test_a_rename_keeps_the_place_of_the_first_flush(tree: Tree) -> None:
    """safetensors and torch.save: written under a temporary name, then renamed."""
    shard = tree.put("s/model.tmp")
    commit_name = tree.put("s/.metadata", size=9)
    tree.retarget(shard, "s/model.safetensors")
    assert why(tree, commit_name) == (Reason.EARLIER, shard)
    assert tree.backlog.of_name(tree.directory("s"), b"model.safetensors") is shard
    assert tree.backlog.of_name(tree.directory("s"), b"model.tmp") is None
    commit(tree, shard, commit_name)


def test_a_marker_renamed_into_place_is_one_from_then_on(tree: Tree) -> None:
    marker = tree.put("s/.metadata.tmp", size=9)
    shard = tree.put("s/x.bin")
    tree.retarget(marker, "s/.metadata")
    assert why(tree, marker) == (Reason.EARLIER, shard)


def test_no_circle_when_a_file_moves_behind_what_waits_for_it(tree: Tree) -> None:
    shard = tree.put("p/a.bin")
    gone = tree.rmdir("p/d")
    again = tree.mkdir("p/d", object=tree.directory("p/new"))
    tree.directories[b"p/d"] = tree.directory("p/new")
    tree.retarget(shard, "p/d/a.bin")
    commit(tree, gone, again, shard)


def test_a_directory_is_not_retargeted(tree: Tree) -> None:
    made = tree.mkdir("run/a")
    with pytest.raises(ValueError, match="op of its own"):
        tree.retarget(made, "run/b")


def test_temporary_names_wait_for_their_rename(tree: Tree) -> None:
    shard = tree.put("s/x.bin.tmp")
    assert tree.backlog.take(NOW) is None
    assert tree.backlog.next_time(NOW) == NOW + 30.0
    tree.retarget(shard, "s/x.bin")
    assert tree.backlog.take(NOW) is shard


def test_temporary_names_go_when_old_or_flushed_or_needed(tree: Tree) -> None:
    old, flushed = tree.put("s/a.tmp"), tree.put("f/b.tmp")
    needed = tree.put("z/k.77.partial")
    assert tree.backlog.take(NOW) is None
    tree.link("z/k.77.partial", "z/k")
    assert tree.backlog.take(NOW) is needed
    tree.backlog.release_holds(tree.directory("f"))
    assert tree.backlog.take(NOW) is flushed
    assert tree.backlog.take(NOW + 29.9) is None
    assert tree.backlog.take(NOW + 30.0) is old


# Taking


def test_take_gives_the_oldest_and_each_once(tree: Tree) -> None:
    shards = [tree.put(f"s/{i}.bin") for i in range(3)]
    assert [tree.backlog.take(NOW) for _ in range(4)] == [*shards, None]


def test_staging_needs_no_turn_publishing_does(tree: Tree) -> None:
    shard, marker = tree.put("s/x.bin"), tree.put("s/.metadata", size=9)
    assert [tree.backlog.take(NOW), tree.backlog.take(NOW)] == [shard, marker]
    for op in (marker, shard):
        op.phase = Phase.STAGED
        tree.backlog.done_with(op)
    assert tree.backlog.take(NOW) is shard
    assert tree.backlog.take(NOW) is None
    tree.backlog.remove(shard)
    assert tree.backlog.take(NOW) is marker


def test_take_by_want_and_by_work(tree: Tree) -> None:
    large, small, link = tree.put("a/x.bin"), tree.put("b/y", size=1), tree.symlink("c/newest")
    assert tree.backlog.take(NOW, lambda op: op is link) is link
    assert tree.backlog.take(NOW, work=[Work.STAGE_SMALL, Work.PUBLISH]) is small
    assert tree.backlog.take(NOW, work=[Work.PUBLISH]) is None
    assert tree.backlog.take(NOW) is large


def test_an_op_in_back_off_holds_its_place(tree: Tree) -> None:
    shard = tree.put("s/x.bin", phase=Phase.STAGED)
    marker = tree.put("s/.metadata", size=9, phase=Phase.STAGED)
    assert tree.backlog.take(NOW) is shard
    tree.backlog.back_off(shard, NOW + 5)
    tree.backlog.done_with(shard)
    assert tree.backlog.take(NOW) is None
    assert tree.backlog.next_time(NOW) == NOW + 5
    assert why(tree, marker) == (Reason.EARLIER, shard)
    assert tree.backlog.take(NOW + 5) is shard


def test_what_became_blocked_is_not_given_out(tree: Tree) -> None:
    marker = tree.put("s/.metadata", size=9, phase=Phase.STAGED)
    assert why(tree, marker) is None
    tree.open("s/late.bin")
    assert tree.backlog.take(NOW) is None


# What others need to know


def test_depended(tree: Tree) -> None:
    shard, other = tree.put("s/x.bin"), tree.put("other/x.bin")
    link = tree.link("s/x.bin", "links/x")
    assert tree.backlog.depended(shard)
    assert not tree.backlog.depended(shard, besides=link)
    assert not tree.backlog.depended(other)
    tree.symlink("other/newest")
    assert tree.backlog.depended(other)
    made = tree.mkdir("new")
    assert not tree.backlog.depended(made)
    tree.put("new/x", size=1)
    assert tree.backlog.depended(made)
    large = tree.put("l/x.bin")
    tree.put("l/small", size=1)
    assert tree.backlog.depended(large)


def test_the_last_op_of_a_name_and_of_an_object(tree: Tree) -> None:
    shard = tree.put("s/x.bin")
    tree.link("s/x.bin", "s/y.bin")
    assert tree.backlog.of_name(shard.parent, b"x.bin") is shard
    moved = tree.rename("s/x.bin", "s/z.bin")
    assert tree.backlog.of_name(shard.parent, b"x.bin") is moved
    assert tree.backlog.of_object(shard.object) is moved
    assert tree.backlog.ops_of_object(shard.object)[0] is shard
    assert tree.backlog.of_name(shard.parent, b"nothing") is None
    assert tree.backlog.of_object(shard.parent) is None


def test_what_comes_after_on_the_same_file_or_name(tree: Tree) -> None:
    shard, other = tree.put("s/x.bin"), tree.put("other/x.bin")
    assert tree.backlog.alone(shard)
    link = tree.link("s/x.bin", "s/y.bin")
    gone = tree.unlink("s/x.bin", object=tree.object("another"))
    assert tree.backlog.behind(shard) == [link]
    assert tree.backlog.behind_at(shard) == [link, gone]
    assert not tree.backlog.alone(shard)
    assert tree.backlog.nothing_but(other, tree.directory("other"))
    assert not tree.backlog.nothing_but(shard, tree.directory("s"))


def test_under(tree: Tree) -> None:
    outer, made = tree.put("a/x.bin"), tree.mkdir("a/b")
    inner = tree.put("a/b/y.bin")
    moved = tree.rename("a/b/z", "c/z")
    assert list(tree.backlog.under(tree.directory("a"))) == [outer, made, inner, moved]
    assert list(tree.backlog.under(tree.directory("a/b"))) == [made, inner, moved]
    assert list(tree.backlog.under(tree.directory("c"))) == [moved]
    tree.backlog.remove(moved)
    assert list(tree.backlog.under(tree.directory("c"))) == []
    assert len(tree.backlog) == 3
    assert moved not in tree.backlog


def test_explain_says_why_in_one_line(tree: Tree) -> None:
    shard, marker = tree.put("s/x.bin"), tree.put("s/.metadata", size=9)
    held = tree.put("s/y.tmp")
    explain = tree.backlog.explain
    assert explain(shard, NOW) == "'s/x.bin' is next"
    assert explain(marker, NOW) == "'s/.metadata' waits for what was issued before it: 's/x.bin'"
    assert explain(held, NOW).endswith("(for 30.0 s)")
    assert tree.backlog.take(NOW) is shard
    assert explain(shard, NOW) == "'s/x.bin' is being sent"


def test_wrong_use_is_refused(tree: Tree) -> None:
    shard = tree.put("s/x.bin")
    with pytest.raises(ValueError, match="already"):
        tree.backlog.add(shard)
    tree.backlog.remove(shard)
    with pytest.raises(KeyError):
        tree.backlog.remove(shard)


def test_an_op_that_may_have_happened_already_keeps_its_place(tree: Tree) -> None:
    """Replay: its final call may have been made before the crash."""
    shard = tree.put("s/x.bin", state=OpState.PUBLISHING)
    assert why(tree, tree.put("s/.metadata", size=9)) == (Reason.EARLIER, shard)
    assert tree.backlog.take(NOW) is shard
