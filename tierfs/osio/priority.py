"""The I/O priority of a thread."""

from __future__ import annotations

import contextlib
import os

from tierfs.osio import libc

_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
"""IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0) of linux/ioprio.h."""

_SET = {"x86_64": 251, "aarch64": 30}
"""Number of ioprio_set(2) (asm/unistd.h); the C library has no wrapper."""


def idle_io() -> None:
    """The calling thread's I/O gives way to that of all others, where the scheduler looks at it.

    Threads that it starts later do the same. Where it is refused, or unknown, nothing changes.
    """
    number = _SET.get(os.uname().machine)
    if number is not None:
        with contextlib.suppress(OSError):
            libc.ioprio_set(number, _WHO_PROCESS, 0, _CLASS_IDLE)
