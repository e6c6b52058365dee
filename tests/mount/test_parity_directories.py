"""Directories and listings: each case on plain XFS first, then on the mount."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import threading
from pathlib import Path

from tests.harness import wait_until
from tests.harness.errors import fails_with
from tests.harness.parity import Tree, names

_libc = ctypes.CDLL(None, use_errno=True)


def test_remove_directories(tree: Tree) -> None:
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    with fails_with(errno.ENOTEMPTY):
        os.rmdir(tree / "d")
    with fails_with(errno.ENOTDIR):
        os.rmdir(tree / "f")
    with fails_with(errno.EEXIST):
        os.mkdir(tree / "d")
    os.rmdir(tree / "d" / "e")
    os.rmdir(tree / "d")
    assert names(tree.path) == ["f"]


def test_directory_made_again_is_empty(tree: Tree) -> None:
    (tree / "d").mkdir()
    (tree / "d" / "old").write_bytes(b"old")
    tree.commit_here()
    shutil.rmtree(tree / "d")
    (tree / "d").mkdir()
    assert names(tree / "d") == []
    (tree / "d" / "new").write_bytes(b"new")
    assert names(tree / "d") == ["new"]


def test_rmtree_of_a_checkpoint(tree: Tree) -> None:
    """Beside a whole one: the last would be held on the shared tier."""
    for step in (1, 2):
        weights = tree / f"checkpoint-{step}" / "pytorch_model_fsdp_0"
        weights.mkdir(parents=True)
        for shard in range(4):
            (weights / f"__{shard}_0.distcp").write_bytes(bytes(1000))
        (weights / ".metadata").write_bytes(b"m")
        (tree / f"checkpoint-{step}" / "trainer_state.json").write_bytes(b"{}")
    tree.commit_here()
    shutil.rmtree(tree / "checkpoint-1")
    assert names(tree.path) == ["checkpoint-2"]


def test_rmtree_while_others_read(tree: Tree) -> None:
    (tree / "d").mkdir()
    for index in range(50):
        (tree / "d" / f"f{index}").write_bytes(b"content %d" % index)
    tree.commit_here()
    stop, failures = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                for name in os.listdir(tree / "d"):
                    assert (tree / "d" / name).read_bytes() == b"content " + name[1:].encode()
            except FileNotFoundError:
                continue
            except BaseException as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    shutil.rmtree(tree / "d")
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert names(tree.path) == []


def test_deep_directories(tree: Tree) -> None:
    deep = tree.path.joinpath(*["level"] * 40)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"deep")
    tree.commit_here()
    assert (deep / ".." / ".." / "level" / "level" / "f").read_bytes() == b"deep"


class _Stream:
    """A directory stream with telldir and seekdir, which the standard library does not have."""

    class _Dirent(ctypes.Structure):
        _fields_ = (
            ("ino", ctypes.c_uint64),
            ("off", ctypes.c_int64),
            ("reclen", ctypes.c_uint16),
            ("type", ctypes.c_uint8),
            ("name", ctypes.c_char * 256),
        )

    def __init__(self, path: Path) -> None:
        _libc.opendir.restype = ctypes.c_void_p
        _libc.telldir.restype = ctypes.c_long
        _libc.readdir.restype = ctypes.POINTER(self._Dirent)
        self._stream = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))

    def read(self, count: int = 1 << 30) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count and (entry := _libc.readdir(self._stream)):
            if entry.contents.name not in (b".", b".."):
                found.append(entry.contents.name)
        return found

    def told(self) -> dict[bytes, tuple[int, int]]:
        """d_ino and d_type of all that is left, `.` and `..` included."""
        found = {}
        while entry := _libc.readdir(self._stream):
            found[entry.contents.name] = entry.contents.ino, entry.contents.type
        return found

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._stream, ctypes.c_long(position))

    def close(self) -> None:
        _libc.closedir(self._stream)


def test_a_listing_begins_with_the_dots(tree: Tree) -> None:
    """As readdir(3) tells them: what ls -a shows, and what a program may rely on (xfstests 401)."""
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "d" / "f").touch()
    tree.commit_here()
    for directory in (tree.path, tree / "d", tree / "d" / "e"):
        stream = _Stream(directory)
        start = stream.tell()
        told = stream.told()
        assert list(told)[:2] == [b".", b".."] or tree.side == "plain"
        for name, (ino, kind) in told.items():
            st = os.lstat(os.fsencode(directory) + b"/" + name)
            assert (ino, kind << 12) == (st.st_ino, stat.S_IFMT(st.st_mode)), name
        stream.seek(start)
        assert stream.told() == told
        stream.close()


def test_large_directory_with_seeks(tree: Tree) -> None:
    (tree / "d").mkdir()
    want = {f"entry-{index:05d}".encode() for index in range(2000)}
    for name in want:
        os.close(os.open(os.fsencode(tree / "d") + b"/" + name, os.O_CREAT | os.O_WRONLY, 0o644))
    stream = _Stream(tree / "d")
    first = stream.read(700)
    position = stream.tell()
    middle = stream.read(700)
    tree.commit_here()
    stream.seek(position)
    rest = stream.read()
    stream.close()
    assert rest[: len(middle)] == middle
    assert sorted(first + rest) == sorted(want)


def test_directory_read_while_entries_go(tree: Tree) -> None:
    (tree / "d").mkdir()
    for index in range(600):
        (tree / "d" / f"keep-{index:04d}").touch()
        (tree / "d" / f"drop-{index:04d}").touch()
    tree.commit_here()
    stream = _Stream(tree / "d")
    seen = stream.read(100)
    for index in range(600):
        os.unlink(tree / "d" / f"drop-{index:04d}")
    seen += stream.read()
    stream.close()
    kept = [name for name in seen if name.startswith(b"keep")]
    assert len(kept) == len(set(kept)) == 600


def test_parallel_mkdir_of_one_path(tree: Tree) -> None:
    outcomes: list[str] = []

    def make() -> None:
        try:
            os.mkdir(tree / "shared")
            outcomes.append("made")
        except FileExistsError:
            outcomes.append("exists")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["exists"] * 7 + ["made"]


def test_directory_times_follow_entries(tree: Tree) -> None:
    (tree / "d").mkdir()
    os.utime(tree / "d", ns=(10**18, 10**18))
    tree.commit_here()
    assert (tree / "d").stat().st_mtime_ns == 10**18
    (tree / "d" / "f").write_bytes(b"x")
    after_create = (tree / "d").stat().st_mtime_ns
    assert after_create > 10**18
    os.rename(tree / "d" / "f", tree / "d" / "g")
    after_rename = (tree / "d").stat().st_mtime_ns
    assert after_rename >= after_create
    os.unlink(tree / "d" / "g")
    assert (tree / "d").stat().st_mtime_ns >= after_rename


def test_directory_link_counts(tree: Tree) -> None:
    def becomes(path: Path, links: int) -> None:
        wait_until(lambda: path.stat().st_nlink == links, f"{path}: {links} links")

    (tree / "d" / "e").mkdir(parents=True)
    tree.commit_here()
    becomes(tree / "d", 3)
    (tree / "d" / "e").rmdir()
    becomes(tree / "d", 2)
    becomes(tree.path, 3)
