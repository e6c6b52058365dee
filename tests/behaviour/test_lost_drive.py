"""What the local drive took with it, removed and replaced by who has decided about it (G9)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

import pytest

from tests.behaviour.direct import Direct
from tests.faults import failing
from tests.harness import wait_until
from tierfs.errors import JournalError
from tierfs.model import ROOT


@pytest.fixture
def direct(make_direct: Callable[..., Direct]) -> Direct:
    """The drive has failed: a new version of `x` and `y` went with it, `z`, and the directory `e`.

    `c` is committed as it is.
    """
    direct = make_direct()
    direct.mkdir("d")
    for name in "xyc":
        direct.write_file(f"d/{name}", b"old")
    direct.settle()
    direct.restart(held=True)
    direct.mkdir("e")
    for path in ("d/x", "d/y", "d/z", "e/f"):
        direct.write_file(path, b"new")

    def fail() -> None:
        direct.rooms.journal._writer.lost = JournalError("the drive has failed")
        assert direct.fs.drive.look()

    direct.run_sync(fail)
    direct.go()
    wait_until(lambda: direct.rooms.store.spread._near is None, "the drive to be let go of")
    return direct


def shared(direct: Direct) -> dict[str, bytes]:
    """The files of `d` there, some of which may go just now."""
    found = {}
    for path in (direct.shared / "d").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[f"d/{path.name}"] = path.read_bytes()
    return found


def may_return(direct: Direct) -> bool:
    """Whether nothing is pending that the drive would not know of."""
    return not direct.run_sync(direct.fs.drive._knows_more)


def test_a_lost_file_is_removed_though_others_are_lost(direct: Direct) -> None:
    direct.unlink("d/x")
    wait_until(lambda: shared(direct) == {"d/y": b"old", "d/c": b"old"}, "its old version to go")
    wait_until(lambda: may_return(direct), "nothing to be pending")
    assert sorted(direct.listdir("d")) == ["c", "y", "z"]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_lost_file_is_replaced_though_others_are_lost(direct: Direct, is_open: bool) -> None:
    """`is_open`: its descriptor is not released yet, as just after a close that was waited for."""
    direct.write_file("d/t", b"third")
    fd = direct.open("d/t", os.O_RDWR) if is_open else 0
    direct.rename("d/t", "d/x")
    if is_open:
        direct.close(fd)
    want = {"d/x": b"third", "d/y": b"old", "d/c": b"old"}
    wait_until(lambda: shared(direct) == want, "the new version")
    wait_until(lambda: may_return(direct), "nothing to be pending")
    assert direct.read_file("d/x") == b"third"


@pytest.mark.parametrize("how", ["unlink", "rename"])
def test_what_is_not_lost_stays_until_what_is_lost_is_decided(direct: Direct, how: str) -> None:
    """It may be what the lost files were to replace (G4)."""
    direct.unlink("d/x")
    direct.unlink("d/y")
    if how == "unlink":
        direct.unlink("d/c")
    else:
        direct.write_file("d/t", b"third")
        direct.rename("d/t", "d/c")
    wait_until(lambda: not {"d/x", "d/y"} & shared(direct).keys(), "those that are decided to go")
    assert not may_return(direct)
    assert shared(direct)["d/c"] == b"old"
    direct.unlink("d/z")
    want = {} if how == "unlink" else {"d/c": b"third"}
    wait_until(lambda: shared(direct) == want, "all to be as it was asked for")
    wait_until(lambda: may_return(direct), "nothing to be pending")


def test_a_lost_directory_is_removed(direct: Direct) -> None:
    direct.unlink("e/f")
    direct.rmdir("e")
    assert direct.listdir() == ["d"]
    ops = direct.run_sync(lambda: [op.path for op in direct.rooms.backlog.under(ROOT)])
    assert (b"e",) not in ops
    assert not os.path.lexists(direct.shared / "e")


def test_a_file_is_closed_though_the_drive_fails_just_then(
    make_direct: Callable[..., Direct],
) -> None:
    """The kernel tells of a close but once, and does not ask what became of it."""
    direct = make_direct()
    fd = direct.open("f", os.O_CREAT | os.O_WRONLY)
    direct.write(fd, b"new")
    direct.system.hook = failing("room.size", errno.EIO)
    direct.close(fd)
    assert "room.size" in direct.system.seen
    direct.settle()
    assert (direct.shared / "f").read_bytes() == b"new"
