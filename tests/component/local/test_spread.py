"""Objects that move to the other side: whatever the daemon dies of, one of the two counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.component.local.test_store import NAME, make, read
from tests.faults import KILLED, FaultyOS
from tierfs.local import ObjectStore
from tierfs.model import ROOT, Attributes, Kind, ObjectId, new_object_id
from tierfs.osio import OS

CONTENT = b"content"


_opened: list[int] = []


@pytest.fixture
def other_side(directory: Path) -> Iterator[Path]:
    path = directory.with_name("other")
    (path / "objects").mkdir(parents=True, exist_ok=True)
    yield path
    while _opened:
        os.close(_opened.pop())


def attached(store: ObjectStore, other_side: Path) -> ObjectStore:
    _opened.append(os.open(other_side, os.O_RDONLY | os.O_DIRECTORY))
    store.spread.attach(_opened[-1])
    return store


def move(store: ObjectStore, object_id: ObjectId) -> None:
    source = store.open_object(object_id, os.O_RDONLY)
    target = store.spread.begin_move(object_id)
    os.pwrite(target, CONTENT, 0)
    store.spread.finish_move(object_id, source, target)
    os.close(source)
    os.close(target)


def files(path: Path) -> set[str]:
    return {found.name for found in (path / "objects").glob("??/*")}


def test_a_moved_object_is_what_it_was(
    store: ObjectStore, directory: Path, other_side: Path
) -> None:
    object_id = make(attached(store, other_side), content=CONTENT, mode=0o4711, uid=5, gid=6)
    store.set_xattr(object_id, b"user.a", b"1")
    before = store.attributes(object_id, Kind.FILE)
    move(store, object_id)
    after = store.attributes(object_id, Kind.FILE)
    assert (after.mode, after.uid, after.gid, after.size, after.mtime_ns) == (
        before.mode, before.uid, before.gid, before.size, before.mtime_ns,
    )  # fmt: skip
    assert read(store, object_id) == CONTENT
    assert store.list_xattrs(object_id) == [b"user.a"]
    assert (files(directory), len(files(other_side))) == (set(), 1)
    assert list(store.ids()) == [object_id]
    store.remove(object_id)
    assert files(other_side) == set()


def test_dying_at_each_call_of_a_move(directory: Path, other_side: Path) -> None:
    calls = 0
    while True:
        store = attached(ObjectStore.open(directory, OS()), other_side)
        object_id = make(store, content=CONTENT)
        store.close()
        calls += 1
        if not dies_after(calls, directory, other_side, object_id):
            break
        store = attached(ObjectStore.open(directory, OS()), other_side)
        assert list(store.ids()) == [object_id]
        assert read(store, object_id) == CONTENT
        assert len(files(directory)) + len(files(other_side)) == 1
        store.remove(object_id)
        store.close()
    assert calls > 10


def dies_after(calls: int, directory: Path, other_side: Path, object_id: ObjectId) -> bool:
    """Whether a process that moves the object made more calls than that, and died of it."""
    child = os.fork()
    if child == 0:
        system = FaultyOS()
        store = attached(ObjectStore.open(directory, system), other_side)
        begun = len(system.seen)
        system.hook = lambda *_: os._exit(KILLED) if len(system.seen) - begun > calls else None
        move(store, object_id)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def test_a_stub_on_the_other_side_stays(
    store: ObjectStore, directory: Path, other_side: Path, open_store: Callable[..., ObjectStore]
) -> None:
    attached(store, other_side)
    object_id = new_object_id()
    store.spread.place_far(object_id)
    attributes = Attributes(Kind.FILE, 0o600, 0, 0, 10, 0, 0, 0)
    store.create_stub(object_id, attributes, {}, ROOT, NAME)
    store.close()
    again = attached(open_store(directory), other_side)
    assert again.is_stub(object_id)
    assert again.spread.is_spilled(object_id)


def test_without_its_drive_only_what_was_moved_is_there(
    store: ObjectStore, other_side: Path
) -> None:
    moved, left = (make(attached(store, other_side), content=CONTENT) for _ in range(2))
    move(store, moved)
    store.let_go()
    assert read(store, moved) == CONTENT
    with pytest.raises(OSError, match="drive has failed"):
        read(store, left)


def test_while_the_other_side_is_not_mounted_its_objects_are_out_of_reach(
    store: ObjectStore, other_side: Path
) -> None:
    moved, left = (make(attached(store, other_side), content=CONTENT) for _ in range(2))
    move(store, moved)
    store.spread.far.turn(None)
    for call in (lambda: read(store, moved), lambda: store.remove(moved)):
        with pytest.raises(OSError, match="not mounted under its path") as refused:
            call()
        assert refused.value.errno == errno.ENODEV
    assert read(store, left) == CONTENT
    store.spread.far.turn(_opened[-1])
    assert read(store, moved) == CONTENT
