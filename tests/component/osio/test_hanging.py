"""What keeps a process that was killed."""

from __future__ import annotations

import subprocess

from tests.harness import wait_until
from tierfs.osio.hanging import hangs_on, is_dead


def test_a_process_that_waits_for_nothing_hangs_on_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_dead(process.pid)
        assert hangs_on(process.pid) == ""
        process.kill()
        wait_until(lambda: is_dead(process.pid), "it to be killed")  # nobody has waited for it yet
        assert hangs_on(process.pid) == ""
    assert not is_dead(process.pid)
    assert hangs_on(process.pid) == ""
