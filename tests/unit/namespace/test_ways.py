"""The way from the root to a directory, which the tree remembers."""

from __future__ import annotations

import pytest

from tierfs.model import ROOT, ObjectId
from tierfs.namespace.overlay import tree as overlay
from tierfs.namespace.overlay.tree import Tree

A, B, C = ObjectId(10), ObjectId(11), ObjectId(12)


@pytest.fixture
def tree() -> Tree:
    return Tree(64, lambda gone: None, lambda fresh, idle: None)


def test_a_moved_directory_takes_what_is_below_it_along(tree: Tree) -> None:
    tree.add_directory(A, ROOT, b"a")
    moved = tree.add_directory(B, ROOT, b"b")
    tree.add_directory(C, B, b"c")
    assert (tree.scope(C), tree.path(C)) == ((ROOT, B, C), (b"b", b"c"))
    tree.move_directory(moved, A, b"moved")
    assert (tree.scope(C), tree.path(C)) == ((ROOT, A, B, C), (b"a", b"moved", b"c"))


def test_a_directory_that_was_dropped_is_known_no_more(tree: Tree) -> None:
    tree.add_directory(A, ROOT, b"a")
    assert tree.path(A) == (b"a",)
    tree.release_directory(A)
    with pytest.raises(KeyError):
        tree.path(A)
    tree.add_directory(B, ROOT, b"b")
    tree.add_directory(A, B, b"again")
    assert tree.path(A) == (b"b", b"again")


def test_any_number_of_ways_can_be_asked_for(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "MOST_WAYS", 2)
    for number, directory in enumerate((A, B, C)):
        tree.add_directory(directory, ROOT, b"%d" % number)
    for _ in range(2):
        assert [tree.path(each) for each in (A, B, C)] == [(b"0",), (b"1",), (b"2",)]
