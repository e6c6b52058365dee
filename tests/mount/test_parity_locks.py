"""Locks between processes of one node: on plain XFS first, then on the mount."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable

from tests.harness.errors import fails_with
from tests.harness.parity import Tree
from tests.harness.users import as_user

F_OFD_SETLK = 37


def elsewhere(action: Callable[[], None]) -> None:
    """Run `action` in another process: record locks never conflict within one."""
    as_user(action, 0, 0)


def test_flock_between_processes(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    tree.commit_here()

    def attempt(kind: int) -> None:
        with (tree / "f").open("r+b") as other:
            fcntl.flock(other, kind | fcntl.LOCK_NB)

    with (tree / "f").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        elsewhere(lambda: attempt(fcntl.LOCK_SH))
        with fails_with(errno.EAGAIN):
            elsewhere(lambda: attempt(fcntl.LOCK_EX))
    elsewhere(lambda: attempt(fcntl.LOCK_EX))


def test_record_locks_between_processes(tree: Tree) -> None:
    (tree / "f").write_bytes(bytes(100))
    tree.commit_here()

    def attempt(start: int) -> None:
        with (tree / "f").open("r+b") as other:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)

    with (tree / "f").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        elsewhere(lambda: attempt(50))
        with fails_with(errno.EAGAIN, errno.EACCES):
            elsewhere(lambda: attempt(5))
        fcntl.lockf(file, fcntl.LOCK_UN, 10, 0)
        elsewhere(lambda: attempt(5))


def test_open_file_description_locks(tree: Tree) -> None:
    fd = os.open(tree / "manifest.__lock", os.O_CREAT | os.O_RDWR, 0o644)
    whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(fd, F_OFD_SETLK, whole_file)
    other = os.open(tree / "manifest.__lock", os.O_RDWR)
    with fails_with(errno.EAGAIN):
        fcntl.fcntl(other, F_OFD_SETLK, whole_file)
    assert os.fstat(fd).st_ino == os.stat(tree / "manifest.__lock").st_ino
    os.write(fd, b"content")
    os.rename(tree / "manifest.__lock", tree / "manifest")
    with fails_with(errno.EAGAIN):
        fcntl.fcntl(other, F_OFD_SETLK, whole_file)
    os.close(fd)
    fcntl.fcntl(other, F_OFD_SETLK, whole_file)
    os.close(other)
    assert (tree / "manifest").read_bytes() == b"content"
