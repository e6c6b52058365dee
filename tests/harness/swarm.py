"""Processes that work in a mount at random, each against a model of what it did.

No operation may fail, and what is read must be what the model says, whatever becomes of the daemon
meanwhile. Each process works in a directory of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path


@dataclass
class Report:
    """What one process did.

    Attributes:
        error: a traceback, "" if all went well.
        longest: seconds that its longest operation took.
        files: the content that each of its files must have.
    """

    root: Path
    error: str = ""
    operations: int = 0
    longest: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    history: dict[str, list[str]] = field(default_factory=dict)

    def differences(self, mount: Path, seen_at: Path) -> list[str]:
        """How the tree at `seen_at`, which mirrors `mount`, differs from the model."""
        base = seen_at / self.root.relative_to(mount)
        found = []
        there = {str(p.relative_to(base)) for p in base.rglob("*") if not p.is_dir()}
        for name in sorted(there ^ self.files.keys()):
            found.append(
                f"{name}: {'too many' if name in there else 'missing'}: {self.history.get(name)}"
            )
        for name in sorted(there & self.files.keys()):
            size, want = (base / name).stat().st_size, len(self.files[name])
            if (base / name).read_bytes() != self.files[name]:
                found.append(f"{name}: {size} bytes for {want}: {self.history.get(name)}")
        return found


class Worker:
    """One process of a swarm."""

    def __init__(self, root: Path, seed: int) -> None:
        self.report = Report(root)
        self.chance = random.Random(seed)
        self.open: dict[str, int] = {}
        self.made = 0
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.create), (15, self.append), (15, self.read), (10, self.rename),
            (10, self.unlink), (5, self.mkdir), (3, self.symlink), (3, self.link),
            (4, self.list), (5, self.write_open),
        ]  # fmt: skip

    def run(self, seconds: float) -> Report:
        """Works; the report has no error if every operation did what it should."""
        report, limit = self.report, time.monotonic() + seconds
        weights = [weight for weight, _ in self.steps]
        try:
            report.root.mkdir()
            report.directories.add("")
            while time.monotonic() < limit:
                started = time.monotonic()
                self.chance.choices(self.steps, weights)[0][1]()
                report.operations += 1
                report.longest = max(report.longest, time.monotonic() - started)
            for fd in self.open.values():
                os.close(fd)
        except (OSError, AssertionError):
            report.error = traceback.format_exc()
        return report

    def path(self, name: str) -> str:
        return os.path.join(self.report.root, name)

    def fresh(self) -> str:
        self.made += 1
        parent = self.chance.choice(sorted(self.report.directories))
        return os.path.join(parent, f"n{self.made}")

    def note(self, name: str, what: str) -> None:
        self.report.history.setdefault(name, []).append(f"{time.strftime('%H:%M:%S')} {what}")

    def some(self) -> str | None:
        return self.chance.choice(sorted(self.report.files)) if self.report.files else None

    def create(self) -> None:
        name = self.fresh()
        data = self.chance.randbytes(self.chance.choice([0, 10, 5_000, 200_000]))
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        if data:
            os.write(fd, data)
        self.report.files[name] = data
        self.note(name, f"created with {len(data)}")
        if self.chance.random() < 0.2:
            self.open[name] = fd
        else:
            os.close(fd)

    def append(self) -> None:
        if (name := self.some()) is None:
            return
        data = self.chance.randbytes(self.chance.choice([1, 100, 3_000]))
        fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
        os.write(fd, data)
        self.report.files[name] += data
        self.note(name, f"{len(data)} appended")
        os.close(fd)

    def read(self) -> None:
        if (name := self.some()) is not None:
            self.same(name, Path(self.path(name)).read_bytes())

    def same(self, name: str, found: bytes) -> None:
        want = self.report.files[name]
        at = next((i for i, (a, b) in enumerate(zip(found, want, strict=False)) if a != b), None)
        assert found == want, (
            f"{name}: {len(found)} bytes, not {len(want)}; the first other one at {at}; "
            f"{'open' if name in self.open else 'closed'}; {self.report.history.get(name)}"
        )

    def rename(self) -> None:
        name = self.some()
        if name is None:
            return
        target = self.some() if self.chance.random() < 0.3 else self.fresh()
        assert target is not None
        os.rename(self.path(name), self.path(target))
        if target == name:
            return
        self.close(target)
        self.report.files[target] = self.report.files.pop(name)
        self.report.history[target] = self.report.history.pop(name, [])
        self.note(target, f"renamed from {name}")
        if name in self.open:
            self.open[target] = self.open.pop(name)

    def close(self, name: str) -> None:
        if name in self.open:
            os.close(self.open.pop(name))

    def unlink(self) -> None:
        if (name := self.some()) is None:
            return
        os.unlink(self.path(name))
        data = self.report.files.pop(name)
        self.note(name, "unlinked")
        assert not os.path.lexists(self.path(name)), f"{name}: {self.report.history.pop(name, [])}"
        if (fd := self.open.get(name)) is not None:
            assert os.pread(fd, len(data) + 1, 0) == data, f"{name}: open, unlinked"
            os.pwrite(fd, b"still", 0)
            assert os.pread(fd, 5, 0) == b"still", f"{name}: written, unlinked"
        self.close(name)

    def mkdir(self) -> None:
        name = self.fresh()
        os.mkdir(self.path(name))
        self.report.directories.add(name)

    def symlink(self) -> None:
        name = self.fresh()
        os.symlink("somewhere/else", self.path(name))
        assert os.readlink(self.path(name)) == "somewhere/else"
        os.unlink(self.path(name))

    def link(self) -> None:
        source, name = self.some(), self.fresh()
        if source is not None:
            os.link(self.path(source), self.path(name))
            assert os.path.samefile(self.path(source), self.path(name))
            os.unlink(self.path(name))

    def list(self) -> None:
        directory = self.chance.choice(sorted(self.report.directories))
        known = (*self.report.files, *(name for name in self.report.directories if name))
        want = {os.path.basename(name) for name in known if os.path.dirname(name) == directory}
        assert set(os.listdir(self.path(directory))) == want, directory

    def write_open(self) -> None:
        if not self.open:
            return
        name = self.chance.choice(sorted(self.open))
        data = self.chance.randbytes(50)
        os.pwrite(self.open[name], data, len(self.report.files[name]))
        self.report.files[name] += data
        self.note(name, f"{len(data)} written")
        self.same(name, os.pread(self.open[name], 1 << 20, 0))


class Swarm:
    """`count` processes at work below `mount` for `seconds`."""

    def __init__(self, mount: Path, count: int, seconds: float, seed: int) -> None:
        self.mount = mount
        self._seconds = seconds
        context = multiprocessing.get_context("fork")
        self._reports: Queue[Report] = context.Queue()
        self._processes = [
            context.Process(target=self._work, args=(mount / f"p{index}", seed * 1000 + index))
            for index in range(count)
        ]

    def _work(self, root: Path, seed: int) -> None:
        self._reports.put(Worker(root, seed).run(self._seconds))

    def start(self) -> None:
        """Begins."""
        for process in self._processes:
            process.start()

    def working(self) -> bool:
        """Whether any is still at work."""
        return self._reports.empty() and any(process.is_alive() for process in self._processes)

    def reports(self) -> list[Report]:
        """What they did, once they have finished."""
        found = [self._reports.get(timeout=self._seconds + 120) for _ in self._processes]
        for process in self._processes:
            process.join()
        return found
