"""Real worker processes, as their supervisor has them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest
import trio

from tierfs.daemon import succession
from tierfs.daemon.succession import Succession
from tierfs.supervisor.apart import Starter
from tierfs.supervisor.worker import Worker

MOST_OF_SELECT = 1024
"""select() takes descriptors below this."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process has so many that the next one is above `MOST_OF_SELECT`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MOST_OF_SELECT + 200), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        fd = -1
        while fd < MOST_OF_SELECT:
            fd = os.open("/dev/null", os.O_RDONLY)
            stack.callback(os.close, fd)
        yield


@pytest.mark.usefixtures("many_descriptors")
def test_one_is_ended_whatever_else_is_kept() -> None:
    """A supervisor keeps descriptors of the files that are open in the mount."""
    worker = Worker(["sh", "-c", "exec sleep 60"], Starter())
    assert worker.pidfd > MOST_OF_SELECT
    worker.kill()
    assert worker.exit_code() == -signal.SIGKILL
    worker.close()


class Gone:
    """The link to a supervisor that was killed."""

    kept: ClassVar[dict[str, int]] = {}

    def beat(self) -> None:
        raise BrokenPipeError


def test_one_whose_supervisor_is_gone_waits_to_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is by the kernel; that is no fault of its own, as long as it comes."""
    place = Succession.of(Gone(), tmp_path)  # type: ignore[arg-type]

    async def wait() -> bool:
        with trio.move_on_after(0.2) as waited:
            await place._beat()
        return waited.cancelled_caught

    assert trio.run(wait)
    monkeypatch.setattr(succession, "END_SECONDS", 0.01)
    with pytest.raises(BrokenPipeError):
        trio.run(wait)
