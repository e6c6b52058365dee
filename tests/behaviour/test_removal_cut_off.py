"""A job is killed while it removes a published checkpoint, file by file.

What is left is no checkpoint, so this mount does not list it. On the shared tier all of it stays
under its name until its removal may go: behind the saves that came before it, and while another
whole one is there (G4).
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.test_checkpoints import flush
from tests.harness import wait_until
from tierfs.model import CUT_OFF, ROOT, OpKind

NAMES = ("model.safetensors", "optimizer.pt", "trainer_state.json")
FIRST, SECOND = "checkpoint-1", "checkpoint-2"


@contextmanager
def killed(direct: Direct) -> Iterator[None]:
    """What is called inside is called by a process that is killed then."""
    with subprocess.Popen(["sleep", "60"]) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        yield
        direct.caller = CALLER
        process.kill()


def save(direct: Direct, at: str, text: bytes = b"old") -> None:
    direct.mkdir(at)
    for name in NAMES:
        direct.write_file(f"{at}/{name}", text)


def published(direct: Direct, at: str) -> None:
    """The checkpoint `at` is saved and committed; what follows is held back."""
    save(direct, at)
    direct.settle()
    flush(direct)
    direct.restart(held=True)


def whole(folder: Path, text: bytes = b"old") -> bool:
    """Whether a checkpoint is there with all its files."""
    try:
        return {path.name: path.read_bytes() for path in folder.iterdir()} == dict.fromkeys(
            NAMES, text
        )
    except FileNotFoundError:
        return False


def removals(direct: Direct) -> list[OpKind]:
    """The removals of checkpoints that are pending."""

    def find() -> list[OpKind]:
        ops = direct.rooms.backlog.under(ROOT)
        return [op.kind for op in ops if op.kind in (OpKind.TRASH, OpKind.RMDIR)]

    return direct.run_sync(find)


def publish(direct: Direct, at: str) -> None:
    """As `tierfs commit`, which does not wait."""
    groups = direct.fs.core.groups

    def ask() -> None:
        for group in groups:
            if os.fsdecode(group.name) == at:
                groups.ask(group, -1)

    direct.run_sync(ask)


def until_unlisted(direct: Direct, at: str = FIRST) -> None:
    wait_until(lambda: at not in direct.listdir(), "it to be unlisted", timeout=5)


class OneIsWhole:
    """Looks at the shared tier before each call that changes it; `bad`: when none was whole."""

    def __init__(self, shared: Path, *texts: bytes) -> None:
        self._shared = shared
        self._texts = texts or (b"old",)
        self.bad: list[str] = []

    def __call__(self, step: str, _: tuple[object, ...]) -> None:
        places = [self._shared / at for at in (FIRST, SECOND)]
        if not any(whole(at, text) for at in places for text in self._texts):
            self.bad.append(f"before {step}: {sorted(os.listdir(self._shared))}")


@pytest.mark.parametrize("restarts", [False, True])
def test_it_stays_until_what_was_saved_before_is_published(
    make_direct: Callable[..., Direct], restarts: bool
) -> None:
    """The save of the second was issued before; it is not sealed when the job is killed."""
    direct = make_direct(held=True, group_settle=600.0)
    published(direct, FIRST)
    with killed(direct):
        save(direct, SECOND)
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    if restarts:
        direct.restart(held=True)
    direct.system.hook = looks = OneIsWhole(direct.shared)
    direct.settle_but_held()
    assert whole(direct.shared / FIRST)
    assert sorted(direct.listdir(FIRST)) == sorted(NAMES[1:])
    publish(direct, SECOND)
    wait_until(lambda: not (direct.shared / FIRST).exists(), "its removal to go")
    assert looks.bad == []
    assert whole(direct.shared / SECOND)
    assert direct.listdir() == [SECOND]
    left = direct.shared / f".staging_{FIRST}"
    wait_until(lambda: sorted(os.listdir(left)) == sorted(NAMES[1:]), "the removal to be made")


@pytest.mark.parametrize("ends", ["while it lives", "before a start", "before a start, and again"])
def test_it_is_known_after_a_restart(direct: Direct, ends: str) -> None:
    """Also if who removes makes no call that the next daemon knows of."""
    published(direct, FIRST)
    with subprocess.Popen(["sleep", "60"]) as unlinker:
        direct.unlink(f"{FIRST}/{NAMES[0]}", unlinker.pid)
        if ends == "while it lives":
            direct.restart(held=True)
            assert direct.listdir() == [FIRST]
            unlinker.kill()
        else:
            direct.stop()
            unlinker.kill()
            unlinker.wait()
            direct.start(held=True)
            assert direct.listdir() == []
    if ends == "before a start, and again":
        direct.restart(held=True)
    until_unlisted(direct)
    direct.settle_but_held()
    assert direct.listdir() == []
    assert whole(direct.shared / FIRST)
    assert removals(direct) == [OpKind.TRASH]
    direct.restart()
    direct.settle_but_held()
    assert direct.listdir() == []
    assert sorted(direct.listdir(FIRST)) == sorted(NAMES[1:])
    assert whole(direct.shared / FIRST)


def test_the_end_of_who_removed_it_is_in_the_journal(direct: Direct) -> None:
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")

    def told() -> bool:
        return any(CUT_OFF in op.fields for op in direct.rooms.backlog.under(ROOT))

    wait_until(lambda: direct.run_sync(told), "its end to be known")
    direct.restart(held=True)
    assert direct.listdir() == []


def test_what_is_left_is_gone_when_the_held_removal_is_let_go(direct: Direct) -> None:
    """As `tierfs purge`, a full tier or `delete_hold` do."""
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    direct.settle_but_held()
    writeback = direct.rooms.writeback
    direct.run_sync(lambda: writeback.removals.purge(list(direct.rooms.backlog.under(ROOT))))
    direct.settle()
    assert not (direct.shared / FIRST).exists()
    assert sorted(os.listdir(direct.shared / f".staging_{FIRST}")) == sorted(NAMES[1:])


@pytest.mark.parametrize("restarts", [False, True])
def test_the_next_job_removes_the_rest(direct: Direct, restarts: bool) -> None:
    """It is removed as a whole then; what is held is what was whole."""
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    if restarts:
        direct.restart(held=True)
    for name in NAMES[1:]:
        direct.unlink(f"{FIRST}/{name}")
    direct.rmdir(FIRST)
    assert not direct.exists(FIRST)
    direct.settle_but_held()
    assert whole(direct.shared / FIRST)
    assert removals(direct) == [OpKind.TRASH]
    direct.restart()
    direct.settle_but_held()
    assert not direct.exists(FIRST)
    assert direct.listdir() == []
    save(direct, SECOND)
    publish(direct, SECOND)
    wait_until(lambda: not (direct.shared / FIRST).exists(), "it to go")
    direct.settle()
    assert sorted(os.listdir(direct.shared)) == [".tierfs", SECOND]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sent", [False, True])
def test_the_next_job_saves_it_again(direct: Direct, sent: bool, restarts: bool) -> None:
    """What was whole stays until the new one takes its name, in one exchange."""
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    if sent:
        direct.settle_but_held()
    direct.system.hook = looks = OneIsWhole(direct.shared, b"old", b"new")
    for name in NAMES:
        direct.write_file(f"{FIRST}/{name}", b"new")
    if restarts:
        direct.restart(held=not sent)
    direct.settle_but_held()
    assert whole(direct.shared / FIRST)
    publish(direct, FIRST)
    wait_until(lambda: whole(direct.shared / FIRST, b"new"), "the new one to be published")
    assert looks.bad == []
    direct.settle()
    assert direct.listdir() == [FIRST]
    assert removals(direct) == []
    assert sorted(os.listdir(direct.shared)) == [".tierfs", FIRST]
    direct.restart()
    assert direct.listdir() == [FIRST]
    assert {name: direct.read_file(f"{FIRST}/{name}") for name in NAMES} == dict.fromkeys(
        NAMES, b"new"
    )


def test_its_rest_gets_another_name(direct: Direct) -> None:
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    direct.rename(FIRST, "kept")
    direct.settle_but_held()
    assert sorted(os.listdir(direct.shared / "kept")) == sorted(NAMES[1:])
    assert whole(direct.shared / FIRST)
    assert direct.listdir() == ["kept"]
    direct.restart()
    assert direct.listdir() == ["kept"]
    assert sorted(direct.listdir("kept")) == sorted(NAMES[1:])


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("back", [FIRST, "b"])
def test_its_rest_gets_another_name_and_the_old_one_back(
    make_direct: Callable[..., Direct], restarts: bool, back: str
) -> None:
    """What is whole was held under that name, and nobody is to wait for it (`mv a b; mv b a`)."""
    direct = make_direct(held=True)
    published(direct, FIRST)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    direct.rename(FIRST, "a")
    direct.rename("a", back)
    if restarts:
        direct.restart(held=True)
    direct.settle_but_held()
    assert sorted(path.name for path in (direct.shared / back).iterdir()) == [*NAMES[1:]]
    assert whole(direct.shared / FIRST) == (back != FIRST)
    assert sorted(direct.listdir(back)) == [*NAMES[1:]]


def test_what_is_left_is_not_published_though_its_marker_is_there(
    make_direct: Callable[..., Direct],
) -> None:
    """Beside another whole one it has no name that others see; the next job makes it whole."""
    direct = make_direct(group_settle=0.2)
    save(direct, FIRST)
    save(direct, SECOND)
    direct.settle()
    flush(direct)
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[1]}")
    wait_until(lambda: not (direct.shared / FIRST).exists(), "it to go")
    direct.settle()
    time.sleep(1.0)
    assert direct.listdir() == [SECOND]
    assert sorted(os.listdir(direct.shared)) == [f".staging_{FIRST}", ".tierfs", SECOND]
    assert sorted(os.listdir(direct.shared / f".staging_{FIRST}")) == [NAMES[0], NAMES[2]]
    for name in NAMES:
        direct.write_file(f"{FIRST}/{name}", b"new")
    wait_until(lambda: whole(direct.shared / FIRST, b"new"), "the new one to be published")
    direct.settle()
    assert sorted(direct.listdir()) == [FIRST, SECOND]
    assert sorted(os.listdir(direct.shared)) == [".tierfs", FIRST, SECOND]


def test_nothing_is_kept_of_what_was_removed_in_two_steps(direct: Direct) -> None:
    """The records of a checkpoint go with the last of its generations."""
    save(direct, FIRST)
    save(direct, SECOND)
    direct.settle()
    flush(direct)
    records = direct.shared / ".tierfs" / "groups"
    assert len(os.listdir(records)) == 2
    with killed(direct):
        direct.unlink(f"{FIRST}/{NAMES[0]}")
    until_unlisted(direct)
    for name in NAMES[1:]:
        direct.unlink(f"{FIRST}/{name}")
    direct.rmdir(FIRST)
    direct.settle()
    assert sorted(os.listdir(direct.shared)) == [".tierfs", SECOND]
    assert len(os.listdir(records)) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_held_removal_stays_when_its_directory_gets_another_name(
    direct: Direct, restarts: bool
) -> None:
    """mv run old; mkdir run: what has the name now is another directory."""
    direct.mkdir("run")
    save(direct, f"run/{FIRST}")
    direct.settle()
    flush(direct)
    for name in NAMES:
        direct.unlink(f"run/{FIRST}/{name}")
    direct.rmdir(f"run/{FIRST}")
    direct.settle_but_held()
    if restarts:
        direct.restart(held=True)
    direct.rename("run", "old")
    direct.mkdir("run")
    direct.settle_but_held()
    assert whole(direct.shared / "old" / FIRST)
    assert sorted(direct.listdir()) == ["old", "run"]
    assert direct.listdir("old") == []
    direct.restart()
    direct.settle_but_held()
    assert whole(direct.shared / "old" / FIRST)
    save(direct, f"old/{FIRST}", b"new")
    publish(direct, FIRST)
    wait_until(lambda: whole(direct.shared / "old" / FIRST, b"new"), "the new one to be published")
