"""What is pending in a directory that was moved since is asked for, and told of, where it is."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import trio

from tests.behaviour.direct import Direct
from tests.behaviour.test_removal_cut_off import FIRST, NAMES, flush, killed, save
from tests.harness import wait_until
from tierfs.control import requests
from tierfs.control.server import Peer
from tierfs.daemon.checkpoints import CheckpointReport
from tierfs.daemon.committing import CheckpointHandlers
from tierfs.daemon.report import Report


def pending(direct: Direct, path: str) -> set[str]:
    """What a flush of `path` waits for, by the paths that it is told of."""
    report, top = Report(direct.rooms), direct.rooms.mountpoint
    ops = direct.run(report.ops_under, f"{top}/{path}".rstrip("/"))
    return {report.path_of(op).removeprefix(f"{top}/") for op in ops}


def test_a_flush_finds_what_was_begun_before_its_directory_was_moved(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct()
    for path in ("run", "run/inner", "elsewhere"):
        direct.mkdir(path)
    direct.settle()
    direct.restart(held=True)
    direct.write_file("run/closed", b"before")
    fd = direct.open("run/inner/open", os.O_WRONLY | os.O_CREAT)
    direct.rename("run", "elsewhere/run")
    direct.write(fd, b"after")
    direct.close(fd)
    files = {"elsewhere/run/closed", "elsewhere/run/inner/open"}
    for top in ("elsewhere", "elsewhere/run", ""):
        assert files <= pending(direct, top), top
    for file in files:
        assert pending(direct, file) == {file}
    assert "elsewhere/run/closed" not in pending(direct, "elsewhere/run/inner")
    direct.restart(held=True)
    assert files <= pending(direct, "elsewhere")
    direct.settle()
    assert pending(direct, "elsewhere") == set()


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_held_removal_is_told_of_and_let_go_where_its_directory_is_now(
    make_direct: Callable[..., Direct], cut_off: bool
) -> None:
    direct = make_direct()
    direct.mkdir("run")
    save(direct, f"run/{FIRST}")
    direct.settle()
    flush(direct)
    if cut_off:
        with killed(direct):
            direct.unlink(f"run/{FIRST}/{NAMES[0]}")
    else:
        for name in NAMES:
            direct.unlink(f"run/{FIRST}/{name}")
        direct.rmdir(f"run/{FIRST}")
    wait_until(lambda: direct.listdir("run") == [], "it to be unlisted")
    direct.settle_but_held()
    direct.rename("run", "old")
    direct.mkdir("run")
    direct.settle_but_held()
    top, rooms, peer = direct.rooms.mountpoint, direct.rooms, Peer(os.getpid(), 0, 0)
    limiter = trio.CapacityLimiter(1)
    known = CheckpointReport(rooms, Report(rooms), limiter)
    commands = CheckpointHandlers(rooms, Report(rooms), known, limiter)

    async def tell(_: object) -> None:
        pass

    def held(path: str) -> list[str]:
        request = requests.Checkpoints(path=f"{top}/{path}")
        found, _ = direct.run(commands.checkpoints, request, peer, tell)
        return [each.path for each in found.removals]

    def purged(path: str) -> list[str]:
        request = requests.Purge(paths=(f"{top}/{path}",))
        return [each.path for each in direct.run(commands.purge, request, peer, tell)[0].purged]

    assert (held("run"), held("old")) == ([], [f"{top}/old/{FIRST}"])
    settled, code = direct.run(
        commands.settled, requests.Settled(path=f"{top}/old", timeout=20.0), peer, tell
    )
    assert (code, settled.pending, settled.latest) == (0, (), None)
    assert purged("run") == []
    assert (direct.shared / "old" / FIRST).exists()
    assert purged("old") == [f"{top}/old/{FIRST}"]
    direct.settle()
    assert not (direct.shared / "old" / FIRST).exists()
    assert held("old") == []
