"""A supervisor keeps files of a shared tier that hangs: it goes on all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import FaultyTier, wait_until

WORKER = """
import os, pathlib, signal, sys, time
folder, tier = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
def tell(word):
    (folder / f"{word}-{os.getpid()}").touch()
def until(word):
    while not (folder / word).exists():
        link.beat()
        time.sleep(0.05)
tell("started")
from tierfs.supervisor.link import Link
link = Link(int(sys.argv[-1]))
if not link.restarts:
    link.keep("device", os.open("/dev/null", os.O_RDONLY))
    for name in ("a", "b"):
        fd = os.open(tier / name, os.O_RDONLY)
        link.keep(name, fd)
        os.close(fd)
link.ready()
tell("ready")
until("drop")
link.drop("a")
until("die")
if not link.restarts:
    os.kill(os.getpid(), signal.SIGKILL)
until("end")
link.drop("device")
os._exit(0)
"""

SUPERVISOR = """
import logging, sys, time
from pathlib import Path
from tierfs.supervisor import supervisor
supervisor.SILENCE_SECONDS = 2.0
supervisor.PREPARE_SECONDS = float(sys.argv[4])
if blocked := float(sys.argv[5]):
    supervisor.Standby.prepare = lambda self: time.sleep(blocked)
logging.basicConfig()
command = [sys.executable, "-c", *sys.argv[1:4]]
sys.exit(supervisor.Supervisor("/nowhere", command, Path(sys.argv[2]), print).run())
"""


@pytest.fixture
def tier(shared_dir: Path) -> Iterator[FaultyTier]:
    """With a file for each that is kept."""
    with FaultyTier(shared_dir / "real", shared_dir / "seen") as found:
        for name in ("a", "b"):
            (found.directory / name).write_bytes(b"1")
        yield found


@pytest.fixture
def many(tmp_path: Path) -> Callable[[str], Callable[[], int]]:
    """How many workers have told a word."""
    return lambda word: lambda: len(list(tmp_path.glob(f"{word}-*")))


@contextmanager
def supervisor(
    folder: Path, tier: FaultyTier, prepare: float, blocked: float = 0.0
) -> Iterator[subprocess.Popen[bytes]]:
    words = [WORKER, folder, tier.mountpoint, prepare, blocked]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, *map(str, words)], stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield process
        finally:
            tier.heal()
            for word in ("drop", "die", "end"):
                (folder / word).touch()
            try:
                process.wait(20)
            finally:
                process.kill()


def test_the_next_worker_is_prepared_and_takes_over_while_the_tier_hangs(
    tier: FaultyTier, tmp_path: Path, many: Callable[[str], Callable[[], int]]
) -> None:
    """A child closes what it inherits, and a close asks this tier."""
    with supervisor(tmp_path, tier, prepare=1.0) as process:
        wait_until(lambda: many("ready")() == 1, "the mount")
        with tier.hang():
            wait_until(lambda: many("started")() == 2, "the next to be prepared")
            (tmp_path / "drop").touch()  # closed by the supervisor
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)  # longer than a worker may be silent
            assert many("started")() == 2, "which it is not"
            (tmp_path / "die").touch()
            wait_until(lambda: many("ready")() == 2, "the next one to serve")
    assert process.returncode == 0
    ended, *others = [line for line in (tmp_path / "log").read_text().splitlines() if line != "ok"]
    assert "killed by SIGKILL" in ended
    assert others == []


def test_a_supervisor_that_was_kept_from_its_work_hears_its_worker_first(
    tier: FaultyTier, tmp_path: Path, many: Callable[[str], Callable[[], int]]
) -> None:
    """What it did not listen to is no silence of the worker."""
    with supervisor(tmp_path, tier, prepare=0.5, blocked=3.0) as process:
        wait_until(lambda: many("ready")() == 1, "the mount")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)  # longer than a worker may be silent
        assert many("started")() == 1
        assert (tmp_path / "log").read_text().split() == ["ok"]
