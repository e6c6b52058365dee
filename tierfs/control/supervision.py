"""What a supervisor tells of itself, in a file beside the control socket."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tierfs.osio.processes import read_proc

STATE_FILE = "supervisor.json"

MODULE = b"tierfs.supervisor"
"""How ``python -m`` names a supervisor in its command line."""

STARTING, RUNNING, FAILED = "starting", "running", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a mount that has a supervisor.

    Attributes:
        state: starting, running, or failed: workers ended again and again, the mount answers EIO.
        generation: counts the workers that were started.
        restarts: how many of them were started in place of one that ended.
        error: why the last one ended, empty if none has.
        failed_reloads: how often the version to be loaded did not start, and the old one went on.
    """

    pid: int
    worker_pid: int
    state: str
    generation: int
    restarts: int
    error: str
    failed_reloads: int = 0


def write_state(directory: Path, state: State) -> None:
    """Puts `state` into `directory` in one step."""
    draft = directory / f".{STATE_FILE}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    draft.chmod(0o644)
    draft.replace(directory / STATE_FILE)


def read_state(directory: Path) -> State | None:
    """The state of the mount with runtime directory `directory`; None if it has no supervisor.

    One that was killed leaves its file, and its number may be another process by now.
    """
    state = _read(directory)
    if state is None:
        return None
    return state if MODULE in read_proc(f"/proc/{state.pid}/cmdline").split(b"\0") else None


def remove_state(directory: Path, pid: int) -> None:
    """The mount of supervisor `pid` ended in good order. What another one tells there stays."""
    state = _read(directory)
    if state is not None and state.pid == pid:
        (directory / STATE_FILE).unlink(missing_ok=True)


def _read(directory: Path) -> State | None:
    try:
        return State(**json.loads((directory / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
