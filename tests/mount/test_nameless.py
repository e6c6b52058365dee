"""O_TMPFILE: as on XFS, and what a killed writer, worker or node leaves of such files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.behaviour.calls import link_open
from tests.harness import Node, wait_until
from tests.harness.errors import fails_with
from tests.harness.parity import Tree

WRITER = """
import os, sys
from tests.behaviour.calls import link_open
directory, name = sys.argv[1:]
fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o644)
os.write(fd, b"content" * 100_000)
if name:
    link_open(fd, directory + "/" + name)
print("done", flush=True)
sys.stdin.read()
"""


def objects(node: Node) -> list[Path]:
    return [path for path in (node.local / "objects").rglob("*") if path.is_file()]


def test_a_file_without_a_name(tree: Tree) -> None:
    os.umask(0o027)
    (tree / "d").mkdir()
    os.chown(tree / "d", 0, 7)
    os.chmod(tree / "d", 0o2775)
    (tree / "taken").touch()
    tree.commit_here()
    fd = os.open(tree / "d", os.O_TMPFILE | os.O_RDWR, 0o666)
    st = os.fstat(fd)
    tree.saw("new", (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink))
    os.write(fd, b"content")
    os.fchmod(fd, 0o4755)
    os.setxattr(fd, "user.x", b"y")
    os.utime(fd, ns=(3, 4))
    assert os.listdir(tree / "d") == []
    with fails_with(errno.EEXIST):
        link_open(fd, tree / "taken")
    link_open(fd, tree / "d" / "f")
    link_open(fd, tree / "second")
    st = os.fstat(fd)
    tree.saw("named", (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink, st.st_mtime_ns))
    assert os.path.samestat(st, os.stat(tree / "second"))
    os.close(fd)
    tree.commit_here()
    st = os.stat(tree / "d" / "f")
    tree.saw("closed", (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink, st.st_mtime_ns))
    assert (tree / "second").read_bytes() == b"content"
    assert os.getxattr(tree / "d" / "f", "user.x") == b"y"
    fd = os.open(tree / "d", os.O_TMPFILE | os.O_WRONLY | os.O_EXCL, 0o666)
    with fails_with(errno.ENOENT):
        link_open(fd, tree / "never")
    os.close(fd)
    with fails_with(errno.EINVAL):
        os.open(tree / "d", os.O_TMPFILE | os.O_RDONLY)


@pytest.mark.parametrize("name", ["f", ""])
def test_its_writer_is_killed(node: Node, name: str) -> None:
    """What has a name is whole, though it was never closed; what has none is gone."""
    before = len(objects(node))
    words = [sys.executable, "-c", WRITER, str(node.mount), name]
    writer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"done\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    node.settle()
    if name:
        assert (node.shared / name).read_bytes() == b"content" * 100_000
    assert os.listdir(node.mount) == ([name] if name else [])
    wait_until(lambda: len(objects(node)) <= before + len(name), "no content to be left over")


def test_a_new_worker_goes_on_with_it(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["supervisor"] = True
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)"]
    node.start()
    fds = [os.open(node.mount, os.O_TMPFILE | os.O_RDWR) for _ in range(3)]
    for fd in fds:
        os.write(fd, b"before ")
    node.kill_worker()
    for number, fd in enumerate(fds[:2]):
        os.write(fd, b"after")
        link_open(fd, node.mount / f"f{number}")
    node.kill_worker()
    for fd in fds:
        os.close(fd)
    node.settle()
    assert sorted(os.listdir(node.mount)) == ["f0", "f1"]
    assert (node.shared / "f1").read_bytes() == b"before after"
