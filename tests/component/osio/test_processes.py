"""What /proc tells of processes."""

from __future__ import annotations

import subprocess
import time

from tierfs.osio.processes import age_seconds


def test_a_process_is_not_told_older_than_it_is() -> None:
    """One that was started in an outage must not count as one that ran before."""
    for _ in range(20):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        with subprocess.Popen(["sleep", "60"]) as process:
            age = age_seconds(process.pid)
            process.kill()
        assert age is not None
        assert age <= time.clock_gettime(time.CLOCK_BOOTTIME) - before
        time.sleep(0.003)
