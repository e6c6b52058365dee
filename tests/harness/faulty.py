"""A shared tier behind a file system of our own that hangs, fails or crawls as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from tests.harness.devices import mount_points

CHECKOUT = Path(__file__).parents[2]


class FaultyTier:
    """`directory` as `mountpoint` shows it, with faults.

    `hang`, `fail`, `delay`, `crawl`, `cut` and `flip` hold inside their block, for calls that match
    `op` and the last name `name`, both patterns as of the shell.
    """

    def __init__(self, directory: Path, mountpoint: Path) -> None:
        self.directory = directory
        self.mountpoint = mountpoint
        self._rules_file = mountpoint.parent / f"{mountpoint.name}.rules"
        self._rules: list[dict[str, object]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.directory.mkdir(exist_ok=True)
        self.mountpoint.mkdir(exist_ok=True)
        self._write()
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self.unmount()
        self._rules_file.unlink(missing_ok=True)

    def mount(self) -> None:
        """Start the process that serves it."""
        words = ["tests.harness.faulty_fs", self.directory, self.mountpoint, self._rules_file]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *map(str, words)],
            cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def unmount(self) -> None:
        """Detach it and end its process."""
        if self.mountpoint in mount_points():
            subprocess.run(["umount", "-l", str(self.mountpoint)], check=True)
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def heal(self) -> None:
        """Take all faults back."""
        self._rules.clear()
        self._write()

    def hang(self, op: str = "*", name: str = "*") -> AbstractContextManager[None]:
        """Calls do not come back."""
        return self._fault(op=op, name=name, do="hang")

    def fail(self, error: str, op: str = "*", name: str = "*") -> AbstractContextManager[None]:
        """Calls fail with the errno of that name."""
        return self._fault(op=op, name=name, do=error)

    def delay(self, seconds: float, op: str = "*", name: str = "*") -> AbstractContextManager[None]:
        """Calls take `seconds` longer."""
        return self._fault(op=op, name=name, do="delay", seconds=seconds)

    def crawl(self, rate: float, name: str = "*") -> AbstractContextManager[None]:
        """Reads and writes share `rate` bytes a second."""
        return self._fault(op="read|write", name=name, do="delay", rate=rate)

    def cut(self, size: int, name: str = "*") -> AbstractContextManager[None]:
        """Writes take `size` bytes at the most."""
        return self._fault(op="write", name=name, do="short", size=size)

    def flip(self, name: str = "*") -> AbstractContextManager[None]:
        """Writes store another byte than they were given, and say nothing of it."""
        return self._fault(op="write", name=name, do="flip")

    @contextmanager
    def _fault(self, **rule: object) -> Iterator[None]:
        self._rules.append(rule)
        self._write()
        try:
            yield
        finally:
            if rule in self._rules:
                self._rules.remove(rule)
            self._write()

    def _write(self) -> None:
        draft = self._rules_file.with_suffix(".draft")
        draft.write_text(json.dumps(self._rules))
        os.replace(draft, self._rules_file)
