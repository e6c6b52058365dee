"""Places: where the directories stand on the shared tier. Pure."""

from __future__ import annotations

import pytest

from tierfs.errors import DirectoryGone
from tierfs.model import ROOT, TRASH, DirectoryRecord, ObjectId
from tierfs.shared import Place, Places

A, B, C = ObjectId(0xA), ObjectId(0xB), ObjectId(0xC)


@pytest.fixture
def places() -> Places:
    """/a/b, both made; b carries its id."""
    made = Places(root_inode=128)
    made.add(DirectoryRecord(A, ROOT, b"a", inode=10))
    made.add(DirectoryRecord(B, A, b"b", inode=11, tagged=True))
    return made


def test_the_root_is_always_there(places: Places) -> None:
    places.forget(ROOT)
    assert places.exists(ROOT)
    assert places.place(ROOT) == Place(b"", 128)


def test_paths_follow_a_rename_above(places: Places) -> None:
    assert places.path(B) == b"a/b"
    places.move(A, ROOT, b"renamed")
    assert places.path(B) == b"renamed/b"
    assert places.place(B) == Place(b"renamed/b", 11, B)


def test_a_directory_whose_mkdir_is_pending_has_a_path_but_does_not_exist(places: Places) -> None:
    places.add(DirectoryRecord(C, B, b"c"))
    assert places.path(C) == b"a/b/c"
    assert not places.exists(C)
    places.made(C, 12, tagged=True)
    assert places.exists(C)
    assert places.place(C) == Place(b"a/b/c", 12, C)


def test_what_is_below_a_forgotten_directory_is_gone(places: Places) -> None:
    places.forget(A)
    assert places.record(A) is None
    with pytest.raises(DirectoryGone, match="000000000000000b"):
        places.path(B)


def test_nothing_moves_into_itself(places: Places) -> None:
    with pytest.raises(ValueError, match="into itself"):
        places.move(A, B, b"x")
    assert places.path(B) == b"a/b"


def test_a_removed_checkpoint_stands_in_the_trash(places: Places) -> None:
    places.forget(TRASH)
    assert places.exists(TRASH)
    assert places.place(TRASH) == Place(b".tierfs/trash")
    places.move(A, TRASH, b"%016x" % A)
    assert places.place(B) == Place(b".tierfs/trash/000000000000000a/b", 11, B)
