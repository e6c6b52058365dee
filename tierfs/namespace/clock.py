"""The clock of file times."""

from __future__ import annotations

import time

SETTLE_SECONDS = 5.0
"""How long a directory's own time is shown after its last op, while the write-back sets it."""


CLOCK_REALTIME_COARSE = 5
"""linux/time.h: the clock that file systems take their times from."""


def file_time_ns() -> int:
    """Now, as a file system would write it: comparable with the times of objects."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
