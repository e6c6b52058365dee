"""The end of a mount, whatever becomes of the worker that made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tierfs.daemon.__main__ import Ready
from tierfs.supervisor.__main__ import Teller

WORKER = """
import os, signal, sys
from tierfs.supervisor.link import Link
link = Link(int(sys.argv[-1]))
if link.restarts:
    link.refused("there is nothing to go on with")
    sys.exit(1)
link.keep("device", os.open("/dev/null", os.O_RDONLY))
link.ready()
link.drop("device")
os.kill(os.getpid(), signal.SIGKILL)
"""

KILLED = """
import os, signal, sys
from tierfs.supervisor.link import Link
link = Link(int(sys.argv[-1]))
if link.restarts == 0:
    link.keep("device", os.open("/dev/null", os.O_RDONLY))
    link.ready()
if link.restarts < 9:
    os.kill(os.getpid(), signal.SIGKILL)
link.ready()
"""

SUPERVISOR = """
import logging, sys
from pathlib import Path
from tierfs.supervisor.supervisor import Supervisor
logging.basicConfig()
command = [sys.executable, "-c", sys.argv[1]]
sys.exit(Supervisor("/nowhere", command, Path(sys.argv[2]), print).run())
"""


def test_a_worker_that_dies_when_the_mount_is_gone_is_the_last(tmp_path: Path) -> None:
    """It has let go of the device: the next one would have nothing to read, and no mount."""
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, WORKER, tmp_path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_workers_that_are_killed_before_they_are_ready_have_not_failed(tmp_path: Path) -> None:
    """Somebody kills each worker that he finds: the mount goes on as soon as he lets one be."""
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, KILLED, tmp_path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ok\nok\n")  # of the first and the last
    assert done.stderr.count("the next one takes over") == 9
    assert "in a row" not in done.stderr


def test_who_mounts_may_be_killed_before_it_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """The mount is there, and its supervisor must not end."""
    reader, writer = os.pipe()
    os.close(reader)
    teller = Teller(writer)
    teller("ok")
    teller("refused")
    assert "refused" in capfd.readouterr().err
    reader, writer = os.pipe()
    os.close(reader)
    Ready(writer).tell("ok")
