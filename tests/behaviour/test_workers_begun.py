"""A worker that dies when a file is made, or emptied, and nobody has been told that it is open."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from tests.behaviour.calls import OsCalls
from tests.behaviour.direct import CALLER
from tests.behaviour.workers import Workers
from tests.harness import wait_until
from tierfs.errors import JournalError
from tierfs.model import ROOT, OpState
from tierfs.namespace.overlay.nodes import Handle
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.namespace.restart import begun


def open_and_die(workers: Workers, path: str, flags: int) -> None:
    """The row of the open file is written; that it is open is neither remembered nor answered."""
    files, opening = workers.fs.files, workers.fs.files._opening
    grant = opening.grant

    async def dying(handle: Handle) -> None:
        await workers.rooms.journal.written()
        workers.die()
        await grant(handle)

    opening.grant = dying  # type: ignore[method-assign]
    before = workers.counts.copy()
    with suppress(JournalError):
        workers._fds.pop(workers.open(path, flags))
    assert workers.dead
    assert files.handles
    workers.counts = before
    workers.succeed()


def create_again(workers: Workers, name: bytes) -> int:
    """As the kernel asks again."""
    state = workers.fs.tree.directory(ROOT_INO)
    handle = workers.run(workers.fs.files.create_again, state, name, CALLER)
    workers.counts[handle.node.ino] += 1
    return workers._descriptor(handle, os.O_RDWR)


def states(workers: Workers) -> list[str]:
    return workers.run_sync(
        lambda: [str(op.mark or op.state) for op in workers.rooms.backlog.under(ROOT)]
    )


@pytest.mark.parametrize("content", [b"content", b""])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_file_that_is_being_made_is_not_sent_before_it_is_open(
    workers: Workers, content: bytes, deaths: int
) -> None:
    open_and_die(workers, "a", os.O_CREAT | os.O_RDWR)
    for _ in range(deaths - 1):
        workers.kill()
    workers.write_file("b", b"after it")
    wait_until(lambda: states(workers) == [str(OpState.OPEN)], "all but the new file to be sent")
    assert list(OsCalls(workers.shared).tree()) == ["b"]
    fd = create_again(workers, b"a")
    workers.pwrite(fd, content, 0)
    workers.close(fd)
    workers.settle()
    assert (workers.shared / "a").read_bytes() == content


@pytest.mark.parametrize("committed", [True, False])
def test_a_file_that_is_being_emptied_keeps_its_content_on_the_shared_tier(
    workers: Workers, committed: bool
) -> None:
    workers.write_file("a", b"old content")
    if committed:
        workers.settle()
    open_and_die(workers, "a", os.O_WRONLY | os.O_TRUNC)
    workers.write_file("b", b"after it")
    wait_until(lambda: states(workers) == [str(OpState.OPEN)], "what was closed to be sent")
    assert (workers.shared / "a").read_bytes() == b"old content"
    fd = workers.open("a", os.O_WRONLY | os.O_TRUNC)
    workers.pwrite(fd, b"new", 0)
    workers.close(fd)
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b"new"


@pytest.mark.parametrize("flags", [os.O_CREAT | os.O_RDWR, os.O_WRONLY | os.O_TRUNC])
def test_what_nobody_asks_for_again_is_torn(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    """Its maker was killed meanwhile."""
    monkeypatch.setattr(begun, "AGAIN_SECONDS", 0.1)
    if not flags & os.O_CREAT:
        workers.write_file("a", b"old content")
        workers.settle()
    open_and_die(workers, "a", flags)
    wait_until(lambda: states(workers) == ["torn"], "it to be torn")
    before = {"a": b"old content"} if not flags & os.O_CREAT else {}
    found = {path: item.content for path, item in OsCalls(workers.shared).tree().items()}
    assert found == before
    workers.write_file("a", b"new")
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b"new"


def test_a_file_that_is_emptied_by_its_path_is_sent(workers: Workers) -> None:
    """The call is carried out, though nobody is told: truncate(2) leaves nothing open."""
    workers.write_file("a", b"old content")
    workers.settle()
    workers.truncate("a", 0)
    workers.kill()
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b""
