"""Lives of a shared tier that end at a given step, each in a process of its own.

A script with a life in it calls :func:`serve`: it reads lines ``ROOT SOURCE FAULT``, lives one life
for each, and answers with the exit status: the imports are paid for once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from tests.faults import KILLED
from tierfs.osio import OS, make_os
from tierfs.osio.injection import VARIABLE

Life = Callable[[Path, Path, OS], Awaitable[None]]
LOOKS = (".open", ".close", ".stat", ".list", ".id", ".read", ".find", ".look", ".born")


def serve(live: Life) -> None:
    """Live the lives that are asked for on standard input."""
    for line in sys.stdin:
        root, source, fault = line.split()
        child = os.fork()
        if child == 0:
            os.environ[VARIABLE] = fault
            trio.run(live, Path(root), Path(source), make_os())
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def ends_of(seen: list[str]) -> list[str]:
    """Every STEP:NTH at which a life that made these calls is to end: the first call of each
    label, and the last of each that changes something.
    """
    labels = dict.fromkeys(seen)
    count = {label: seen.count(label) for label in labels}
    ends = [(label, {1} if label.endswith(LOOKS) else {1, count[label]}) for label in labels]
    return [f"{label}:{nth}:kill" for label, hits in ends for nth in sorted(hits)]


def die(script: Path, runs: dict[str, Path], source: Path) -> None:
    """A life for each of `runs`, which ends at the step that its key says."""
    for root in runs.values():
        root.mkdir()
    lines = "".join(f"{root} {source} {fault}\n" for fault, root in runs.items())
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": "."},
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    statuses = dict(zip(runs, map(int, done.stdout.split()), strict=True))
    assert {f: s for f, s in statuses.items() if s != KILLED} == {}, done.stderr[-3000:]
