"""What is answered while the shared tier fails, changes, or is being changed by our own commits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.behaviour.calls import OsCalls, beside, error_of
from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.stalls import broken, stalled, until_looked_at
from tests.faults import Stall
from tests.harness import wait_until
from tierfs.model import ROOT, Kind
from tierfs.namespace.finding.listing import Listing
from tierfs.namespace.outage.asking import on_behalf_of
from tierfs.namespace.overlay.nodes import Content
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.osio import RENAME_EXCHANGE
from tierfs.osio.intent import is_making

# -- errors are errors -------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["place.open", "place.stat", "look.stat"])
def test_error_of_the_shared_tier_is_no_missing_name(direct: Direct, step: str) -> None:
    """In a directory that is not in use here: nothing else is known of its names."""
    (direct.shared / "d").mkdir()
    (direct.shared / "d" / "f").write_bytes(b"content")
    direct.restart()
    until_looked_at(direct)  # the way to d
    direct.system.hook = broken(step)
    assert error_of(direct.stat, "d/f") == "EIO"
    assert error_of(direct.stat, "d/absent") == "EIO"
    assert error_of(direct.open, "d/f") == "EIO"
    assert error_of(direct.unlink, "d/f") == "EIO"
    assert error_of(direct.rename, "d/f", "d/g") == "EIO"
    assert direct.stat("d").mode == 0o755
    direct.system.hook = None
    assert direct.read_file("d/f") == b"content"
    assert direct.listdir("d") == ["f"]


@pytest.mark.parametrize("step", ["place.open", "place.stat", "look.stat"])
def test_error_of_the_shared_tier_where_its_names_are_remembered(direct: Direct, step: str) -> None:
    """In a directory in use the last look answers (G8), and it makes no name missing."""
    until_looked_at(direct)
    for name in ("f", "old", "gone"):
        direct.write_file(name, b"content")
    direct.settle()
    direct.drop_caches()
    direct.system.hook = broken(step)
    assert direct.stat("f").size == 7
    assert direct.read_file("f") == b"content"
    assert error_of(direct.stat, "absent") == "EIO"
    assert error_of(direct.open, "absent") == "EIO"
    assert error_of(direct.rename, "absent", "f") == "EIO"
    direct.rename("old", "f")
    direct.unlink("gone")
    assert error_of(direct.stat, "gone") == "ENOENT"
    assert direct.exists("f")
    direct.system.hook = None
    direct.settle()
    assert direct.listdir() == ["f"]
    assert [path.name for path in direct.shared.glob("[!.]*")] == ["f"]


@contextmanager
def opening(path: Path) -> Iterator[int]:
    """A process that stands still in the call that makes `path`, as one that waits for a lookup."""
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    code = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        wait_until(
            lambda: is_making(process.pid, os.fsencode(path.parent.name), os.fsencode(path.name)),
            "the open to block",
        )
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_directory_made_just_before_the_shared_tier_dies(direct: Direct, tmp_path: Path) -> None:
    """Committed and not looked at yet: what is made in it is made, and its rights are its own."""
    until_looked_at(direct)
    direct.system.hook = broken("look.list")  # which no look at it gets past
    direct.mkdir("checkpoint-1")
    direct.mkdir("private")
    direct.settle()
    direct.chmod("private", 0o700)
    direct.settle()
    direct.system.hook = broken("place.open", "place.stat", "look.stat", "look.xattrs")

    async def create(folder: str, maker: int) -> None:
        with on_behalf_of(maker):
            state = direct.fs.tree.directory(inodes[folder])
            with pytest.raises(FileNotFoundError):
                await direct.fs.lookup.resolve(state, b"f")
            handle = await direct.fs.files.create(state, b"f", 0o644, CALLER)
            await direct.fs.files.flush(handle)
            await direct.fs.files.release(handle)

    inodes = {folder: direct.inode(folder) for folder in ("checkpoint-1", "private")}
    for folder in inodes:
        with opening(tmp_path / folder / "f") as maker:
            direct.run(create, folder, maker)
    assert direct.stat("private").mode == 0o700
    direct.system.hook = None
    direct.settle()
    assert direct.listdir("private") == ["f"]
    assert (direct.shared / ".staging_checkpoint-1" / "f").exists()


def test_failed_listing_is_no_empty_directory(direct: Direct) -> None:
    direct.mkdir("d")
    direct.write_file("d/f", b"content")
    direct.settle()
    direct.restart()
    until_looked_at(direct)
    direct.system.hook = broken("look.list")
    assert error_of(direct.listdir, "d") == "EIO"
    assert error_of(direct.rmdir, "d") == "EIO"
    direct.system.hook = None
    assert direct.listdir("d") == ["f"]


def test_failed_look_at_one_entry_leaves_no_name_out(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct()
    direct.mkdir("d")
    direct.write_file("d/f", b"content")
    direct.settle()
    direct.restart(held=True)
    until_looked_at(direct)  # the way to d
    direct.system.hook = broken("look.xattrs")  # which no look at d gets past
    direct.rename("d/f", "d/g")  # its name is pending, its attributes are those of the shared file
    direct.system.hook = broken("look.xattrs", "look.stat")
    assert error_of(direct.listdir, "d") == "EIO"
    direct.system.hook = None
    assert direct.listdir("d") == ["g"]


def test_failed_look_at_a_remembered_entry_leaves_no_name_out(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct()
    direct.write_file("f", b"content")
    direct.write_file("other", b"1")
    direct.settle()
    direct.restart(held=True)
    until_looked_at(direct)
    direct.rename("f", "g")
    direct.system.hook = broken("look.stat")
    assert sorted(direct.listdir()) == ["g", "other"]
    assert direct.stat("g").size == 7


def test_failed_read_is_no_empty_file(direct: Direct) -> None:
    (direct.shared / "f").write_bytes(b"content")
    fd = direct.open("f")
    direct.system.hook = broken("read.shared", "copyup.read")
    assert error_of(direct.pread, fd, 10, 0) == "EIO"
    assert error_of(direct.open, "f", os.O_RDWR) == "EIO"
    direct.system.hook = None
    assert direct.pread(fd, 10, 0) == b"content"
    direct.close(fd)
    direct.append("f", b"!")
    assert direct.read_file("f") == b"content!"


def test_pending_names_need_no_shared_tier(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct(held=True)
    direct.mkdir("d")
    direct.write_file("d/f", b"content")
    direct.system.hook = broken("place.open", "look.stat", "look.list", "look.open")
    assert direct.read_file("d/f") == b"content"
    assert direct.listdir("d") == ["f"]
    assert error_of(direct.stat, "d/absent") == "ENOENT"
    direct.rename("d/f", "d/g")
    direct.unlink("d/g")
    assert direct.listdir("d") == []


# -- what another node does --------------------------------------------------------------------


def test_no_name_is_remembered_as_missing(direct: Direct) -> None:
    assert not direct.exists("f")
    (direct.shared / "f").write_bytes(b"of another node")
    assert direct.read_file("f") == b"of another node"
    (direct.shared / "f").unlink()
    assert not direct.exists("f")
    assert direct.listdir() == []


def test_directory_replaced_by_another_node(direct: Direct) -> None:
    direct.mkdir("d")
    direct.write_file("d/f", b"content")
    direct.settle()
    (direct.shared / "d").rename(direct.shared / "elsewhere")
    (direct.shared / "d").mkdir()
    assert not direct.exists("d/f")
    assert direct.read_file("elsewhere/f") == b"content"
    direct.write_file("d/new", b"1")
    direct.write_file("elsewhere/new", b"2")
    direct.settle()
    assert (direct.shared / "d" / "new").read_bytes() == b"1"
    assert (direct.shared / "elsewhere" / "new").read_bytes() == b"2"


@pytest.mark.parametrize("known", [True, False], ids=["the next generation", "another"])
def test_directory_replaced_by_another_node_while_it_is_listed(direct: Direct, known: bool) -> None:
    """As when it saves a checkpoint again: the names are those of one or the other."""
    direct.mkdir("d")
    direct.write_file("d/old", b"content")
    direct.settle()
    node = direct.run(direct.fs.lookup.resolve, direct.fs.tree.directory(ROOT_INO), b"d")

    def listed(listing: Listing) -> list[bytes]:
        return [name for _, name in direct.run(direct.fs.listings.batch, listing, 0)]

    listing = direct.run_sync(lambda: direct.fs.listings.open(direct.fs.tree.directory(node.ino)))
    for name in ("new", "newer"):
        (direct.shared / "fresh").mkdir()
        (direct.shared / "fresh" / name).write_bytes(b"content")
        for xattr in os.listxattr(direct.shared / "d") if known else ():
            value = os.getxattr(direct.shared / "d", xattr)
            os.setxattr(direct.shared / "fresh", xattr, value)
        shutil.rmtree(direct.shared / "d")
        (direct.shared / "fresh").rename(direct.shared / "d")
        assert listed(listing) == [b".", b"..", name.encode()]
        assert listing.ahead[2].node is not None
    (direct.shared / "d").rename(direct.shared / "gone")
    with pytest.raises(FileNotFoundError):
        listed(listing)
    direct.run_sync(lambda: direct.fs.listings.release(listing.number))


# -- commits between question and answer ---------------------------------------------------------


def test_committed_while_a_lookup_is_on_its_way(make_direct: Callable[..., Direct]) -> None:
    """The shared tier says "not there", the commit comes, and the overlay lets go of the name."""
    direct = make_direct(held=True)
    with stalled(direct, "look.stat") as stall:
        looking = beside(direct.stat, "f")
        assert stall.reached.wait(10)
        direct.write_file("f", b"content")
        direct.settle()
        stall.release()
        found = looking.result(10)
    assert found.size == 7
    assert direct.read_file("f") == b"content"


def test_attributes_asked_for_before_a_commit_are_not_shown_after_it(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct()
    direct.write_file("f", b"old")
    direct.settle()
    direct.drop_caches()
    inode = direct.inode("f")
    with stalled(direct, "look.stat") as stall:
        looking = beside(direct.stat, "f")
        assert stall.reached.wait(10)
        direct.write_file("f", b"new content")
        direct.chmod("f", 0o600)
        direct.settle()
        stall.release()
        found = looking.result(10)
    assert (found.size, found.mode) == (11, 0o600)
    assert direct.inode("f") == inode


def test_removed_while_a_lookup_is_on_its_way(direct: Direct) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    direct.drop_caches()
    with stalled(direct, "look.stat") as stall:
        looking = beside(error_of, direct.stat, "f")
        assert stall.reached.wait(10)
        # by its own lookup, which is not held
        direct.unlink("f")
        direct.settle()
        stall.release()
        assert looking.result(10) == "ENOENT"


def test_commits_while_a_listing_is_on_its_way(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct(held=True)
    (direct.shared / "old").write_bytes(b"1")
    direct.write_file("pending", b"2")
    with stalled(direct, "look.list") as stall:
        listing = beside(direct.listdir)
        assert stall.reached.wait(10)
        direct.write_file("later", b"3")
        direct.unlink("old")
        direct.settle()
        stall.release()
        assert sorted(listing.result(10)) == ["later", "pending"]


@pytest.mark.parametrize("step", ["place.open", "look.stat"])
def test_lookup_in_a_directory_that_is_being_renamed(direct: Direct, step: str) -> None:
    direct.mkdir("a")
    direct.mkdir("a/b")
    direct.write_file("a/b/f", b"content")
    direct.settle()
    with stalled(direct, step) as stall:
        looking = beside(direct.read_file, "a/b/f")
        assert stall.reached.wait(10)
        direct.rename("a", "c")
        direct.settle()
        stall.release()
        # the walk had begun in the old place: it may see the file or the new state, never an error
        assert error_of(looking.result, 10) in (None, "ENOENT")
    assert direct.read_file("c/b/f") == b"content"
    assert not direct.exists("a")


def test_lookup_while_the_rename_is_between_call_and_outcome(direct: Direct) -> None:
    """The directory has its new name on the shared tier, and the namespace does not know yet."""
    direct.mkdir("a")
    direct.write_file("a/f", b"content")
    direct.settle()
    inode = direct.inode("a/f")
    with stalled(direct, "rename.fsync_dir") as stall:
        direct.rename("a", "c")
        assert stall.reached.wait(10)
        assert (direct.shared / "c").exists()
        looking = beside(direct.item, "c/f")
        listing = beside(direct.listdir, "c")
        time.sleep(0.05)  # either may wait for the rename: it must come to no answer but the right
        stall.release()
        assert looking.result(10).content == b"content"
        assert listing.result(10) == ["f"]
    assert direct.inode("c/f") == inode


@pytest.mark.parametrize("what", ["directory", "symlink"])
def test_open_while_an_exchange_is_between_call_and_outcome(direct: Direct, what: str) -> None:
    """Where the file was, the shared tier has something else by now."""
    direct.mkdir("other") if what == "directory" else direct.symlink("to", "other")
    (direct.shared / "f").write_bytes(b"content")
    direct.settle()
    ino = direct.inode("f")
    with stalled(direct, "rename.fsync_dir") as stall:
        node = direct.fs.tree.nodes[ino]
        root = direct.fs.tree.directory(ROOT_INO)
        direct.run(direct.fs.names.rename, root, b"f", root, b"other", RENAME_EXCHANGE)
        assert stall.reached.wait(10)
        opening = beside(direct.run, direct.fs.files.open, node, os.O_RDONLY, CALLER)
        time.sleep(0.05)  # it waits for the exchange
        stall.release()
        handle = opening.result(10)
    assert direct.run(direct.fs.ranges.read, handle, 0, 10) == b"content"
    direct.run(direct.fs.files.release, handle)


def test_open_file_survives_its_commit_and_its_removal(direct: Direct) -> None:
    direct.write_file("f", b"content")
    fd = direct.open("f")
    direct.settle()
    assert direct.pread(fd, 10, 0) == b"content"
    direct.unlink("f")
    direct.settle()
    direct.drop_caches()
    assert direct.pread(fd, 10, 0) == b"content"
    assert direct.fstat(fd).nlink == 0
    direct.close(fd)
    wait_until(lambda: direct.run_sync(lambda: not direct.fs.tree.objects), "the copy to go")


def test_number_of_a_node_stays_over_commits(direct: Direct) -> None:
    seen = set()
    for round_ in range(4):
        direct.write_file("f", b"x" * round_)
        seen.add(direct.inode("f"))
        direct.settle()
        seen.add(direct.inode("f"))
    assert len(seen) == 1


def test_commit_while_a_file_is_read_and_written(direct: Direct) -> None:
    direct.write_file("f", b"0" * 10)
    with stalled(direct, "put.rename") as stall:
        direct.go()
        assert stall.reached.wait(10)
        fd = direct.open("f", os.O_RDWR)
        direct.pwrite(fd, b"1", 0)
        stall.release()
        wait_until(lambda: (direct.shared / "f").exists(), "the first version")
        direct.pwrite(fd, b"2", 1)
        direct.close(fd)
    assert direct.read_file("f") == b"1200000000"
    direct.settle()
    assert OsCalls(direct.shared).read_file("f") == b"1200000000"


def test_an_object_that_is_swept_as_an_orphan_and_disposed_of_at_once(direct: Direct) -> None:
    """The last handle of a file without a name is closed just as the sweep at the start sees it."""
    core = direct.fs.core
    direct.system.hook = stall = Stall("local.remove")

    async def race() -> None:
        obj = core.add_object(Kind.FILE, Content.DATA)
        create = partial(
            core.store.create, obj.id, Kind.FILE, mode=0o600, uid=0, gid=0, parent=ROOT, name=b"f"
        )
        os.close(await core.local(create))
        assert core.unused(obj)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.remove_orphan, obj.id)
            await trio.to_thread.run_sync(stall.reached.wait)
            await core.dispose(obj)
            stall.release()
        assert obj.id not in core.doomed

    direct.run(race)
