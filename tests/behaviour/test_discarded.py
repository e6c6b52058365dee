"""A torn file is dropped in the moment in which it is written again: what is written is kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from tests.behaviour.calls import beside, error_of
from tests.behaviour.direct import Direct
from tests.faults import Stall
from tierfs.model import ROOT, Mark, Op
from tierfs.namespace.callers import Caller
from tierfs.namespace.overlay.nodes import Handle, Node

AGAIN = os.O_RDWR | os.O_TRUNC


@pytest.fixture(params=["new", "committed"])
def torn(request: pytest.FixtureRequest, make_direct: Callable[..., Direct]) -> Direct:
    """With a torn file `a`, which the shared tier has an older version of, or not."""
    direct = make_direct()
    if request.param == "committed":
        direct.write_file("a", b"old")
        direct.settle()
    direct.open("a", os.O_CREAT | os.O_RDWR)
    direct.restart()
    assert direct.getxattr("a", "user.tierfs.state") == b"torn"
    return direct


def discard(direct: Direct) -> None:
    """As `tierfs discard` does, and whoever makes a checkpoint anew."""

    def op() -> Op:
        (found,) = [op for op in direct.rooms.backlog.under(ROOT) if op.mark is Mark.TORN]
        return found

    direct.run(direct.fs.decisions.discard, direct.run_sync(op))


def test_it_is_not_dropped_while_it_is_being_opened(torn: Direct) -> None:
    stall = Stall("local.create")
    torn.system.hook = stall
    opening = beside(torn.open, "a", AGAIN)
    try:
        assert stall.reached.wait(10)
        assert error_of(discard, torn) == "EBUSY"
    finally:
        torn.system.hook = None
        stall.release()
    fd = opening.result(10)
    torn.pwrite(fd, b"whole", 0)
    torn.close(fd)
    torn.settle()
    assert torn.read_file("a") == b"whole"
    assert (torn.shared / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("flags", [AGAIN, os.O_RDWR])
def test_it_is_written_by_who_had_looked_it_up_before(torn: Direct, flags: int) -> None:
    """What the open finds gone, the kernel looks up again."""

    async def look() -> Node:
        return (await torn._walk("a", follow=True))[0]

    async def opened(node: Node) -> Handle | None:
        try:
            return await torn.fs.files.open(node, flags, Caller(0, 0, 0, 0o022))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return None

    node = torn.run(look)
    discard(torn)
    handle = torn.run(opened, node)
    if handle is None:
        fd = torn.open("a", flags | os.O_CREAT)
    else:
        fd = torn.run_sync(lambda: torn._descriptor(handle, flags))
    torn.pwrite(fd, b"whole", 0)
    torn.close(fd)
    torn.settle()
    assert torn.read_file("a") == b"whole"
    assert (torn.shared / "a").read_bytes() == b"whole"
