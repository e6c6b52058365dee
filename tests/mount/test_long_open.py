"""R2, `open_hold`: a file that a forked child keeps open is sent all the same."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.harness import Node, wait_until


def test_file_kept_open_by_a_child_is_sent_as_it_was_closed(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings = {"open_hold": 1.0}
    node.start()
    path = node.mount / "held"
    there = node.shared / "held"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    kept = os.dup(fd)
    os.write(fd, b"as it was closed")
    os.close(fd)
    wait_until(there.exists, "the closed content to be sent")
    assert there.read_bytes() == b"as it was closed"
    assert node.status()["open_for_write"] == 1
    assert path.read_bytes() == b"as it was closed"
    os.pwrite(kept, b"AND", 0)
    assert path.read_bytes() == b"ANDit was closed"
    os.close(kept)
    node.settle()
    assert there.read_bytes() == b"ANDit was closed"
    assert path.read_bytes() == b"ANDit was closed"


def test_file_kept_open_and_never_changed_is_sent_once(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings = {"open_hold": 1.0}
    node.start()
    there = node.shared / "held"
    fd = os.open(node.mount / "held", os.O_WRONLY | os.O_CREAT)
    kept = os.dup(fd)
    os.write(fd, b"x")
    os.close(fd)
    wait_until(there.exists, "the closed content to be sent")
    wait_until(lambda: node.status()["pending_ops"] == 0, "the end of that")
    inode = there.stat().st_ino
    os.close(kept)
    node.settle()
    wait_until(lambda: node.status()["pending_ops"] == 0, "the last close to be over")
    assert there.stat().st_ino == inode
