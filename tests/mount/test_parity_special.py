"""Fifos, sockets and devices: as on XFS for whoever is on this node, and for nobody else."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Node
from tests.harness.errors import fails_with
from tests.harness.parity import Tree

KINDS = {
    "fifo": (stat.S_IFIFO, 0),
    "socket": (stat.S_IFSOCK, 0),
    "character": (stat.S_IFCHR, os.makedev(1, 3)),
    "block": (stat.S_IFBLK, os.makedev(7, 200)),
}


def make(path: Path, kind: str, mode: int = 0o640) -> None:
    """mknod(2)."""
    format_, device = KINDS[kind]
    os.mknod(path, format_ | mode, device)


@pytest.mark.parametrize("kind", KINDS)
def test_life_of_a_special_file(tree: Tree, kind: str) -> None:
    make(tree / "a", kind)
    (tree / "d").mkdir()
    st = (tree / "a").lstat()
    tree.saw("new", (st.st_mode, st.st_rdev, st.st_size, st.st_nlink, st.st_uid))
    tree.commit_here()
    os.chmod(tree / "a", 0o4711)
    os.chown(tree / "a", 1, 2)
    os.utime(tree / "a", ns=(3, 4))
    os.setxattr(tree / "a", "trusted.x", b"y")
    with fails_with(errno.EPERM):
        os.setxattr(tree / "a", "user.x", b"y")
    os.link(tree / "a", tree / "b")
    os.rename(tree / "a", tree / "d" / "a")
    os.rename(tree / "d", tree / "e")
    tree.commit_here()
    st = (tree / "e" / "a").lstat()
    tree.saw("moved", (st.st_mode, st.st_rdev, st.st_nlink, st.st_uid, st.st_gid, st.st_mtime_ns))
    tree.saw("names", (sorted(os.listdir(tree.path)), os.listdir(tree / "e")))
    assert os.getxattr(tree / "b", "trusted.x") == b"y"
    with fails_with(errno.EEXIST):
        make(tree / "b", kind)
    with fails_with(errno.ENOTEMPTY):
        os.rmdir(tree / "e")
    os.unlink(tree / "b")
    assert (tree / "e" / "a").lstat().st_nlink == 1
    os.unlink(tree / "e" / "a")
    os.rmdir(tree / "e")


@pytest.mark.parametrize("kind", KINDS)
def test_special_files_replace_and_are_replaced(tree: Tree, kind: str) -> None:
    for name in ("under", "gone", "later"):
        (tree / name).write_bytes(name.encode())
    make(tree / "s", kind)
    make(tree / "t", kind)
    (tree / "dir").mkdir()
    tree.commit_here()
    os.rename(tree / "s", tree / "under")
    assert stat.S_IFMT((tree / "under").lstat().st_mode) == KINDS[kind][0]
    with fails_with(errno.EISDIR):
        os.rename(tree / "under", tree / "dir")
    with fails_with(errno.ENOTDIR):
        os.rename(tree / "dir", tree / "under")
    tree.commit_here()
    os.unlink(tree / "under")
    with fails_with(errno.ENOENT):
        (tree / "under").lstat()
    os.rename(tree / "later", tree / "t")
    assert (tree / "t").read_bytes() == b"later"
    make(tree / "later", kind)
    os.unlink(tree / "gone")
    make(tree / "gone", kind)
    tree.commit_here()
    os.unlink(tree / "gone")
    os.unlink(tree / "later")
    assert sorted(os.listdir(tree.path)) == ["dir", "t"]


def test_bytes_go_through_a_fifo(tree: Tree) -> None:
    os.mkfifo(tree / "fifo", 0o600)
    writer = threading.Thread(target=lambda: (tree / "fifo").write_bytes(b"through"))
    writer.start()
    assert (tree / "fifo").read_bytes() == b"through"
    writer.join()
    with fails_with(errno.ENXIO):
        os.open(tree / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    os.unlink(tree / "fifo")


def test_bytes_go_through_a_socket(tree: Tree) -> None:
    here = os.open(tree.path, os.O_PATH)
    name = f"/proc/self/fd/{here}/socket"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen(1)
        with fails_with(errno.EADDRINUSE):
            client.bind(name)
        client.connect(name)
        with server.accept()[0] as accepted:
            client.send(b"through")
            assert accepted.recv(10) == b"through"
    os.close(here)
    with fails_with(errno.ENXIO):
        os.open(tree / "socket", os.O_RDONLY)
    os.unlink(tree / "socket")


def test_directory_times_follow_special_files(tree: Tree) -> None:
    os.utime(tree.path, ns=(5, 5))
    tree.commit_here()
    make(tree / "a", "fifo")
    made = tree.path.stat().st_mtime_ns
    assert made > 5
    os.unlink(tree / "a")
    tree.commit_here()
    assert tree.path.stat().st_mtime_ns >= made


def test_they_stay_on_their_node(node: Node, make_node: Callable[..., Node]) -> None:
    """Nothing is pending of them, no other node sees them, and a restart loses none."""
    (node.mount / "a" / "d").mkdir(parents=True)
    (node.mount / "b").mkdir()
    for kind in KINDS:
        make(node.mount / "a" / "d" / kind, kind)
    node.settle()
    other = make_node("other").start()
    assert os.listdir(other.mount / "a" / "d") == []
    assert os.listdir(node.shared / "a" / "d") == []
    assert node.status()["pending_ops"] == 0

    os.rename(node.mount / "a" / "d", node.mount / "b" / "d")
    os.link(node.mount / "b" / "d" / "fifo", node.mount / "b" / "again")
    node.settle()
    os.rmdir(node.mount / "a")
    node.settle()
    before = {kind: (node.mount / "b" / "d" / kind).lstat() for kind in KINDS}
    node.kill()
    node.start()
    for kind, st in before.items():
        now = (node.mount / "b" / "d" / kind).lstat()
        assert (now.st_mode, now.st_rdev) == (st.st_mode, st.st_rdev)
    assert (node.mount / "b" / "again").lstat().st_nlink == 2
    assert os.getxattr(node.mount / "b" / "d", "user.tierfs.state") == b"committed"
    os.unlink(node.mount / "b" / "again")
    for kind in KINDS:
        os.unlink(node.mount / "b" / "d" / kind)
    os.rmdir(node.mount / "b" / "d")
    node.settle()
    assert os.listdir(node.shared / "b") == []
