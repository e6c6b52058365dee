"""Ops to post, and an OS whose calls a test can hold, fail and see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tierfs.journal import Journal
from tierfs.model import ROOT, Op, OpKind, OpState, new_object_id
from tierfs.osio import OS

REPOSITORY = Path(__file__).parents[3]
NAME = b"shard\xff\n.pt"


def put(journal: Journal, **values: object) -> Op:
    """A closed PUT with a row and number of its own."""
    fields: dict[str, object] = {
        "row": journal.next_row(),
        "number": journal.next_number(),
        "kind": OpKind.PUT,
        "object": new_object_id(),
        "parent": ROOT,
        "name": NAME,
        "timestamp_ns": 1,
        "state": OpState.CLOSED,
    }
    return Op(**{**fields, **values})  # type: ignore[arg-type]


def journaled(op: Op) -> dict[str, object]:
    """The fields of an op that a row keeps."""
    left_out = {
        "phase", "data_version", "attr_version", "scope", "path", "scope2", "path2", "targets",
    }  # fmt: skip
    return {name: getattr(op, name) for name in Op.__slots__ if name not in left_out}


class WatchedOS(OS):
    """Calls `at[step]` before each call labelled `step`, in the calling thread."""

    def __init__(self, **at: Callable[[], None]) -> None:
        self.at = {step.replace("_", "."): hook for step, hook in at.items()}

    def _enter(self, step: str, *detail: object) -> None:
        hook = self.at.get(step)
        if hook is not None:
            hook()


class Gate:
    """Holds the threads that pass it while it is shut.

    Attributes:
        arrived: set when one has come to the shut gate.
    """

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def __call__(self) -> None:
        if not self._open.is_set():
            self.arrived.set()
            assert self._open.wait(60)

    def shut(self) -> None:
        """Hold who comes from now on."""
        self._open.clear()

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()


def python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start another interpreter on `code`; its output is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
