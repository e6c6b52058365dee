"""Class and cover of an op, from the op alone."""

from __future__ import annotations

import pytest

from tests.unit.order.tree import BIG, Tree
from tierfs.model import STAGED, Op, OpKind
from tierfs.order import Klass, classify

PUT, MKDIR, SYMLINK, LINK = OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.LINK
RENAME, UNLINK, RMDIR, SETATTR = OpKind.RENAME, OpKind.UNLINK, OpKind.RMDIR, OpKind.SETATTR
SEAL, REOPEN, TRASH = OpKind.SEAL, OpKind.REOPEN, OpKind.TRASH
IN_GROUP, OF_GROUP = {"unsealed": True}, {"fields": (STAGED,)}
PLAIN, SMALL, ORDERED = Klass.PLAIN, Klass.SMALL, Klass.ORDERED

# kind, path, source of a rename or link, fields; class and the paths of the cover
CASES = [
    (PUT, "run/step-4/__0_0.distcp", None, {}, PLAIN, None),
    (PUT, "run/step-4/config.json", None, {"size": 700}, SMALL, None),
    (PUT, "run/step-4/.metadata", None, {"size": 700}, ORDERED, ["run/step-4"]),
    (PUT, "run/step-4/.metadata", None, {}, ORDERED, ["run/step-4"]),
    (PUT, "m/model.safetensors.index.json", None, {}, ORDERED, ["m"]),
    (PUT, "run/shard.done", None, {"size": 0}, ORDERED, ["run"]),
    (PUT, "run/shard.done", None, {}, PLAIN, None),
    (PUT, "run/latest", None, {"size": 12}, ORDERED, ["run"]),
    (PUT, "run/last.ckpt", None, {}, PLAIN, None),
    (PUT, "run/data.bin", None, {"overwrites": True}, ORDERED, ["run"]),
    (PUT, "run/data.bin.tmp", None, {"size": 3}, SMALL, None),
    (PUT, "3.orbax-checkpoint-tmp/commit_success.txt", None, {"size": 3}, PLAIN, None),
    (PUT, "x.tmp/deep/er/.metadata", None, {"size": 3, "overwrites": True}, PLAIN, None),
    (PUT, "run/step_5-unfinished", None, {"size": 0}, PLAIN, None),
    (PUT, "a.reserving-1/.incomplete", None, {"size": 0}, PLAIN, None),
    (MKDIR, "run/step-4", None, {}, PLAIN, None),
    (MKDIR, "run/release", None, {"overwrites": True}, PLAIN, None),
    (SETATTR, "run/step-4/.metadata", None, {}, PLAIN, None),
    (SYMLINK, "run/newest", None, {}, ORDERED, ["run"]),
    (SYMLINK, "x.tmp/newest", None, {}, PLAIN, None),
    (LINK, "run/c0", "run/c0.77.partial", {}, PLAIN, None),
    (LINK, "run/a/meta.pt", "run/b/x", {}, ORDERED, ["run/a", "run/b"]),
    (LINK, "run/a/x", "run/b/x", {"overwrites": True}, ORDERED, ["run/a", "run/b"]),
    (RENAME, "run/3", "run/3.orbax-checkpoint-tmp", {}, ORDERED, ["run"]),
    (RENAME, "3.orbax-checkpoint-tmp/i", "3.orbax-checkpoint-tmp/i.orbax-checkpoint-tmp",
     {}, ORDERED, ["3.orbax-checkpoint-tmp"]),
    (RENAME, "x.tmp/b", "x.tmp/a", {}, PLAIN, None),
    (RENAME, "x.tmp/b", "x.tmp/a", {"overwrites": True}, ORDERED, ["x.tmp"]),
    (RENAME, "run/b", "x.tmp/a", {}, ORDERED, ["run", "x.tmp"]),
    (RENAME, "run/b/model.pt", "run/a/model.pt", {}, ORDERED, ["run/b", "run/a"]),
    (RENAME, "old/step-4", "run/step-4", {}, ORDERED, ["old", "run"]),
    (RENAME, "run/checkpoint-4/optimizer_1", "run/checkpoint-4/o", {}, ORDERED,
     ["run", "run/checkpoint-4"]),
    (UNLINK, "run/model.pt", None, {}, ORDERED, ["run"]),
    (UNLINK, "run/step-4/__0_0.distcp", None, {}, ORDERED, ["run"]),
    (UNLINK, "run/step-4/.metadata", None, {}, ORDERED, ["run"]),
    (UNLINK, "run/checkpoint-4/optimizer_0/__0_0.distcp", None, {}, ORDERED, ["run"]),
    (UNLINK, "x.tmp/model.pt", None, {}, PLAIN, None),
    (UNLINK, "a.reserving-1/.incomplete", None, {}, ORDERED, ["a.reserving-1"]),
    (UNLINK, "run/step_5-unfinished", None, {}, ORDERED, ["run"]),
    (RMDIR, "run/step-4", None, {}, ORDERED, ["run"]),
    (RMDIR, "run/step-4/sub", None, {}, ORDERED, ["run"]),
    (RMDIR, "run/logs", None, {}, ORDERED, ["run"]),
    (RMDIR, "12", None, {}, ORDERED, [""]),
    (MKDIR, "run/checkpoint-4", None, OF_GROUP, PLAIN, None),
    (RMDIR, "run/checkpoint-4", None, OF_GROUP, PLAIN, None),
    (RENAME, "run/old", "run/checkpoint-4", OF_GROUP, ORDERED, ["run"]),
    (SEAL, "run/checkpoint-4", None, {}, ORDERED, ["run"]),
    (SEAL, "x.tmp/checkpoint-4", None, {}, ORDERED, ["x.tmp"]),
    (REOPEN, "run/checkpoint-4", None, {}, PLAIN, None),
    (TRASH, "run/checkpoint-4", None, {}, ORDERED, ["run"]),
    (TRASH, "release/checkpoint-4", None, {}, ORDERED, [""]),
    (PUT, "run/checkpoint-4/.metadata", None, {"size": 9, **IN_GROUP}, PLAIN, None),
    (PUT, "run/checkpoint-4/config.json", None, {"size": 9, **IN_GROUP}, PLAIN, None),
    (PUT, "run/checkpoint-4/latest", None, {"size": 9, "overwrites": True, **IN_GROUP},
     PLAIN, None),
    (SYMLINK, "run/checkpoint-4/newest", None, IN_GROUP, PLAIN, None),
    (UNLINK, "run/checkpoint-4/.metadata", None, IN_GROUP, PLAIN, None),
    (RMDIR, "run/checkpoint-4/sub", None, IN_GROUP, PLAIN, None),
    (RENAME, "run/checkpoint-4/b", "run/checkpoint-4/a", IN_GROUP, PLAIN, None),
    (RENAME, "run/checkpoint-4/optimizer_0", "run/checkpoint-4/a",
     {"overwrites": True, **IN_GROUP}, ORDERED, ["run/checkpoint-4"]),
    (UNLINK, "run/checkpoint-4/.incomplete", None, IN_GROUP, ORDERED, ["run/checkpoint-4"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "source", "fields", "klass", "cover"), CASES)
def test_class_and_cover(
    kind: OpKind, path: str, source: str | None, fields: dict, klass: Klass, cover: list | None
) -> None:
    tree = Tree()
    placement = classify(tree.op(kind, path, source, **fields))
    assert placement.klass is klass
    assert set(placement.cover) == {tree.directory(one) for one in cover or ()}


def op(kind: OpKind, path: str, **fields: object) -> tuple[Tree, Op]:
    tree = Tree()
    return tree, tree.op(kind, path, **fields)


def test_pointers_and_symlinks_cover_what_they_lead_to() -> None:
    tree = Tree()
    targets = (tree.directory("run/step-4"),)
    for kind, name in ((SYMLINK, "run/anything"), (PUT, "run/latest")):
        placement = classify(tree.op(kind, name, size=6, targets=targets))
        assert placement.is_pointer
        assert placement.cover == (tree.directory("run"), *targets)
    assert classify(tree.op(PUT, "run/other", size=6, targets=targets)).cover == ()


def test_the_limit_of_small_is_64_kib() -> None:
    assert classify(op(PUT, "run/latest", size=65536)[1]).is_pointer
    assert not classify(op(PUT, "run/latest", size=65537)[1]).is_pointer
    assert classify(op(PUT, "run/x", size=65536)[1]).klass is SMALL
    assert classify(op(PUT, "run/x", size=65537)[1]).klass is PLAIN


def test_the_topmost_checkpoint_counts() -> None:
    tree, inner = op(PUT, "run/checkpoint-4/optimizer_0/__0_0.distcp", size=BIG)
    assert classify(inner).checkpoint == tree.directory("run/checkpoint-4")
    tree, made = op(MKDIR, "run/checkpoint-4")
    assert classify(made).checkpoint == made.object
    assert classify(op(PUT, "run/best.ckpt", size=BIG)[1]).checkpoint is None


def test_files_of_a_scratch_directory_are_temporary_whatever_their_name() -> None:
    assert classify(op(PUT, "ckpt-1_temp/part-0", size=BIG)[1]).is_temporary
    assert classify(op(PUT, "run/x.tmp", size=BIG)[1]).is_temporary
    assert classify(op(SYMLINK, "run/.LATEST.0f.tmp")[1]).is_temporary
    assert not classify(op(UNLINK, "run/x.tmp")[1]).is_temporary
    assert not classify(op(PUT, "x.tmp/part-0", size=BIG)[1]).is_temporary


def test_a_commit_name_below_a_temporary_directory_is_none() -> None:
    assert not classify(op(PUT, "x.tmp/.metadata", size=9)[1]).is_commit_name
    assert classify(op(UNLINK, "run/.metadata")[1]).is_commit_name
    assert not classify(op(SETATTR, "run/.metadata")[1]).is_commit_name


def test_the_root_itself_can_be_changed() -> None:
    tree = Tree()
    change = tree.op(SETATTR, "x")
    change.scope = change.path = ()
    assert classify(change).klass is PLAIN


@pytest.mark.parametrize(("kind", "path", "source", "fields", "klass", "cover"), CASES)
def test_a_place_does_not_depend_on_what_was_asked_before(
    kind: OpKind, path: str, source: str | None, fields: dict, klass: Klass, cover: list | None
) -> None:
    tree = Tree()
    above = path.rpartition("/")[0]
    for other in ("data", "data.tmp"):
        for more in ({}, fields):
            classify(tree.op(kind, f"{above}/{other}".lstrip("/"), None, **more))
    placement = classify(tree.op(kind, path, source, **fields))
    assert placement.klass is klass
    assert set(placement.cover) == {tree.directory(one) for one in cover or ()}


def test_files_of_a_directory_share_their_place() -> None:
    tree = Tree()
    first = classify(tree.op(PUT, "run/step-4/__0_0.distcp"))
    assert classify(tree.op(PUT, "run/step-4/__1_0.distcp")) is first
    assert classify(tree.op(PUT, "run/step-5/__1_0.distcp")) != first
    assert classify(tree.op(PUT, "run/step-4/__1_0.distcp", overwrites=True)) != first
