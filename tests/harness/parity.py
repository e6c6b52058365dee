"""The same case on a plain directory and on the mount, compared afterwards."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.node import Node
from tests.harness.trees import Entry, compare, compare_snapshots, snapshot


@dataclass
class Pair:
    """The writing node and a reader with an empty local tier, on one shared tier."""

    plain: Path
    shared: Path
    writer: Node
    reader: Node
    seen: dict[str, dict[str, Entry]] = field(default_factory=dict)
    observed: dict[tuple[str, str], object] = field(default_factory=dict)

    def base(self, side: str) -> Path:
        """Where the cases of `side` live; the nodes are mounted for the first that needs them."""
        if side == "plain":
            return self.plain
        if not self.writer.is_mounted():
            self.writer.start()
            self.reader.start()
        return self.writer.mount


@dataclass
class Tree:
    """An empty directory for one case.

    Attributes:
        side: ``plain`` (XFS alone), ``pending`` (the mount, nothing sent before the end) or
            ``committed`` (the mount, everything sent at `commit_here`).
    """

    path: Path
    side: str
    case: str
    pair: Pair

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def commit_here(self) -> None:
        """Where the case is as interesting on committed state as on pending state."""
        if self.side == "committed":
            self.pair.writer.settle(self.path)

    def saw(self, what: str, value: object) -> None:
        """Record an observation that must be the same on the plain directory."""
        key = (self.case, what)
        if self.side == "plain":
            self.pair.observed[key] = value
        elif key in self.pair.observed:
            assert value == self.pair.observed[key], f"{what} differs from the plain directory"


def check_shared(pair: Pair, name: str, side: str, case: str) -> None:
    """What is on the shared tier after a flush must equal the mount, and so must a reader."""
    if side == "plain":
        pair.seen[case] = snapshot(pair.plain / name)
        return
    pair.writer.settle(pair.writer.mount / name)
    on_mount = snapshot(pair.writer.mount / name)
    compare_snapshots(on_mount, snapshot(pair.shared / name))
    _compare_reader(pair.reader.mount / name, pair.shared / name)
    if case in pair.seen:
        compare_snapshots(on_mount, pair.seen[case], ignore=["mtime_ns"])


def _compare_reader(seen: Path, shared: Path) -> None:
    """Another node may be a second behind: it can have known these inode numbers as others."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            return compare(seen, shared)
        except (AssertionError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def names(path: Path) -> list[str]:
    """Sorted listing without `.` and `..`, failing on duplicates."""
    listed = os.listdir(path)
    assert len(listed) == len(set(listed)), f"duplicates in {listed}"
    return sorted(listed)
