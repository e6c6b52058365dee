"""What /proc tells of the process behind a request of the kernel."""

from __future__ import annotations

import os

_MOST = 8192

PF_SIGNALED = 0x400
"""Task flag: killed by a signal (include/linux/sched.h); field 9 of /proc/PID/stat, proc(5)."""


def process_of(thread: int) -> int:
    """The process that `thread` (the pid of a FUSE request) belongs to; 0 when it is gone."""
    if thread <= 0:
        return 0
    try:
        os.close(os.pidfd_open(thread))
    except OSError:
        pass  # no leader of its process, or gone
    else:
        return thread
    found = _read(f"/proc/{thread}/status").partition(b"\nTgid:")[2].split(None, 1)
    return int(found[0]) if found else 0


def was_killed(process: int) -> bool:
    """Whether `process` is dying of a signal: its closes are the kernel's, not its own."""
    fields = _read(f"/proc/{process}/stat").rpartition(b")")[2].split()
    return bool(fields) and bool(int(fields[6]) & PF_SIGNALED)


def _read(path: str) -> bytes:
    """A file of /proc; empty when the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)
