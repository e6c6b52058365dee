"""Jobs that remove each checkpoint before they save the next (decision 22)."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.behaviour.direct import CALLER, Direct
from tests.harness import wait_until
from tierfs.model import ROOT, Op, OpKind
from tierfs.namespace.changing.decisions import Decisions

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
        direct.unlink(f"{AT}/{name}")
    direct.rmdir(AT)


def broken(step: str, _: tuple[object, ...]) -> None:
    """A removal of a checkpoint does not come to its end."""
    if step == "trash.stat":
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def pending(direct: Direct) -> list[OpKind]:
    return direct.run_sync(lambda: [op.kind for op in direct.rooms.backlog.under(ROOT)])


def until_sealed(direct: Direct) -> None:
    wait_until(lambda: OpKind.SEAL not in pending(direct), "the seal to be over")


def publish_and_remove(direct: Direct) -> None:
    """What was finished is on the shared tier then, and its removal is pending."""
    save(direct)
    time.sleep(IN_PEACE)
    remove(direct)
    direct.go()
    until_sealed(direct)


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
    until_sealed(direct)
    assert direct.listdir() == []
    assert not direct.exists(AT)
    assert sorted(path.name for path in (direct.shared / AT).iterdir()) == sorted(FILES)
    direct.settle_but_held()
    kinds = pending(direct)
    direct.restart()
    direct.settle_but_held()
    assert direct.listdir() == []
    assert not direct.exists(AT)
    assert sorted(pending(direct)) == sorted(kinds)


def test_a_removal_goes_when_the_next_of_its_name_is_published_though_that_is_removed_too(
    direct: Direct,
) -> None:
    """Also if it was another daemon that published it: neither waits for the other one."""
    with job(direct):
        publish_and_remove(direct)
        first = (direct.shared / AT).stat().st_ino
        direct.restart(held=True)
        save(direct)
        time.sleep(IN_PEACE)
        remove(direct)
        assert OpKind.SEAL in pending(direct)
        direct.system.hook = broken
        direct.go()
        until_sealed(direct)
        assert pending(direct).count(OpKind.TRASH) == 2
    direct.system.hook = None
    direct.restart()
    wait_until(lambda: pending(direct).count(OpKind.TRASH) == 1, "the first to go")
    assert (direct.shared / AT).stat().st_ino != first
    assert sorted(path.name for path in (direct.shared / AT).iterdir()) == sorted(FILES)
    assert direct.listdir() == []


def test_the_last_whole_one_stays_until_the_next_of_its_name_is_published_to_be_removed(
    direct: Direct,
) -> None:
    """What the next one needs does not wait for a removal that can only go behind it."""
    with job(direct):
        publish_and_remove(direct)
        first = (direct.shared / AT).stat().st_ino
        direct.restart(held=True)
        direct.mkdir(AT)
        direct.rmdir(AT)
        save(direct)
        time.sleep(IN_PEACE)
        remove(direct)
        assert OpKind.SEAL in pending(direct)
        direct.restart()
        until_sealed(direct)
    wait_until(lambda: pending(direct).count(OpKind.TRASH) == 1, "the first to go")
    assert (direct.shared / AT).stat().st_ino != first
    assert direct.listdir() == []


def test_what_was_begun_and_removed_under_the_name_needs_nothing_of_a_removal(
    direct: Direct,
) -> None:
    """It is held as the last whole one, and nothing waits for it."""
    with job(direct):
        publish_and_remove(direct)
        direct.restart(held=True)
        direct.write_file(AT, b"a file")
        direct.unlink(AT)
    assert pending(direct).count(OpKind.UNLINK) == len(FILES)
    direct.restart()
    direct.settle_but_held()
    assert sorted(path.name for path in (direct.shared / AT).iterdir()) == sorted(FILES)
    assert direct.listdir() == []


@pytest.mark.parametrize("change", ["unlink", "rename", "discard"])
def test_a_file_under_the_name_that_goes_again_needs_no_removal_of_its_own(
    direct: Direct, change: str
) -> None:
    """That one would find the checkpoint, whose removal is held; nor does that one come back."""
    with job(direct):
        save(direct)
        time.sleep(IN_PEACE)
        remove(direct)
        direct.write_file(AT, b"a file")
        if change == "unlink":
            direct.unlink(AT)
        elif change == "rename":
            direct.rename(AT, "a")
        else:
            (op,) = direct.run_sync(lambda: puts_of(direct, AT))
            direct.run(Decisions(direct.fs.core).discard, op)
    seen = {"a"} if change == "rename" else set()
    assert direct.tree().keys() == seen
    direct.go()
    until_sealed(direct)
    direct.settle_but_held()
    assert direct.tree().keys() == seen
    direct.restart()
    direct.settle_but_held()
    assert sorted(path.name for path in (direct.shared / AT).iterdir()) == sorted(FILES)
    assert direct.tree().keys() == seen


def puts_of(direct: Direct, name: str) -> list[Op]:
    """The files that are to be made under `name`."""
    ops = direct.rooms.backlog.under(ROOT)
    return [op for op in ops if op.kind is OpKind.PUT and op.name == name.encode()]


def test_one_that_is_published_after_the_removal_of_the_one_before_it_is_there(
    direct: Direct,
) -> None:
    """Its seal was pending when that removal ended."""
    with job(direct):
        publish_and_remove(direct)
        direct.settle_but_held()
        save(direct)
        wait_until(lambda: OpKind.PUT not in pending(direct), "all files to be sent")
        direct.system.hook = refusing(2)

        async def seal_and_remove() -> None:
            (group,) = direct.fs.core.groups
            direct.fs.core.groups.ask(group, -1)
            await direct.fs.sealing.judge_again(group)
            direct.rooms.writeback.removals.purge(list(direct.rooms.backlog.under(ROOT)))

        direct.run(seal_and_remove)
        wait_until(lambda: OpKind.RMDIR not in pending(direct), "the removal to be over")
        assert OpKind.SEAL in pending(direct)
        assert direct.listdir() == [AT]
        until_sealed(direct)
        assert direct.listdir() == [AT]
        assert sorted(direct.listdir(AT)) == sorted(FILES)


def refusing(times: int) -> Callable[[str, tuple[object, ...]], None]:
    """The first attempts to publish a checkpoint fail."""
    met = 0

    def hook(step: str, _: tuple[object, ...]) -> None:
        nonlocal met
        if step == "seal.open" and met < times:
            met += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return hook
