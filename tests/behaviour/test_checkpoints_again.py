"""A published checkpoint that is written over by a job that is killed, and then by the next one."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.behaviour.direct import CALLER, Direct
from tests.faults import failing
from tests.harness import wait_until
from tierfs.groups import State

PLAIN, MARKED = "checkpoint_step_5", "checkpoint-5"
FILES = ("a.bin", "b.bin")
TRAINER = ("model.safetensors", "optimizer.pt", "trainer_state.json")


@contextmanager
def job(direct: Direct, *, killed: bool = False) -> Iterator[int]:
    """A process of its own calls, and is killed or ends well."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        yield process.pid
        direct.caller = CALLER
        if killed:
            process.kill()
    wait_until(lambda: direct.run_sync(lambda: nobody_lives(direct)), "its end to be known")


def nobody_lives(direct: Direct) -> bool:
    return not any(group.writers.processes(State.LIVING) for group in direct.fs.core.groups)


def save(direct: Direct, at: str, names: tuple[str, ...], text: bytes) -> None:
    for name in names:
        direct.write_file(f"{at}/{name}", text)


def publish(direct: Direct) -> list[str]:
    """As `flush --wait`; why what is not sealed is not."""

    async def seal() -> list[str]:
        groups = direct.fs.core.groups
        reasons = []
        for group in groups:
            verdict = await direct.fs.sealing.flush(group, frozenset(), time.monotonic())
            if groups.get(group.id) is group and group.seal is None and verdict is not None:
                reasons.append(verdict.reason)
        return reasons

    direct.settle()
    found = direct.run(seal)
    direct.settle()
    return found


def published(direct: Direct, at: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (direct.shared / at).iterdir()}


def in_quarantine(direct: Direct) -> list[bytes]:
    kept = direct.rooms.fs.core.shared.quarantined()
    return sorted(Path(each.shown).read_bytes() for each in kept)


def saved_once(direct: Direct, at: str, names: tuple[str, ...]) -> None:
    direct.mkdir("run")
    with job(direct):
        direct.mkdir(at)
        save(direct, at, names, b"first")
    assert publish(direct) == []
    assert published(direct, at) == dict.fromkeys(names, b"first")


def test_a_pointer_of_dead_writers_says_nothing_of_what_the_next_job_writes(
    make_direct: Callable[..., Direct],
) -> None:
    """It was not yet published; with other parts than before, nothing is written over in it."""
    direct = make_direct(held=True)
    step, tracker = "iter_0000003", "latest_checkpointed_iteration.txt"

    def save_parts(parts: Iterable[int], text: bytes) -> None:
        for each in parts:
            folder = f"{step}/mp_rank_{each:02}"
            with suppress(FileExistsError):
                direct.mkdir(folder)
            direct.write_file(f"{folder}/model.pt", text)

    with job(direct):
        direct.mkdir(step)
        save_parts(range(2), b"first")
        direct.write_file(tracker, b"3")
    with job(direct, killed=True):
        save_parts(range(1), b"second")
    with job(direct):
        save_parts([2], b"third")
        direct.go()
        wait_until(lambda: direct.run_sync(lambda: is_looked_at(direct)), "it to be looked at")
        assert direct.run_sync(lambda: is_sealed(direct)) is False
        save_parts([3], b"third")
        direct.write_file(tracker, b"3")
        direct.settle()
    assert sorted(path.name for path in (direct.shared / step).glob("*/*")) == ["model.pt"] * 2
    assert (direct.shared / tracker).exists()


def is_looked_at(direct: Direct) -> bool:
    """Whether the only checkpoint is, or will be, published, or was found to be not whole."""
    for group in direct.fs.core.groups:
        idle = not any(direct.fs.sealing.under_way(group))
        return group.seal is not None or (idle and group.verdict is not None)
    return True


def is_sealed(direct: Direct) -> bool:
    """Whether the only checkpoint is, or will be, published."""
    return all(group.seal is not None for group in direct.fs.core.groups)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sent", [False, True])
def test_the_next_job_that_writes_all_of_it_publishes_it(
    direct: Direct, restarts: bool, sent: bool
) -> None:
    """Though it has neither marker nor pointer, and one who wrote it was killed."""
    at = f"run/{PLAIN}"
    saved_once(direct, at, FILES)
    with job(direct, killed=True):
        save(direct, at, FILES[:1], b"second")
        if sent:
            direct.settle()
    if restarts:
        direct.restart()
    assert publish(direct) == []
    assert published(direct, at) == dict.fromkeys(FILES, b"first")
    with job(direct):
        save(direct, at, FILES, b"third")
    assert publish(direct) == []
    assert published(direct, at) == dict.fromkeys(FILES, b"third")
    assert not (direct.shared / f"run/.staging_{PLAIN}").exists()


@pytest.mark.parametrize("held", [False, True])
def test_a_newer_checkpoint_of_the_next_job_publishes_it(direct: Direct, held: bool) -> None:
    at = f"run/{PLAIN}"
    saved_once(direct, at, FILES)
    if held:
        direct.restart(held=True)
    with job(direct, killed=True):
        save(direct, at, FILES[:1], b"second")
    with job(direct):
        save(direct, at, FILES, b"third")
        direct.mkdir("run/checkpoint_step_6")
        save(direct, "run/checkpoint_step_6", FILES, b"sixth")
        direct.settle()
        wait_until(lambda: published(direct, at) == dict.fromkeys(FILES, b"third"), "its seal")


def test_what_the_killed_one_wrote_over_and_the_next_did_not_is_as_it_was_published(
    direct: Direct,
) -> None:
    """Files of two saves do not become one checkpoint, and no file of the first one is missing.

    The next one begins before what the killed one left is given up (test_given_up.py).
    """
    at = f"run/{PLAIN}"
    saved_once(direct, at, FILES)
    direct.restart(held=True)
    with job(direct, killed=True):
        save(direct, at, (FILES[0], "more.bin"), b"second")
    with job(direct):
        save(direct, at, FILES[1:], b"third")
    assert direct.read_file(f"{at}/{FILES[0]}") == b"second", "until it is published"
    assert publish(direct) == []
    assert published(direct, at) == {FILES[0]: b"first", FILES[1]: b"third"}
    assert direct.read_file(f"{at}/{FILES[0]}") == b"first"
    assert in_quarantine(direct) == [b"second", b"second"]
    (group,) = (direct.shared / ".tierfs/groups").iterdir()
    direct.rooms.fs.core.shared.sweep_trash(0.0)
    assert not list(group.glob("linked-*"))


def test_what_the_next_one_removes_does_not_come_back(direct: Direct) -> None:
    at = f"run/{PLAIN}"
    saved_once(direct, at, FILES)
    with job(direct, killed=True):
        save(direct, at, FILES, b"second")
        direct.settle()
        direct.restart(held=True)
    with job(direct):
        direct.unlink(f"{at}/{FILES[0]}", process=0)  # an edit at once
        save(direct, at, FILES[1:], b"third")
    assert publish(direct) == []
    assert published(direct, at) == {FILES[1]: b"third"}


STEPS = (
    "linked.publish", "record.publish", "presence.write",
    "quarantine.link", "seal.link", "seal.take_back", "seal.exchange",
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_what_fails_on_the_way_is_made_again(direct: Direct, step: str) -> None:
    at = f"run/{PLAIN}"
    saved_once(direct, at, FILES)
    with job(direct, killed=True):
        save(direct, at, FILES[:1], b"second")
        direct.settle()
        direct.restart(held=True)
    direct.system.seen.clear()
    direct.system.hook = failing(step, errno.EIO)
    with job(direct):
        save(direct, at, FILES[1:], b"third")
    assert publish(direct) == []
    assert step in direct.system.seen
    assert published(direct, at) == {FILES[0]: b"first", FILES[1]: b"third"}
    assert set(in_quarantine(direct)) == {b"second"}


def test_an_end_marker_of_the_published_one_says_nothing_of_what_is_written_over(
    direct: Direct,
) -> None:
    at = f"run/{MARKED}"
    saved_once(direct, at, TRAINER)
    direct.restart(held=True)
    with job(direct, killed=True):
        save(direct, at, TRAINER[:1], b"second")
    with job(direct):
        save(direct, at, TRAINER[:1], b"third")
        assert "trainer_state.json" in "".join(publish(direct))
        assert published(direct, at) == dict.fromkeys(TRAINER, b"first")
        save(direct, at, TRAINER[1:], b"third")
    assert publish(direct) == []
    assert published(direct, at) == dict.fromkeys(TRAINER, b"third")


def test_one_that_a_lost_node_had_removed_and_begun_anew_is_written_again(
    make_direct: Callable[..., Direct],
) -> None:
    """The removal of the last whole one is held; the next of its name was there, unlisted."""
    lost, at = make_direct(), f"run/{PLAIN}"
    saved_once(lost, at, FILES)
    for name in FILES:
        lost.unlink(f"{at}/{name}")
    lost.rmdir(at)
    lost.mkdir(at)
    lost.write_file(f"{at}/{FILES[0]}", b"left")
    staged = lost.shared / "run" / f".staging_{PLAIN}" / FILES[0]
    wait_until(staged.exists, "the next one on the shared tier")
    assert published(lost, at) == dict.fromkeys(FILES, b"first")
    lost.stop()
    other = Direct(lost.shared.parent / f"{lost.shared.name}-other", lost.shared, lease=0.2)
    other.start()
    try:
        assert other.read_file(f"{at}/{FILES[0]}") == b"first"
        with job(other):
            save(other, at, FILES, b"second")
        assert publish(other) == []
        assert published(other, at) == dict.fromkeys(FILES, b"second")
        assert other.rooms.fs.core.shared.quarantined() != []
    finally:
        other.stop()
        shutil.rmtree(lost.shared.parent / f"{lost.shared.name}-other")
