"""Large trees: what commands take on a mount and on a C passthrough file system, and what a name
and a pending change cost.

The yardstick is bindfs (apt install bindfs), a FUSE mount of the same tree; without it, XFS itself.
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

FILES_PER_DIRECTORY = 1000
BELIEVED_SECONDS = 1.1
"""After that the kernel asks again for every name and attribute."""

COMMANDS = {
    "find -type f": ("find", "{}", "-type", "f"),
    "find -size": ("find", "{}", "-size", "+5"),
    "du -s": ("du", "-s", "{}"),
    "ls -lR": ("ls", "-lR", "{}"),
    "rm -rf": ("rm", "-rf", "{}"),
}


class Measured(NamedTuple):
    """One line: `ratio` is that of tierfs to the yardstick, or of what was used to the limit."""

    what: str
    native: float
    tierfs: float
    unit: str
    ratio: float
    target: str


def make_tree(top: Path, files: int) -> None:
    """Empty files, so many in each directory."""
    for number in range(0, files, FILES_PER_DIRECTORY):
        directory = top / f"d{number // FILES_PER_DIRECTORY}"
        directory.mkdir(parents=True)
        base = os.fsencode(directory)
        for index in range(min(FILES_PER_DIRECTORY, files - number)):
            os.close(os.open(base + b"/file-%06d" % index, os.O_CREAT | os.O_WRONLY, 0o644))


@contextmanager
def yardstick(source: Path, mountpoint: Path) -> Iterator[Path]:
    """The tree through bindfs; itself where that is not installed."""
    if shutil.which("bindfs") is None:
        yield source
        return
    mountpoint.mkdir()
    subprocess.run(["bindfs", "--multithreaded", source, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def memory(pid: int) -> int:
    """Bytes of its own that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def run(local: LoopDevice, shared: LoopDevice, files: int, pending: int) -> Iterator[Measured]:
    """All measurements, on `files` committed and `pending` further files."""
    tier, beside = shared.mountpoint / "scale", local.mountpoint / "scale"
    make_tree(tier / "tree", files)
    make_tree(beside / "tree", files)
    name = "bindfs" if shutil.which("bindfs") else "XFS"
    node = Node(local.mountpoint, tier, "scale").start()
    try:
        before = memory(_worker(node))
        with yardstick(beside, local.mountpoint / "bindfs") as other:
            for what, words in COMMANDS.items():
                if what == "rm -rf":
                    yield _mount(node, pending)
                native, mount = (_seconds(words, top / "tree") for top in (other, node.mount))
                ratio = mount / native
                target = f"at most 3 x {name}"
                yield Measured(f"scale: {what}", native * 1e3, mount * 1e3, "ms", ratio, target)
                if what == "du -s":
                    used = (memory(_worker(node)) - before) / files
                    what = "scale: memory of a known file"
                    yield Measured(what, 1024, used, "bytes", used / 1024, "at most 1")
        node.settle(timeout=3600)
    finally:
        node.close()
        measures.remove(tier)


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
    started = time.perf_counter()
    node.start(timeout=600)
    seconds = time.perf_counter() - started
    what = f"scale: mount with {pending} pending"
    return Measured(what, 5000, seconds * 1e3, "ms", seconds / 5, "at most 1 (5 s at 100,000)")
