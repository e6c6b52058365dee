"""Snapshots of the shared tier while a write-back runs, judged by the loaders' own rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Self

from tests.harness import LoopDevice, frozen
from tests.harness.looking import Looking

HERE = Path(__file__).parent


class Oracle(Looking):
    """Judges a frozen copy of the shared tier again and again.

    The device is frozen while it is copied: what the oracle sees is a state that really was, so a
    verdict is never an artefact of looking while names change.

    Attributes:
        looks: how many snapshots were judged.
        complete: how many checkpoints looked complete in all of them together.
        bad: the oracle's words on each snapshot in which something only looked complete.
    """

    def __init__(self, python: str, script: Path, device: LoopDevice, copies: Path) -> None:
        super().__init__()
        self._device = device
        self._copies = copies
        self._process = subprocess.Popen(
            [python, HERE / "oracle_loop.py", script, "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.looks = 0
        self.complete = 0
        self.bad: list[str] = []

    def __enter__(self) -> Self:
        self._copies.mkdir(parents=True, exist_ok=True)
        return super().__enter__()

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, failure, trace)
        finally:
            self._process.communicate()

    def look(self) -> None:
        """One snapshot, judged."""
        copy = self._copies / f"snapshot-{self.looks}"
        with frozen(self._device):
            shutil.copytree(
                self._device.mountpoint,
                copy,
                symlinks=True,
                ignore=shutil.ignore_patterns(".tierfs", ".staging_*"),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{copy}\n")
        self._process.stdin.flush()
        verdict = json.loads(self._process.stdout.readline())
        shutil.rmtree(copy)
        self.looks += 1
        self.complete += verdict["out"].count("ok ")
        if verdict["code"] != 0:
            self.bad.append(verdict["out"])
