"""Pointers to checkpoints that are removed before they are published."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.behaviour.direct import CALLER, Direct
from tests.harness import wait_until
from tierfs.model import ROOT, Phase
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.grouping.sealing import Sealing

FILES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
POINTER = "latest"


def save(direct: Direct, step: int) -> None:
    """As deepspeed does it."""
    direct.mkdir(f"global_step{step}")
    for name in FILES:
        direct.write_file(f"global_step{step}/{name}", b"%d" % step)
    direct.write_file(POINTER, b"global_step%d" % step)


def remove(direct: Direct, step: int) -> None:
    """Nobody knows which process it is."""
    for name in FILES:
        direct.unlink(f"global_step{step}/{name}", process=0)
    direct.rmdir(f"global_step{step}")


def until_it_names(direct: Direct, step: int) -> None:
    at = direct.shared / POINTER
    wait_until(lambda: at.exists() and at.read_text() == f"global_step{step}", f"step {step}")


def phases(direct: Direct) -> list[Phase]:
    """How far the versions of the pointer are."""
    ops = direct.run_sync(lambda: list(direct.rooms.backlog.under(ROOT)))
    return [op.phase for op in ops if op.name == POINTER.encode()]


class Looks:
    """Follows the pointer on the shared tier before each call that may change something.

    Attributes:
        bad: where it led to nothing whole.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self.bad: list[str] = []

    def __call__(self, step: str, _: tuple[object, ...]) -> None:
        named = self._shared / (self._shared / POINTER).read_text()
        there = sorted(path.name for path in named.iterdir()) if named.is_dir() else None
        if there != sorted(FILES):
            self.bad.append(f"before {step}: {named.name} has {there}")


@contextmanager
def nobody_looks(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What has become whole is not judged: the look at another one hangs."""
    over = trio.Event()
    look = Sealing._look

    async def hang(sealing: Sealing, group: Group) -> bool:
        await over.wait()
        return await look(sealing, group)

    with monkeypatch.context() as patch:
        patch.setattr(Sealing, "_look", hang)
        yield
    direct.run_sync(over.set)


def test_one_to_what_was_removed_is_not_committed_if_a_later_one_replaces_it(
    make_direct: Callable[..., Direct], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was held as long as its checkpoint was not published, and is staged already."""
    direct = make_direct(group_settle=0.1)
    save(direct, 3)
    until_it_names(direct, 3)
    direct.system.hook = looks = Looks(direct.shared)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        with nobody_looks(direct, monkeypatch):
            save(direct, 4)
            wait_until(lambda: Phase.STAGED in phases(direct), "it to be staged")
            save(direct, 5)
            remove(direct, 4)
        until_it_names(direct, 5)
    direct.system.hook = None
    assert looks.bad == []
