"""Files whose writers are killed in them, as the kernel tells of it: who closes, and who waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Node, wait_until

HALF = "import os, subprocess, sys, time\nf = open(sys.argv[1], 'wb', 0)\nf.write(b'half')\n"
SAY = "print(flush=True)\n"
WAIT = "sys.stdin.read()\n"
FORK = "if not os.fork():\n    time.sleep(60)\n    os._exit(0)\n"
EXEC = "subprocess.run(['true'], check=True)\n"
LEAVE = "if not os.fork():\n    os._exit(0)\nos.wait()\n"


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    node = make_node()
    node.settings["supervisor"] = True
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)"]
    return node.start()


class Writer:
    """A process of a group of its own that has half a file written; `code`: what it does then."""

    def __init__(self, path: Path, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HALF + code, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.read(1) == b"\n"

    def kill(self, *, group: bool = True) -> None:
        """SIGKILL, not waited for: it may wait for a worker in the close of its file."""
        (os.killpg if group else os.kill)(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Its end, and that of all that it made."""
        self.process.wait(timeout=60)
        for each in (self.process.stdin, self.process.stdout):
            assert each is not None
            each.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def begin() -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def begin(*words: Any) -> Writer:
        made.append(Writer(*words))
        return made[-1]

    yield begin
    for each in made:
        each.process.kill()
        each.end()


def torn(node: Node) -> set[str]:
    return {Path(each["path"]).name for each in node.status()["stuck"] if each["state"] == "torn"}


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 10])
def test_writers_killed_around_the_death_of_a_worker_leave_torn_files(
    node: Node, begin: Callable[..., Writer], milliseconds: int
) -> None:
    """Its FLUSH comes to the one worker or the next, or is asked again, wherever the first died."""
    names = {f"f{index}" for index in range(8)}
    writers = [begin(node.mount / name, SAY + WAIT) for name in sorted(names)]
    before = node.supervisor()
    for each in writers:
        each.kill()
    time.sleep(milliseconds / 1000)
    os.kill(before["worker_pid"], signal.SIGKILL)
    wait_until(lambda: node.is_served(before["generation"]), "the next worker", timeout=60)
    for each in writers:
        each.process.wait(timeout=60)
    wait_until(lambda: torn(node) == names, "them to be reported")
    node.kill_worker()
    assert torn(node) == names
    assert node.flush().code == 3
    assert not [name for name in os.listdir(node.shared) if name in names]


@pytest.mark.parametrize("code", [FORK, LEAVE, EXEC], ids=["lives", "ended", "exec"])
def test_a_child_made_in_the_middle_of_a_file_says_nothing_of_it(
    node: Node, begin: Callable[..., Writer], code: str
) -> None:
    """As those of a data loader, or `nvidia-smi`, beside a thread that saves."""
    killed = begin(node.mount / "killed", code + SAY + WAIT)
    closing = begin(node.mount / "closing", code + SAY + WAIT + "f.close()\n")
    killed.kill()
    assert closing.process.stdin is not None
    closing.process.stdin.close()
    for each in (killed, closing):
        each.process.wait(timeout=60)
    wait_until(lambda: torn(node), "it to be reported")
    closing.end()
    assert node.flush().code == 3
    assert torn(node) == {"killed"}
    assert (node.shared / "closing").read_bytes() == b"half"
    assert not (node.shared / "killed").exists()
