"""Which call in the kernel keeps a process that was killed, or that ends, from going."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tierfs.osio.processes import read_proc

LOOKED_AT = 3
"""A call has its descriptor, or that of the directory, first; copy_file_range(2) has two."""


def is_dead(process: int) -> bool:
    """Whether `process` was killed or has ended, and threads of it may still be in the kernel."""
    return b"\nState:\tZ" in read_proc(f"/proc/{process}/status")


def hangs_on(process: int) -> str:
    """The file or directory that a thread of `process` waits for where it cannot be ended, as the
    process calls it; "" if none does, or none that is known by a descriptor.

    Reads what the kernel tells without waiting: `syscall` and the names of descriptors, proc(5).
    """
    with contextlib.suppress(OSError):
        for thread in sorted(Path(f"/proc/{process}/task").iterdir()):
            if b"\nState:\tD" in read_proc(f"{thread}/status") and (found := _file_of(thread)):
                return found
    return ""


def _file_of(thread: Path) -> str:
    arguments = read_proc(f"{thread}/syscall").split()[1 : 1 + LOOKED_AT]
    for argument in arguments:
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(thread / "fd" / str(int(argument, 16)))
            if name.startswith("/"):
                return name.removesuffix(" (deleted)")
    return ""
