"""Programs that execute others while they have files open here: execve(2) closes them (O_CLOEXEC).

Until these closes are answered /proc holds back much of what it tells of the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import FaultyTier, Node, wait_until

IN_PLACE = """
import os, sys
for name in sys.argv[1:]:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, b"step-1")
os.execv("/bin/true", ["true"])
"""

AS_CHILD = """
import os, sys
files = [open(name, "wb") for name in sys.argv[1:]]
for file in files:
    file.write(b"step-1")
    file.flush()
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
"""
"""posix_spawn(3) leaves it to execve(2) to close them."""

NAMES = ("latest", "plain", "checkpoint-1/model.safetensors", "checkpoint-1/trainer_state.json")


def write_and_execute(program: str, *paths: Path) -> None:
    subprocess.run([sys.executable, "-c", program, *paths], check=True, timeout=30)


def worker(node: Node) -> int:
    return int(node.supervisor()["worker_pid"])


@pytest.mark.parametrize("program", [IN_PLACE, AS_CHILD], ids=["in place", "as a child"])
@pytest.mark.parametrize("passthrough", [True, False], ids=["passthrough", "ordinary"])
def test_files_that_an_exec_closes_are_closed(
    make_node: Callable[..., Node], program: str, passthrough: bool
) -> None:
    node = make_node()
    node.settings = {"passthrough": passthrough}
    node.start()
    first = worker(node)
    (node.mount / "checkpoint-1").mkdir()
    write_and_execute(program, *(node.mount / name for name in NAMES))
    node.settle()
    assert worker(node) == first, "no other one had to come"
    for name in NAMES:
        assert (node.shared / name).read_bytes() == b"step-1"


@pytest.fixture
def tier(shared_dir: Path) -> Iterator[FaultyTier]:
    with FaultyTier(shared_dir / "real", shared_dir / "seen") as found:
        yield found


def test_a_pointer_that_an_exec_closes_in_an_outage(
    tier: FaultyTier, make_node: Callable[..., Node]
) -> None:
    """What it names is looked for on behalf of a process that /proc tells nothing of."""
    node = make_node(shared=tier.mountpoint)
    node.expected = ["shared tier"]
    node.start()
    first, run = worker(node), node.mount / "run"
    run.mkdir()
    node.settle()
    wait_until(lambda: str(run) in node.status()["announced"], "a look", timeout=60)
    with tier.hang():
        wait_until(lambda: node.status()["shared"]["state"] != "healthy", "the outage", timeout=30)
        write_and_execute(IN_PLACE, run / "latest")
        assert (run / "latest").read_bytes() == b"step-1"
    node.settle(timeout=120)
    assert worker(node) == first
    assert (tier.directory / "run" / "latest").read_bytes() == b"step-1"
    node.close()
