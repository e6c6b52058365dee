"""Directories that are known by where they stand, though nobody has asked for them yet."""

from __future__ import annotations

from tierfs.model import ROOT, Kind, ObjectId
from tierfs.namespace.overlay.nodes import Location
from tierfs.namespace.overlay.tree import Tree

D = ObjectId(0x5111111111111111)


def test_one_that_stood_elsewhere_before_and_is_released_is_not_looked_for_there() -> None:
    """As a directory of a checkpoint of which the next generation was made, or given up."""
    tree = Tree(64, lambda gone: None, lambda fresh, idle: None)
    tree.add_directory(D, ROOT, b"d")
    for inode in (77, 78):
        tree.stands_at(D, Location(ROOT, b"d", inode), tagged=False)
    tree.release_directory(D)
    for inode in (77, 78):
        node = tree.node_of_shared(Kind.DIRECTORY, Location(ROOT, b"d", inode), 2)
        assert node.directory in tree.directories
        assert node.directory != D


def test_one_that_stood_elsewhere_before_is_not_what_stands_there_now() -> None:
    tree = Tree(64, lambda gone: None, lambda fresh, idle: None)
    tree.add_directory(D, ROOT, b"d")
    for inode in (77, 78):
        tree.stands_at(D, Location(ROOT, b"d", inode), tagged=False)
    other = tree.node_of_shared(Kind.DIRECTORY, Location(ROOT, b"e", 77), 2)
    assert other.directory != D
    same = tree.node_of_shared(Kind.DIRECTORY, Location(ROOT, b"d", 78), 2)
    assert same.directory == D
