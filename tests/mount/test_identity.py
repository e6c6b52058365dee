"""What the mount knows of a directory or file stays known: over restarts, forgets and commits."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.harness import Node, wait_until
from tests.harness.devices import immutable
from tierfs.namespace.chores import TICK_SECONDS
from tierfs.namespace.clock import file_time_ns


def drop_caches() -> None:
    """The kernel forgets every directory and file that is not in use."""
    Path("/proc/sys/vm/drop_caches").write_text("2")


def objects(node: Node) -> list[str]:
    """The objects of the local tier."""
    return [path.name for path in (node.local / "objects").glob("*/*")]


def test_pending_changes_in_a_directory_made_without_tierfs_outlive_a_restart(node: Node) -> None:
    node.expected = ["forbidden by the shared tier"]
    foreign = node.shared / "foreign"
    foreign.mkdir()
    (foreign / "old").write_bytes(b"old")
    with immutable(foreign):
        (node.mount / "foreign" / "new").write_bytes(b"new")
        (node.mount / "foreign" / "old").unlink()
        for again in (drop_caches, node.kill):
            again()
            if not node.is_alive():
                node.start()
            assert os.listdir(node.mount / "foreign") == ["new"]
            assert (node.mount / "foreign" / "new").read_bytes() == b"new"
            assert not (node.mount / "foreign" / "old").exists()
    node.settle()
    assert os.listdir(foreign) == ["new"]


def test_directory_with_a_pending_change_is_the_same_after_a_restart(node: Node) -> None:
    node.expected = ["forbidden by the shared tier"]
    (node.mount / "d").mkdir()
    (node.mount / "d" / "f").write_bytes(b"f")
    node.settle()
    with immutable(node.shared / "d"):
        (node.mount / "d").chmod(0o700)
        (node.mount / "d" / "f").unlink()
        node.kill()
        node.start()
        assert os.listdir(node.mount / "d") == []
        (node.mount / "d").rmdir()
        assert not (node.mount / "d").exists()
    node.settle()
    assert not (node.shared / "d").exists()
    node.kill()
    node.start()
    assert not (node.mount / "d").exists()


def test_nothing_is_left_of_files_that_were_rewritten_listed_and_removed(node: Node) -> None:
    folder = node.mount / "d"
    for settle in (False, True):
        folder.mkdir()
        for index in range(8):
            (folder / f"f{index}").write_bytes(b"first")
        if settle:
            node.settle()
        for entry in os.scandir(folder):
            entry.stat()
            with open(entry.path, "r+b") as file:
                file.write(b"again")
        if settle:
            node.settle()
        shutil.rmtree(folder)
    node.settle()
    wait_until(lambda: not objects(node), "the objects of removed files to go")


def test_removal_of_a_directory_that_was_just_changed_outlives_a_kill(node: Node) -> None:
    folder = node.mount / "d"
    folder.mkdir()
    node.settle()
    node.expected = ["forbidden by the shared tier"]
    folder.chmod(0o700)
    wait_until(lambda: (node.shared / "d").stat().st_mode & 0o777 == 0o700, "the commit", poll=0.01)
    with immutable(node.shared):
        folder.rmdir()
        (node.mount / "marker").mkdir()
        time.sleep(2 * TICK_SECONDS)  # the cleaning up of what the chmod needed
        node.kill()
    node.start()
    assert not folder.exists()
    node.settle()
    assert not (node.shared / "d").exists()


def test_links_are_counted_after_a_restart(node: Node) -> None:
    node.expected = ["forbidden by the shared tier"]
    folder = node.mount / "d"
    folder.mkdir()
    one, two, three, other = (folder / name for name in ("one", "two", "three", "other"))
    one.write_bytes(b"1")
    other.write_bytes(b"other")
    node.settle()
    with immutable(node.shared / "d"):
        os.link(one, two)
        os.link(one, three)
        with one.open("ab") as file:
            file.write(b"2")
        other.rename(one)
        assert two.stat().st_nlink == three.stat().st_nlink == 2
        node.kill()
        node.start()
        assert two.stat().st_nlink == three.stat().st_nlink == 2
    node.settle()
    assert two.read_bytes() == three.read_bytes() == b"12"
    assert one.read_bytes() == b"other"
    assert two.stat().st_nlink == three.stat().st_nlink == 2


def take_number(node: Node, inode: int, path: Path) -> None:
    """Another node's file with the number `inode` appears at `path` on the shared tier."""
    generations = (node.shared / ".tierfs" / "staging").glob("*/*")
    (staging,) = (each for each in generations if each.name != "spilled")
    for index in range(2000):
        made = staging / f"0-{index}"
        made.write_bytes(b"another")
        if made.stat().st_ino == inode:
            made.rename(path)
            return
    raise AssertionError(f"inode number {inode} was not used again")


def test_the_number_of_a_replaced_version_may_be_that_of_another_file(node: Node) -> None:
    """A version is committed over the one before while a third is being written."""
    (node.mount / "f").write_bytes(b"one")
    node.settle()
    first = (node.shared / "f").stat().st_ino
    ino = (node.mount / "f").stat().st_ino
    with (node.mount / "f").open("ab") as file:
        file.write(b" two")
    with (node.mount / "f").open("ab") as file:
        wait_until(lambda: (node.shared / "f").read_bytes() == b"one two", "the second version")
        take_number(node, first, node.shared / "again")
        assert (node.mount / "again").read_bytes() == b"another"
        file.write(b" three")
    node.settle()
    for path in (node.shared, node.mount):
        assert (path / "f").read_bytes() == b"one two three"
        assert (path / "again").read_bytes() == b"another"
    assert (node.mount / "f").stat().st_ino == ino


def test_the_number_of_a_file_that_another_node_replaced_may_be_that_of_another(node: Node) -> None:
    (node.mount / "f").write_bytes(b"one")
    node.settle()
    first = (node.shared / "f").stat().st_ino
    with (node.mount / "f").open("ab") as file:
        file.write(b" two")
        file.flush()
        (node.shared / "theirs").write_bytes(b"theirs")
        (node.shared / "theirs").rename(node.shared / "f")
        take_number(node, first, node.shared / "again")
        assert (node.mount / "again").read_bytes() == b"another"
    node.settle()
    for path in (node.shared, node.mount):
        assert (path / "f").read_bytes() == b"one two"
        assert (path / "again").read_bytes() == b"another"


def test_opened_on_top_of_what_was_then_sent_and_left_as_it_is(node: Node) -> None:
    """The version that was sent is the committed one of the file that is open."""
    (node.mount / "f").write_bytes(b"one")
    node.settle()
    ino = (node.mount / "f").stat().st_ino
    (node.mount / "f").write_bytes(b"two")
    with (node.mount / "f").open("ab"):
        wait_until(lambda: (node.shared / "f").read_bytes() == b"two", "the second version")
    node.settle()
    drop_caches()
    assert (node.mount / "f").stat().st_ino == ino
    (node.mount / "f").write_bytes(b"three")
    node.settle()
    assert (node.shared / "f").read_bytes() == b"three"


def test_link_counts_and_ctime_while_names_come_and_go(node: Node) -> None:
    """A file that loses a name to another has one less at once, sent or not, and a new ctime."""
    for pause in (False, True):
        where = node.mount / f"d{pause}"
        where.mkdir()

        def commit(pause: bool = pause) -> None:
            if pause:
                node.settle()

        (where / "a").write_bytes(b"first")
        os.link(where / "a", where / "b")
        commit()
        (where / "c").write_bytes(b"second")
        before = (where / "a").stat().st_ctime_ns
        wait_until(lambda now=before: file_time_ns() > now, "the clock of file times to go on")
        os.rename(where / "c", where / "b")
        st = (where / "a").stat()
        assert (st.st_nlink, st.st_ctime_ns > before) == (1, True)
        os.rename(where / "b", where / "e")
        (where / "b").write_bytes(b"third")
        assert [(where / name).stat().st_nlink for name in "abe"] == [1, 1, 1]
        with (where / "a").open("rb") as opened:
            os.link(where / "a", where / "f")
            assert os.fstat(opened.fileno()).st_nlink == 2
            (where / "e").rename(where / "f")
            os.unlink(where / "a")
            assert os.fstat(opened.fileno()).st_nlink == 0
            node.settle()
            assert os.fstat(opened.fileno()).st_nlink == 0
        assert sorted(os.listdir(where)) == ["b", "f"]
        assert [(where / name).stat().st_nlink for name in "bf"] == [1, 1]


def descend(top: Path, name: str, depth: int, *, make: bool = False) -> int:
    """A descriptor of the directory that many times `name` below `top`."""
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        if make:
            os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    return at


def test_a_path_longer_than_any_call_takes(node: Node) -> None:
    """It is reached by steps, as on a local file system, and committed."""
    deep = descend(node.mount, "d" * 200, 25, make=True)
    os.mkdir("inside", dir_fd=deep)
    with open(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=deep), "wb") as file:
        file.write(b"deep down")
    node.settle()
    os.rename("f", "g", src_dir_fd=deep, dst_dir_fd=deep)
    os.rmdir("inside", dir_fd=deep)
    node.settle()
    shared = descend(node.shared, "d" * 200, 25)
    assert os.listdir(shared) == os.listdir(deep) == ["g"]
    with open(os.open("g", os.O_RDONLY, dir_fd=shared), "rb") as file:
        assert file.read() == b"deep down"
    os.close(deep)
    os.close(shared)
