"""Files that are renamed while a version of them is not sent yet: what is on the shared tier stays.

Nobody removed it, and what is being written may never be closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.behaviour.direct import Direct
from tierfs.model import ROOT

WAYS = ["straight", "restarted"]


def on_shared(direct: Direct) -> dict[str, bytes]:
    """The files on the shared tier."""
    tops = [path for path in direct.shared.iterdir() if path.name != ".tierfs"]
    files = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    return {str(path.relative_to(direct.shared)): path.read_bytes() for path in files}


def begin(direct: Direct, path: str, content: bytes) -> int:
    fd = direct.open(path, os.O_RDWR)
    direct.pwrite(fd, content, 0)
    return fd


@pytest.fixture
def direct(make_direct: Callable[..., Direct]) -> Direct:
    """With a committed file in each of two directories."""
    direct = make_direct()
    for directory in ("one", "two"):
        direct.mkdir(directory)
        direct.write_file(f"{directory}/a", b"v1 of " + directory.encode())
    direct.settle()
    return direct


def test_what_was_committed_moves_before_the_next_version_is_closed(direct: Direct) -> None:
    fd = begin(direct, "one/a", b"v2")
    direct.rename("one/a", "two/b")
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v1 of two", "two/b": b"v1 of one"}
    assert direct.read_file("two/b") == b"v2 of one"
    direct.close(fd)
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v1 of two", "two/b": b"v2 of one"}


def test_the_name_that_it_left_is_anothers(direct: Direct) -> None:
    fd = begin(direct, "one/a", b"v2")
    direct.rename("one/a", "one/b")
    direct.write_file("one/a", b"another")
    direct.settle()
    assert on_shared(direct) == {
        "one/a": b"another", "one/b": b"v1 of one", "two/a": b"v1 of two",
    }  # fmt: skip
    direct.unlink("one/b")
    direct.close(fd)
    direct.settle()
    assert on_shared(direct) == {"one/a": b"another", "two/a": b"v1 of two"}


def test_it_takes_the_place_of_another_that_was_committed(direct: Direct) -> None:
    fd = begin(direct, "one/a", b"v2")
    direct.rename("one/a", "two/a")
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v1 of one"}
    direct.close(fd)
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v2 of one"}
    assert direct.stat("two/a").nlink == 1


def test_it_is_renamed_again_and_again(direct: Direct) -> None:
    fd = begin(direct, "one/a", b"v2")
    for old, new in (("one/a", "one/b"), ("one/b", "two/b"), ("two/b", "one/a")):
        direct.rename(old, new)
    direct.rename("one/a", "two/c")
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v1 of two", "two/c": b"v1 of one"}
    direct.close(fd)
    direct.settle()
    assert on_shared(direct) == {"two/a": b"v1 of two", "two/c": b"v2 of one"}


@pytest.mark.parametrize("way", WAYS)
def test_a_version_that_is_closed_and_not_sent_goes_after_it(
    make_direct: Callable[..., Direct], way: str
) -> None:
    direct = make_direct()
    direct.mkdir("one")
    direct.mkdir("two")
    direct.write_file("one/a", b"v1")
    direct.settle()
    direct.restart(held=True)
    direct.close(begin(direct, "one/a", b"v2"))
    fd = begin(direct, "one/a", b"v3")
    direct.rename("one/a", "two/b")
    if way == "restarted":
        direct.close(fd)
        direct.restart(held=True)
    direct.settle()
    assert on_shared(direct) == {"two/b": b"v3" if way == "restarted" else b"v2"}
    if way == "straight":
        direct.close(fd)
        direct.settle()
        assert on_shared(direct) == {"two/b": b"v3"}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_there_when_the_writer_is_gone_with_the_daemon(direct: Direct, way: str) -> None:
    if way == "restarted":
        direct.restart(held=True)
    begin(direct, "one/a", b"v2")
    direct.rename("one/a", "two/b")
    if way == "straight":
        direct.settle()
    direct.restart()
    backlog = direct.rooms.backlog
    torn = direct.run_sync(lambda: list(backlog.marked()))
    assert [op.path for op in torn] == [(b"two", b"b")]
    wait_for_quiet(direct)
    assert on_shared(direct) == {"two/a": b"v1 of two", "two/b": b"v1 of one"}
    direct.run(direct.rooms.fs.decisions.discard, torn[0])
    assert direct.read_file("two/b") == b"v1 of one"


def wait_for_quiet(direct: Direct) -> None:
    """All that is no torn file is committed."""
    backlog = direct.rooms.backlog
    ops = direct.run_sync(lambda: [op for op in backlog.under(ROOT) if op.mark is None])
    direct.run(direct.rooms.writeback.wait, ops)
