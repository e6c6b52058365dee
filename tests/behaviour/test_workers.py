"""What the next worker of a mount makes of what the one before it left (G6)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from tests.behaviour.calls import OsCalls, beside, error_of
from tests.behaviour.direct import Direct
from tests.behaviour.workers import Workers
from tests.faults import Stall
from tests.harness import wait_until
from tierfs.errors import JournalError
from tierfs.journal import journal
from tierfs.model import ROOT, OpKind
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.osio import RENAME_EXCHANGE


@contextmanager
def stalled(workers: Workers, *steps: str) -> Iterator[list[Stall]]:
    """The next call at each of `steps` stands still until the end of the block, or `release`."""
    stalls = [Stall(step) for step in steps]

    def hook(step: str, detail: tuple[object, ...]) -> None:
        for stall in stalls:
            stall(step, detail)

    workers.system.hook = hook
    try:
        yield stalls
    finally:
        workers.system.hook = None
        for stall in stalls:
            stall.release()


def pending(workers: Workers) -> list[OpKind]:
    return workers.run_sync(lambda: [op.kind for op in workers.rooms.backlog.under(ROOT)])


def file_with_inode(workers: Workers, inode: int) -> str:
    """A new file that the shared tier gives this number to, which has become free."""
    for number in count():
        path = f"other{number}"
        workers.write_file(path, b"other")
        wait_until(lambda: OpKind.PUT not in pending(workers), f"{path} on the shared tier")
        if (workers.shared / path).stat().st_ino == inode:
            return path
        assert number < 200, "the shared tier does not use the number again"
    raise AssertionError


def test_a_removed_open_file_stays_removed_when_another_gets_its_inode(workers: Workers) -> None:
    workers.write_file("a", b"old")
    workers.settle()
    inode = (workers.shared / "a").stat().st_ino
    fd = workers.open("a", os.O_RDWR)
    with stalled(workers, "unlink.fsync_dir") as (removal,):
        workers.unlink("a")
        assert removal.reached.wait(10)
        other = file_with_inode(workers, inode)
    wait_until(lambda: not pending(workers), "all committed")
    workers.kill()
    workers.pwrite(fd, b"more", 0)
    assert workers.fstat(fd).nlink == 0
    workers.close(fd)
    workers.settle()
    assert error_of(workers.stat, "a") == "ENOENT"
    assert "a" not in OsCalls(workers.shared).tree()
    assert workers.read_file(other) == b"other"


def test_a_removal_is_answered_before_its_row_is_written_and_survives(workers: Workers) -> None:
    for name in "abc":
        workers.write_file(name, b"old")
    workers.mkdir("d")
    workers.settle()
    workers.run(workers.rooms.journal.written)  # else the next worker ends these, some time
    workers.kill(held=True)
    for name in "ab":
        workers.stat(name)
    workers.run(workers.rooms.journal.written)
    writer = workers.rooms.journal._writer
    writer._put = lambda item, *, later: None  # type: ignore[method-assign]
    workers.unlink("a")
    workers.unlink("b")
    workers.rmdir("d")
    workers.kill(held=True)
    assert OsCalls(workers.shared).tree().keys() >= {"a", "b", "d"}
    assert workers.tree().keys() == {"c"}
    workers.write_file("b", b"new")
    workers.kill()
    workers.settle()
    assert workers.tree().keys() == {"b", "c"}
    assert workers.read_file("b") == b"new"
    assert OsCalls(workers.shared).tree().keys() == {"b", "c"}


def test_what_takes_content_along_is_not_answered_before_its_row_is_written(
    workers: Workers,
) -> None:
    """A name must not outlive its content."""
    workers.kill(held=True)
    workers.write_file("a", b"only here")
    written = workers.rooms.journal._writer.written
    workers.unlink("a")
    posted = workers.run_sync(lambda: workers.rooms.journal._posted)
    assert written.reached >= posted - 1  # what was posted behind the removal may follow


def test_a_removal_that_removes_what_others_put_under_the_name_says_of_no_place(
    workers: Workers,
) -> None:
    """It is told whichever inode the ops before it leave there, one after the other."""
    for name in "bc":
        workers.write_file(name, b"other")
    workers.settle()
    workers.kill(held=True)
    for name in "bc":
        workers.rename(name, "a")
        workers.unlink("a")
    fd = workers.open("a", os.O_CREAT | os.O_RDWR)
    workers.unlink("a")
    workers.die_at("rename.rename", 2)
    workers.go()
    wait_until(lambda: workers.dead, "the second rename")
    workers.system.hook = None
    workers.succeed()
    wait_until(lambda: not pending(workers), "all committed")
    workers.kill()
    workers.pwrite(fd, b"more", 0)
    assert workers.fstat(fd).nlink == 0
    workers.close(fd)
    workers.settle()
    assert not workers.tree()
    assert not OsCalls(workers.shared).tree()


def test_what_got_the_inode_of_a_removed_file_is_not_taken_for_gone(workers: Workers) -> None:
    workers.write_file("a", b"old")
    workers.settle()
    inode = (workers.shared / "a").stat().st_ino
    with stalled(workers, "unlink.fsync_dir", "rename.rename") as (removal, move):
        workers.unlink("a")
        assert removal.reached.wait(10)
        other = file_with_inode(workers, inode)
        workers.rename(other, "moved")
        removal.release()
        assert move.reached.wait(10)  # its turn comes after the end of the removal
        assert workers.stat("moved").size == len(b"other")
    workers.settle()
    assert workers.read_file("moved") == b"other"


def test_attributes_of_a_directory_are_set_when_asked_again_after_the_stub(
    workers: Workers,
) -> None:
    """The object is made, its row is not written: the next worker makes it with the same id."""
    workers.mkdir("a")
    workers.settle()
    workers.die_at_row(OpKind.SETATTR)
    with pytest.raises(JournalError):
        workers.chmod("a", 0o700)
    with stalled(workers, "local.remove") as (removal,):
        workers.succeed()
        assert removal.reached.wait(10)  # of what no row names, not of what is made anew
        again = beside(workers.chmod, "a", 0o711)
        with pytest.raises(TimeoutError):
            again.result(0.2)
    again.result(10)
    workers.settle()
    assert (workers.shared / "a").stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize("nth", [2, 4, 6, 9])
def test_a_half_made_stub_is_not_taken_for_the_file(workers: Workers, nth: int) -> None:
    """The reference that a pending op names has the same id in the next worker."""
    workers.write_file("a", b"content")
    workers.chmod("a", 0o640)
    workers.setxattr("a", "user.x", b"1")
    workers.settle()
    workers.kill(held=True)
    workers.rename("a", "b")
    workers.die_at("local.create", nth)
    with suppress(OSError, JournalError):
        workers.chmod("b", 0o600)
    workers.system.hook = None
    workers.die()
    workers.succeed(held=True)
    before = OsCalls(workers.shared).tree()["a"]
    assert workers.tree()["b"] in (before, dataclasses.replace(before, mode=0o600))
    workers.chmod("b", 0o600)
    workers.settle()
    assert OsCalls(workers.shared).tree()["b"] == dataclasses.replace(before, mode=0o600)


def exchange(workers: Workers, name: bytes, other: bytes) -> None:
    root = workers.fs.tree.directory(ROOT_INO)
    workers.run(workers.fs.names.rename, root, name, root, other, RENAME_EXCHANGE)


@pytest.mark.parametrize("change", ["rename", "link", "unlink", "exchange"])
def test_a_file_made_a_moment_before_is_found_by_what_is_asked_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """It is open, and its row would wait for another one."""
    monkeypatch.setattr(journal, "LATER_SECONDS", 60.0)
    workers.write_file("b", b"other")
    workers.kill(held=True)
    fd = workers.open("a", os.O_CREAT | os.O_RDWR)
    workers.pwrite(fd, b"content", 0)
    calls: dict[str, Callable[[], None]] = {
        "rename": lambda: workers.rename("a", "c"),
        "link": lambda: workers.link("a", "c"),
        "unlink": lambda: workers.unlink("a"),
        "exchange": lambda: exchange(workers, b"a", b"b"),
    }
    workers.die_at_row()
    with pytest.raises(JournalError):
        calls[change]()
    workers.succeed(held=True)
    assert {path: item.content for path, item in workers.tree().items()} == {
        "a": b"content", "b": b"other",
    }  # fmt: skip
    calls[change]()
    workers.close(fd)
    workers.settle()
    want = {
        "rename": {"b": b"other", "c": b"content"},
        "link": {"a": b"content", "b": b"other", "c": b"content"},
        "unlink": {"b": b"other"},
        "exchange": {"a": b"other", "b": b"content"},
    }
    for calls_ in (workers, OsCalls(workers.shared)):
        assert {path: item.content for path, item in calls_.tree().items()} == want[change]


@pytest.mark.parametrize("dots", [True, False])
def test_an_open_listing_goes_on_at_its_position(workers: Workers, dots: bool) -> None:
    """Also one of an earlier version of the program, which told no `.` and `..`."""
    for number in range(5):
        workers.write_file(f"f{number}", b"")
    listings = workers.fs.listings
    listing = workers.run_sync(lambda: listings.open(workers.fs.tree.directory(ROOT_INO)))
    told = [name for _, name in workers.run(listings.batch, listing, 0)]
    assert told[:2] == [b".", b".."]
    assert sorted(told[2:]) == [b"f%d" % number for number in range(5)]
    if not dots:
        told = listing.names = told[2:]
        workers.run_sync(lambda: workers.fs.core.memory.listing(listing))
        workers.run_sync(workers.fs.core.memory.flush)
    workers.kill()
    listings = workers.fs.listings
    again = workers.run_sync(lambda: listings.get(listing.number))
    assert [name for _, name in workers.run(listings.batch, again, 3)] == told[3:]
    anew = workers.run(listings.batch, again, 0)
    assert {again.ahead[at].ino for at, _ in anew[:2]} == {ROOT_INO}
    workers.run_sync(lambda: listings.release(again.number))


def nameless(workers: Workers, content: bytes) -> int:
    fd = workers.open("", os.O_TMPFILE | os.O_RDWR)
    workers.pwrite(fd, content, 0)
    return fd


def objects(workers: Workers) -> int:
    """Files of the local tier."""
    return workers.run_sync(lambda: len(list(workers.fs.core.store.ids())))


def test_a_file_without_a_name_goes_on_in_the_next_worker(workers: Workers) -> None:
    fd, other = nameless(workers, b"one"), nameless(workers, b"other")
    workers.kill()
    assert (workers.fstat(fd).nlink, workers.listdir()) == (0, [])
    workers.pwrite(fd, b" two", 3)
    workers.link_open(fd, "a")
    workers.kill()
    assert workers.pread(other, 10, 0) == b"other"
    workers.close(other)
    workers.close(fd)
    workers.settle()
    assert workers.read_file("a") == (workers.shared / "a").read_bytes() == b"one two"
    assert workers.listdir() == ["a"]
    workers.drop_caches()
    wait_until(lambda: objects(workers) <= 1, "nothing to be left of the other")


def test_a_first_name_is_given_when_it_is_asked_for_again(workers: Workers) -> None:
    """The worker dies with it; what is remembered speaks of the name, the journal not."""
    fd = nameless(workers, b"content")
    workers.die_at_row()
    with pytest.raises(JournalError):
        workers.link_open(fd, "a")
    workers.succeed(held=True)
    node = workers.run_sync(lambda: workers.fs.tree.nodes[workers._fds[fd].node.ino])
    root = workers.run_sync(lambda: workers.fs.tree.directory(ROOT_INO))
    workers.run(workers.fs.names.link, node, root, b"a")
    assert workers.read_file("a") == b"content"
    assert workers.fstat(fd).nlink == 1
    workers.close(fd)
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b"content"


def test_what_was_linked_is_whole_without_a_next_worker(make_direct: Callable[..., Direct]) -> None:
    """The daemon is killed with its mount while both are open: the link says that it is whole."""
    direct = make_direct()
    for name in ("linked", "never"):
        fd = direct.open("", os.O_TMPFILE | os.O_RDWR)
        direct.pwrite(fd, b"content", 0)
        if name == "linked":
            direct.link_open(fd, name)
    direct.restart()
    assert direct.listdir() == ["linked"]
    direct.settle()
    assert (direct.shared / "linked").read_bytes() == b"content"
    store = direct.fs.core.store
    wait_until(lambda: direct.run_sync(lambda: len(list(store.ids()))) == 1, "the other to go")


@pytest.mark.parametrize("how", ["rmdir", "rename"])
def test_a_directory_is_removed_when_that_is_asked_again(workers: Workers, how: str) -> None:
    """What was removed in it before is pending; its own removal was remembered, and no more."""
    for name in "ab":
        workers.mkdir(name)
    workers.write_file("a/f", b"1")
    workers.settle()
    workers.kill(held=True)
    workers.unlink("a/f")

    def remove() -> None:
        if how == "rmdir":
            workers.rmdir("a")
        else:
            workers.rename("b", "a")

    inode = workers.inode("a")
    workers.die_at_row(OpKind.RMDIR if how == "rmdir" else OpKind.RENAME)
    with pytest.raises(JournalError):
        remove()
    workers.succeed(held=True)
    assert workers.inode("a") == inode
    assert workers.listdir("a") == []
    remove()
    workers.kill(held=True)
    left = {"b"} if how == "rmdir" else {"a"}
    assert workers.tree().keys() == left
    workers.settle()
    assert workers.tree().keys() == left
    assert OsCalls(workers.shared).tree().keys() == left


def test_a_checkpoint_is_removed_when_that_is_asked_again(workers: Workers) -> None:
    """One that is not published, and stands under another name."""
    for name in ("checkpoint-1", "a"):
        workers.mkdir(name)
        workers.write_file(f"{name}/f", b"1")
    workers.settle()
    workers.kill(held=True)
    workers.unlink("checkpoint-1/f")
    workers.die_at_row(OpKind.RMDIR)
    with pytest.raises(JournalError):
        workers.rmdir("checkpoint-1")
    workers.succeed(held=True)
    workers.rmdir("checkpoint-1")
    workers.settle()
    assert workers.tree().keys() == {"a", "a/f"}


def test_a_change_of_attributes_outlives_a_kill_in_the_middle_of_the_next(
    workers: Workers,
) -> None:
    """That takes its place: one goes and the other comes in one transaction."""
    workers.write_file("a", b"1")
    workers.settle()
    workers.kill(held=True)
    workers.chmod("a", 0o600)
    workers.die_at_row(OpKind.SETATTR)
    with pytest.raises(JournalError):
        workers.setxattr("a", "user.x", b"1")
    workers.succeed()
    assert workers.stat("a").mode & 0o7777 == 0o600
    workers.settle()
    assert (workers.shared / "a").stat().st_mode & 0o7777 == 0o600


def test_a_link_that_was_remembered_and_not_journaled_is_made_when_that_is_asked_again(
    workers: Workers,
) -> None:
    """It is made from a name that is there, whichever of the two is met first."""
    files = [f"f{number}" for number in range(8)]
    for name in files:
        workers.write_file(name, b"1")
    workers.settle()
    nodes = [workers.fs.tree.nodes[workers.inode(name)] for name in files]

    async def remember() -> None:
        for node, name in zip(nodes, files, strict=True):
            node.names = {*node.names, (ROOT, b"new" + os.fsencode(name))}

    workers.run(remember)
    workers.kill(held=True)
    root = workers.fs.tree.directories[ROOT]
    for node, name in zip(nodes, files, strict=True):
        # the kernel does not look up what it has just looked up
        known = workers.fs.tree.nodes[node.ino]
        workers.run(workers.fs.names.link, known, root, b"new" + os.fsencode(name))
    workers.settle()
    assert OsCalls(workers.shared).tree().keys() == {*files, *("new" + name for name in files)}


def test_a_checkpoint_is_made_when_that_is_asked_again(workers: Workers) -> None:
    """Nothing is left of the one that the first worker began to make."""
    workers.mkdir("run")
    workers.settle()
    workers.die_at_row(OpKind.MKDIR)
    with pytest.raises(JournalError):
        workers.mkdir("run/checkpoint-1")
    workers.succeed()
    workers.mkdir("run/checkpoint-1")
    assert len([*workers.fs.core.groups]) == 1
    workers.rmdir("run/checkpoint-1")
    workers.settle()
    assert not [*workers.fs.core.groups]
    assert workers.tree().keys() == {"run"}
