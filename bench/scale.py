"""Large trees: what commands take on a mount and on a C passthrough file system, and what a name
and a pending change cost.

The yardstick is bindfs (apt install bindfs), a FUSE mount of the same tree; without it, XFS itself.
Both, and the commands, go before everything else on the machine while they are measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import measures
from tests.harness import LoopDevice, Node
from tests.harness.waiting import wait_until

TREES = {"large": 1000, "small": 10}
"""Of the trees: files in each directory."""

BELIEVED_SECONDS = 1.1
"""After that the kernel asks again for every name and attribute."""

READERS = {
    "find -type f": ("find", "{}", "-type", "f"),
    "find -size": ("find", "{}", "-size", "+5"),
    "du -s": ("du", "-s", "{}"),
    "ls -lR": ("ls", "-lR", "{}"),
}
REMOVAL = ("rm", "-rf", "{}")


class Measured(NamedTuple):
    """One line: `ratio` is that of tierfs to the yardstick, or of what was used to the limit."""

    what: str
    native: float
    tierfs: float
    unit: str
    ratio: float
    target: str


def make_tree(top: Path, files: int, in_each: int) -> None:
    """Empty files, so many in each directory."""
    for number in range(0, files, in_each):
        directory = top / f"d{number // in_each}"
        directory.mkdir(parents=True)
        base = os.fsencode(directory)
        for index in range(min(in_each, files - number)):
            os.close(os.open(base + b"/file-%06d" % index, os.O_CREAT | os.O_WRONLY, 0o644))


class Yardstick:
    """`source` through bindfs, in a process of its own; itself where that is not installed."""

    def __init__(self, source: Path, mountpoint: Path) -> None:
        self.top = source
        self.name = "XFS"
        self.pids: list[int] = []
        if shutil.which("bindfs") is None:
            return
        mountpoint.mkdir()
        words = ["bindfs", "--multithreaded", "-f", source, mountpoint]
        self._process = subprocess.Popen(words)
        wait_until(lambda: os.path.ismount(mountpoint), "bindfs")
        self.top, self.name, self.pids = mountpoint, "bindfs", [self._process.pid]

    def close(self) -> None:
        """Unmounts it."""
        if self.pids:
            subprocess.run(["umount", self.top], check=True)
            self._process.wait()


@contextmanager
def first(pids: list[int]) -> Iterator[None]:
    """What answers in these processes, and what we start, goes before all else (SCHED_FIFO).

    So a machine that does other things as well gives the ratios of an idle one.
    """
    every = [*pids, os.getpid()]
    for pid in every:
        for thread in _threads(pid):
            if os.getpriority(os.PRIO_PROCESS, thread) <= 0:  # not what gives way anyway
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        for pid in every:
            for thread in _threads(pid):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _threads(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def memory(pid: int) -> int:
    """Bytes of its own that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def run(local: LoopDevice, shared: LoopDevice, files: int, pending: int) -> Iterator[Measured]:
    """All measurements, on `files` committed ones in each tree and `pending` further files."""
    tier, beside = shared.mountpoint / "scale", local.mountpoint / "scale"
    for tree, in_each in TREES.items():
        make_tree(tier / tree, files, in_each)
        make_tree(beside / tree, files, in_each)
    node = Node(local.mountpoint, tier, "scale").start()
    other = Yardstick(beside, local.mountpoint / "bindfs")
    try:
        before = memory(_worker(node))
        for tree in TREES:
            for what, words in READERS.items():
                yield _command(what, words, tree, other, node)
            if tree == "large":
                used = (memory(_worker(node)) - before) / files
                what = "scale: memory of a known file"
                yield Measured(what, 1024, used, "bytes", used / 1024, "at most 1")
        yield _mount(node, pending)
        for tree in TREES:
            yield _command("rm -rf", REMOVAL, tree, other, node)
            node.settle(timeout=3600)
    finally:
        other.close()
        node.close()
        measures.remove(tier)


def _command(
    what: str, words: tuple[str, ...], tree: str, other: Yardstick, node: Node
) -> Measured:
    with first([*other.pids, _worker(node)]):
        native, mount = (_seconds(words, top / tree) for top in (other.top, node.mount))
    what = f"scale: {what}, {TREES[tree]} in a directory"
    target = f"at most 3 x {other.name}"
    return Measured(what, native * 1e3, mount * 1e3, "ms", mount / native, target)


def _worker(node: Node) -> int:
    return int(node.supervisor()["worker_pid"])


def _seconds(words: tuple[str, ...], top: Path) -> float:
    time.sleep(BELIEVED_SECONDS)
    return measures.command(*(word.format(top) for word in words))


def _mount(node: Node, pending: int) -> Measured:
    """How long a mount takes with so many files that only the journal knows of."""
    config = node.settings.setdefault("temporary_hold", 3600)
    assert config == 3600
    node.restart()
    directory = node.mount / "pending"
    directory.mkdir()
    base = os.fsencode(directory)
    for index in range(pending):
        os.close(os.open(base + b"/file-%06d.tmp" % index, os.O_CREAT | os.O_WRONLY, 0o644))
    assert node.umount("--force").code == 0
    with first([]):
        started = time.perf_counter()
        node.start(timeout=600)
        seconds = time.perf_counter() - started
    with first([node.pid, _worker(node)]):
        pass  # what was started so goes on like everything else
    what = f"scale: mount with {pending} pending"
    return Measured(what, 5000, seconds * 1e3, "ms", seconds / 5, "at most 1 (5 s at 100,000)")
