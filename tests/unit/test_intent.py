"""What the arguments of a system call tell of the name that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.harness import wait_until
from tierfs.namespace.outage.asking import until_it_waits
from tierfs.osio.intent import _leads_to, is_making
from tierfs.osio.processes import is_waiting


@pytest.mark.parametrize(
    ("path", "parent", "name", "found"),
    [
        (b"/mnt/run/f", b"run", b"f", 2),
        (b"/mnt/run/f/", b"run", b"f", 2),
        (b"/mnt/run/f", b"other", b"f", 0),
        (b"/mnt/run/f", b"mnt", b"run", 0),
        (b"f", b"run", b"f", 1),
        (b"./f", b"run", b"f", 1),
        (b"../f", b"run", b"f", 1),
        (b"/mnt/f", b"", b"f", 2),
        (b"/mnt/g", b"", b"f", 0),
    ],
)
def test_where_a_path_leads(path: bytes, parent: bytes, name: bytes, found: int) -> None:
    assert _leads_to(path, parent, name) == found


# opening a fifo blocks in openat(2), so its arguments can be looked at
BLOCKS = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | int(sys.argv[2]))"


@pytest.mark.parametrize(("flags", "makes"), [(0, False), (os.O_CREAT, True)])
def test_a_thread_in_an_open(tmp_path: Path, flags: int, makes: bool) -> None:
    fifo = tmp_path / "run" / "name"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", BLOCKS, str(fifo), str(flags)])
    try:
        call = Path(f"/proc/{process.pid}/wchan")
        wait_until(lambda: "fifo" in call.read_text() or "wait_for_partner" in call.read_text(),
                   "the open to block")  # fmt: skip
        assert is_making(process.pid, b"run", b"name") is makes
        assert not is_making(process.pid, b"run", b"other")
        assert not is_making(process.pid, b"elsewhere", b"name")
    finally:
        process.kill()
        process.wait()


SPINS = "import os, sys\nwhile not os.path.exists(sys.argv[3]): pass\n" + BLOCKS


def test_a_thread_that_has_not_gone_to_sleep_yet_is_waited_for(tmp_path: Path) -> None:
    fifo, enough = tmp_path / "name", tmp_path / "enough"
    os.mkfifo(fifo)
    words = [sys.executable, "-c", SPINS]
    process = subprocess.Popen([*words, str(fifo), str(os.O_CREAT), str(enough)])

    async def ask() -> None:
        with trio.move_on_after(0.1) as scope:
            await until_it_waits(process.pid)
        assert scope.cancelled_caught, "it was not running"
        enough.touch()
        await until_it_waits(process.pid)

    try:
        wait_until(lambda: not is_waiting(process.pid), "it to spin")
        trio.run(ask)
    finally:
        process.kill()
        process.wait()


def test_nobody_is_making_nothing() -> None:
    assert not is_making(0, b"", b"x")
    assert not is_making(2**22 + 1, b"", b"x")
