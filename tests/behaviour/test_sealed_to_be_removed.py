"""Jobs that remove each checkpoint before they save the next (decision 22)."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.behaviour.direct import CALLER, Direct
from tests.harness import wait_until
from tierfs.model import ROOT, OpKind

AT = "checkpoint_2"
FILES = ("model.safetensors", "optimizer.bin", "random_states_0.pkl")
IN_PEACE = 0.1


@pytest.fixture
def direct(make_direct: Callable[..., Direct]) -> Direct:
    """Nothing is sent before `go`."""
    direct = make_direct(group_settle=IN_PEACE)
    direct.restart(held=True)
    return direct


@contextmanager
def job(direct: Direct) -> Iterator[None]:
    """A process of its own calls."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        yield
        direct.caller = CALLER


def save(direct: Direct) -> None:
    direct.mkdir(AT)
    for name in FILES:
        direct.write_file(f"{AT}/{name}", b"content")


def remove(direct: Direct) -> None:
    for name in direct.listdir(AT):
        direct.unlink(f"{AT}/{name}", direct.caller.process)
    direct.rmdir(AT)


def pending(direct: Direct) -> list[OpKind]:
    return direct.run_sync(lambda: [op.kind for op in direct.rooms.backlog.under(ROOT)])


@pytest.mark.parametrize("begun_again", [False, True])
def test_what_is_published_after_its_removal_does_not_come_back(
    direct: Direct, begun_again: bool
) -> None:
    """Nor where another one was begun and removed under its name before it was published."""
    with job(direct):
        save(direct)
        time.sleep(IN_PEACE)
        remove(direct)
        if begun_again:
            save(direct)
            remove(direct)
    assert OpKind.SEAL in pending(direct)
    direct.go()
    wait_until(lambda: (direct.shared / AT).exists(), "it to be published")
    wait_until(lambda: OpKind.SEAL not in pending(direct), "the seal to be over")
    assert direct.listdir() == []
    assert not direct.exists(AT)
    assert sorted(path.name for path in (direct.shared / AT).iterdir()) == sorted(FILES)
    kinds = pending(direct)
    direct.restart()
    assert direct.listdir() == []
    assert not direct.exists(AT)
    assert sorted(pending(direct)) == sorted(kinds)
