"""Faults at labelled steps of the protocol, in this process and in a subprocess.

In process: :class:`FaultyOS` with a hook, and the hooks below. In a subprocess (a daemon, or a
script that calls :func:`tierfs.osio.make_os`): :func:`fault_environment`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tierfs.osio import OS
from tierfs.osio.injection import KILLED, VARIABLE

__all__ = ["KILLED", "FaultyOS", "Stall", "at", "dying", "failing", "fault_environment"]

Hook = Callable[[str, tuple[object, ...]], None]


class FaultyOS(OS):
    """An `OS` whose every call first goes through `hook(step, arguments)`.

    The hook may raise an OSError, wait, change files behind the caller's back, or end the
    process. `seen` is the list of all labels so far; `short` maps a label to the greatest number
    of bytes that one write may take.
    """

    def __init__(self, hook: Hook | None = None, short: dict[str, int] | None = None) -> None:
        self.hook = hook
        self.short = short or {}
        self.seen: list[str] = []

    def _enter(self, step: str, *detail: object) -> None:
        self.seen.append(step)
        if self.hook is not None:
            self.hook(step, detail)

    def _allowed(self, step: str, length: int) -> int:
        return min(length, self.short.get(step, length))


def at(step: str, nth: int, action: Callable[..., None]) -> Hook:
    """A hook that calls `action(*arguments)` at the `nth` call (from 1) labelled `step`."""
    hits = 0
    lock = threading.Lock()

    def hook(label: str, detail: tuple[object, ...]) -> None:
        nonlocal hits
        if label != step:
            return
        with lock:
            hits += 1
            meant = hits == nth
        if meant:
            action(*detail)

    return hook


def failing(step: str, number: int, nth: int = 1) -> Hook:
    """A hook that raises an OSError with errno `number` at the `nth` call labelled `step`."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return at(step, nth, fail)


def dying(step: str, nth: int = 1) -> Hook:
    """A hook that ends the process, without any clean-up, at the `nth` call labelled `step`."""
    return at(step, nth, lambda *_: os._exit(KILLED))


class Stall:
    """A hook that holds the first call labelled `step` until `release()`.

    `reached` is set when the call has come.
    """

    def __init__(self, step: str) -> None:
        self.reached = threading.Event()
        self._go = threading.Event()
        self._hook = at(step, 1, self._wait)

    def __call__(self, step: str, detail: tuple[object, ...]) -> None:
        self._hook(step, detail)

    def _wait(self, *_: object) -> None:
        self.reached.set()
        self._go.wait()

    def release(self) -> None:
        """Let the held call go on."""
        self._go.set()


def fault_environment(*faults: str) -> dict[str, str]:
    """The environment of a subprocess that meets `faults`.

    Each is ``STEP:NTH:kill``, ``STEP:NTH:ERRNO`` or, for every call from then on,
    ``STEP:NTH+:ERRNO``.
    """
    return {**os.environ, VARIABLE: ",".join(faults)}
