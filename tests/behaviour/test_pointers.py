"""Pointers to checkpoints that are removed before they are published."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.behaviour.direct import CALLER, Direct
from tests.harness import wait_until
from tierfs.groups.facts import Decision
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


@pytest.fixture
def job() -> Iterator[int]:
    """A process that lives: what it writes is not left by all, however long the test takes."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


class Early:
    """Looks whenever something may change whether the pointer leads to something published.

    Attributes:
        seen: what it led to when nothing of that name was there.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self.seen: set[str] = set()

    def __call__(self, step: str, _: tuple[object, ...]) -> None:
        at = self._shared / POINTER
        if at.exists() and not (self._shared / at.read_text()).is_dir():
            self.seen.add(at.read_text())


def save_shards(direct: Direct, step: int) -> None:
    """All of a checkpoint but the pointer to it."""
    direct.mkdir(f"global_step{step}")
    for name in FILES:
        direct.write_file(f"global_step{step}/{name}", b"%d" % step)


def as_temporary(direct: Direct) -> None:
    """Has a temporary name, and is not sent before it is renamed."""
    direct.write_file("latest.tmp", b"global_step4")
    direct.rename("latest.tmp", POINTER)


def as_committed(direct: Direct) -> None:
    """Is on the shared tier before it is called like a pointer."""
    direct.write_file("newest", b"global_step4")
    wait_until((direct.shared / "newest").exists, "it to be committed")
    direct.rename("newest", POINTER)


def as_evicted(direct: Direct) -> None:
    """Is only on the shared tier before it is called like a pointer."""
    direct.write_file("newest", b"global_step4")
    wait_until((direct.shared / "newest").exists, "it to be committed")
    direct.settle_but_held()
    direct.drop_caches()
    inode = (direct.shared / "newest").stat().st_ino
    record = direct.run(direct.rooms.journal.clean_copy, inode)
    assert direct.run(direct.fs.eviction.drop_idle, [record]) == []
    direct.rename("newest", POINTER)


def as_open(direct: Direct) -> None:
    """Is renamed before it is closed."""
    fd = direct.open("latest.tmp", os.O_CREAT | os.O_WRONLY)
    direct.write(fd, b"global_step4")
    direct.rename("latest.tmp", POINTER)
    direct.close(fd)


def as_link(direct: Direct) -> None:
    """Gets the name as a second one."""
    direct.write_file("newest", b"global_step4")
    if (direct.shared / POINTER).exists():
        direct.unlink(POINTER)
    direct.link("newest", POINTER)


def as_from_elsewhere(direct: Direct) -> None:
    """Lay where its content named nothing."""
    direct.mkdir("elsewhere")
    direct.write_file("elsewhere/latest", b"global_step4")
    direct.rename("elsewhere/latest", POINTER)


WAYS = (as_temporary, as_committed, as_evicted, as_open, as_link, as_from_elsewhere)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_gets_its_name_by_a_rename_waits_for_its_checkpoint(
    make_direct: Callable[..., Direct], job: int, way: Callable[[Direct], None], *, first: bool,
    restarted: bool,
) -> None:  # fmt: skip
    direct = make_direct(group_settle=0.4)
    direct.caller = dataclasses.replace(CALLER, process=job)
    if not first:
        save(direct, 3)
        until_it_names(direct, 3)
    direct.system.hook = early = Early(direct.shared)
    save_shards(direct, 4)
    way(direct)
    if restarted:
        direct.kill()
    until_it_names(direct, 4)
    direct.system.hook = None
    assert early.seen == set()
    direct.settle()
    assert direct.read_file(POINTER) == b"global_step4"


def test_one_that_gets_its_name_by_a_rename_and_is_never_right_is_replaced(
    make_direct: Callable[..., Direct], job: int
) -> None:
    """What takes its name does not wait for a checkpoint that nobody will publish."""
    direct = make_direct(group_settle=0.1)
    direct.caller = dataclasses.replace(CALLER, process=job)
    save(direct, 3)
    until_it_names(direct, 3)
    direct.system.hook = early = Early(direct.shared)
    direct.mkdir("global_step4")
    direct.write_file("global_step4/notes", b"nothing of a model")
    as_committed(direct)
    for step in (5, 6):
        save_shards(direct, step)
        direct.write_file("newest", b"global_step%d" % step)
        direct.rename("newest", POINTER)
        until_it_names(direct, step)
    direct.system.hook = None
    assert early.seen == set()
    wait_until(lambda: not (direct.shared / "newest").exists(), "the old name to go")


@pytest.mark.parametrize("way", [None, as_temporary, as_committed])
def test_one_that_comes_when_its_checkpoint_was_looked_at_publishes_it(
    make_direct: Callable[..., Direct], job: int, way: Callable[[Direct], None] | None
) -> None:
    """Nothing else has changed in the checkpoint since, and nobody asks for it."""
    direct = make_direct(group_settle=0.1)
    direct.caller = dataclasses.replace(CALLER, process=job)
    save_shards(direct, 4)
    wait_until(lambda: verdict_of(direct, 4) is Decision.UNSETTLED, "nothing to publish it")
    if way is None:
        direct.write_file(POINTER, b"global_step4")
    else:
        way(direct)
    until_it_names(direct, 4)


def verdict_of(direct: Direct, step: int) -> Decision | None:
    """What was found when a checkpoint was looked at for the last time, a moment ago at least."""

    def look() -> Decision | None:
        name = b"global_step%d" % step
        group = next((each for each in direct.fs.core.groups if each.name == name), None)
        verdict = None if group is None else group.verdict
        return None if verdict is None else verdict.decision

    return direct.run_sync(look)
