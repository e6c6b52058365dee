"""What the next worker of a mount makes of what the one before it left (G6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from tests.behaviour.calls import OsCalls, error_of
from tests.behaviour.workers import Workers
from tests.faults import Stall
from tests.harness import wait_until
from tierfs.model import ROOT, OpKind


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
