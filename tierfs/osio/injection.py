"""Faults in a daemon that a test of crash safety has started, and nowhere else.

With ``TIERFS_TEST_FAULT`` unset, :func:`make_os` gives the plain :class:`~tierfs.osio.OS`.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from tierfs.errors import ConfigError
from tierfs.osio.system import OS

VARIABLE = "TIERFS_TEST_FAULT"
KILLED = 137
"""Exit status of a process that dies at a step: what a shell reports after SIGKILL."""


@dataclass(slots=True)
class Fault:
    """What happens at a call labelled `step`.

    Attributes:
        nth: at which of these calls, from 1.
        onwards: at each later one too.
        error: errno to raise; None kills the process without any clean-up.
    """

    step: str
    nth: int
    onwards: bool
    error: int | None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``STEP:NTH:kill``, ``STEP:NTH:ERRNO`` or ``STEP:NTH+:ERRNO``.

        Raises ConfigError.
        """
        step, _, rest = text.rpartition(":")[0].partition(":")
        action = text.rpartition(":")[2]
        error = None if action == "kill" else getattr(errno, action, 0)
        count = rest.removesuffix("+")
        if not step or not count.isdecimal() or error == 0:
            raise ConfigError(f"{VARIABLE}: {text!r} is not STEP:NTH:kill or STEP:NTH:ERRNO")
        return cls(step, int(count), rest.endswith("+"), error)

    def applies(self, hits: int) -> bool:
        """Whether call number `hits` of the step is meant."""
        return hits >= self.nth if self.onwards else hits == self.nth


class InjectedOS(OS):
    """An `OS` that fails or dies at given steps."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._hits: dict[str, int] = {}
        self._lock = threading.Lock()

    def _enter(self, step: str, *detail: object) -> None:
        with self._lock:
            hits = self._hits[step] = self._hits.get(step, 0) + 1
        for fault in self._faults:
            if fault.step == step and fault.applies(hits):
                if fault.error is None:
                    os._exit(KILLED)
                raise OSError(fault.error, os.strerror(fault.error))


def make_os() -> OS:
    """The `OS` of a daemon.

    For tests of crash safety only: if ``TIERFS_TEST_FAULT`` is set, to a comma-separated list of
    ``STEP:NTH:kill`` or ``STEP:NTH[+]:ERRNO`` (``put.rename:1:kill``, ``put.fsync:2+:EIO``), the
    process dies, or the call fails, at those steps. Raises ConfigError where it cannot be read.
    """
    text = os.environ.get(VARIABLE)
    return InjectedOS([Fault.parse(part) for part in text.split(",")]) if text else OS()
