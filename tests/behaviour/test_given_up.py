"""A published checkpoint that was written over by a job that was killed: it is as it was published.

What is whole stays, and what the job wrote is in quarantine.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.test_checkpoints_again import (
    FILES,
    MARKED,
    PLAIN,
    TRAINER,
    job,
    nobody_lives,
    publish,
    published,
    save,
    saved_once,
)
from tests.faults import failing
from tests.harness import wait_until
from tierfs.model import ROOT, OpKind, Reopen
from tierfs.namespace.finding import seen

AT = f"run/{PLAIN}"
FIRST = dict.fromkeys(FILES, b"first")


def is_over(direct: Direct) -> bool:
    """Whether nothing is being written over any more, and nothing is pending."""
    return direct.run_sync(
        lambda: not list(direct.fs.core.groups) and not len(direct.rooms.backlog)
    )


def given_up(direct: Direct) -> None:
    direct.go()
    wait_until(lambda: is_over(direct), "what the killed job wrote to be given up")


def shown(direct: Direct, at: str = AT) -> dict[str, bytes]:
    """All files below `at`, as the mount has them."""
    found: dict[str, bytes] = {}
    for name in direct.listdir(at):
        path = f"{at}/{name}"
        if direct.stat(path).kind.value == "directory":
            found |= {f"{name}/{each}": text for each, text in shown(direct, path).items()}
        else:
            found[name] = direct.read_file(path)
    return found


def kept(direct: Direct) -> dict[str, bytes]:
    """The files in quarantine, each by its path in what is kept."""
    found = {}
    for each in direct.rooms.fs.core.shared.quarantined():
        top = Path(each.shown)
        found |= {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*") if path.is_file()
        }  # fmt: skip
    return found


def pending(direct: Direct) -> list[Reopen]:
    """The REOPENs that are pending."""
    ops = direct.rooms.backlog.under
    found = direct.run_sync(lambda: [op for op in ops(1) if op.kind is OpKind.REOPEN])
    return [Reopen(op.flags) for op in found]


@pytest.mark.parametrize(("at", "names"), [(AT, FILES), (f"run/{MARKED}", TRAINER)])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sent", [False, True])
def test_it_is_shown_as_it_was_published(
    direct: Direct, at: str, names: tuple[str, ...], restarts: bool, sent: bool
) -> None:
    saved_once(direct, at, names)
    with job(direct, killed=True):
        save(direct, at, (*names[:1], "more.bin"), b"half")
        if sent:
            direct.settle()
    if restarts:
        direct.restart()
    given_up(direct)
    first = dict.fromkeys(names, b"first")
    assert shown(direct, at) == published(direct, at) == first
    assert direct.listdir("run") == [os.path.basename(at)]
    assert os.listdir(direct.shared / "run") == [os.path.basename(at)]
    assert kept(direct) == {names[0]: b"half", "more.bin": b"half"}
    assert direct.stat(f"{at}/{names[1]}").nlink == 1, "nothing of it is kept twice"
    (group,) = (direct.shared / ".tierfs/groups").iterdir()
    assert len(list(group.glob("0*.json"))) == 1
    assert not list(group.glob("linked-*"))
    direct.restart()
    assert shown(direct, at) == first


def test_what_was_torn_when_it_was_killed_is_kept_as_well(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    with subprocess.Popen(["sleep", "60"]) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        save(direct, AT, FILES[:1], b"second")
        fd = direct.open(f"{AT}/{FILES[1]}", os.O_WRONLY | os.O_TRUNC)
        direct.write(fd, b"to")
        direct.caller = CALLER
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        opened = direct._fds.pop(fd)
        direct.run(direct.fs.files.flush, opened.handle, process.pid)
        direct.run(direct.fs.files.release, opened.handle)
    given_up(direct)
    assert shown(direct) == FIRST
    assert kept(direct) == {FILES[0]: b"second", FILES[1]: b"to"}


def test_what_has_a_temporary_name_does_not_hold_it_up(direct: Direct) -> None:
    """Nobody is left who gives it another name."""
    saved_once(direct, AT, FILES)
    with job(direct, killed=True):
        save(direct, AT, (FILES[0], ".tmpAb3dEf"), b"half")
    given_up(direct)
    assert shown(direct) == FIRST
    assert kept(direct) == {FILES[0]: b"half", ".tmpAb3dEf": b"half"}


def test_directories_are_as_they_were(direct: Direct) -> None:
    """One that it made is gone, one that it emptied and moved away is there again."""
    direct.mkdir("run")
    names = ("a/x.bin", "a/y.bin", "b/z.bin")
    with job(direct):
        direct.mkdir(AT)
        for folder in ("a", "b"):
            direct.mkdir(f"{AT}/{folder}")
        save(direct, AT, names, b"first")
    assert publish(direct) == []
    with job(direct, killed=True):
        save(direct, AT, names[:1], b"half")
        direct.mkdir(f"{AT}/new")
        save(direct, AT, ("new/w.bin",), b"half")
        direct.unlink(f"{AT}/a/y.bin", process=0)
        direct.rename(f"{AT}/b", "run/moved")
    given_up(direct)
    assert shown(direct) == dict.fromkeys(names, b"first")
    with pytest.raises(FileNotFoundError):
        direct.stat(f"{AT}/new")
    assert direct.read_file("run/moved/z.bin") == b"first"
    with job(direct):
        save(direct, AT, (*names[:2], "b/more.bin"), b"third")
        save(direct, "run/moved", ("more.bin",), b"third")
    assert publish(direct) == []
    third = dict.fromkeys((*names[:2], "b/more.bin"), b"third")
    assert shown(direct) == {**third, "b/z.bin": b"first"}
    assert (direct.shared / AT / "b/more.bin").read_bytes() == b"third"
    assert (direct.shared / "run/moved/more.bin").read_bytes() == b"third"


def test_the_next_job_writes_it_over(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    for _ in range(2):
        with job(direct, killed=True):
            save(direct, AT, FILES[:1], b"half")
        given_up(direct)
    with job(direct):
        save(direct, AT, FILES, b"third")
    assert publish(direct) == []
    assert published(direct, AT) == shown(direct) == dict.fromkeys(FILES, b"third")
    direct.rooms.fs.core.shared.sweep_trash(0.0)
    (group,) = (direct.shared / ".tierfs/groups").iterdir()
    assert not list(group.glob("linked-*"))


@pytest.mark.parametrize("restarts", [False, True])
def test_who_writes_on_before_begins_anew(direct: Direct, restarts: bool) -> None:
    saved_once(direct, AT, FILES)
    direct.restart(held=True)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"second")
    wait_until(lambda: Reopen.GIVEN_UP in pending(direct), "it to be given up")
    if restarts:
        direct.restart(held=True)
    with job(direct):
        save(direct, AT, FILES, b"third")
        direct.unlink(f"{AT}/{FILES[0]}", process=0)
        save(direct, AT, FILES[:1], b"again")
    assert (Reopen.GIVEN_UP in pending(direct)) is restarts, "it may have begun"
    assert publish(direct) == []
    assert published(direct, AT) == shown(direct) == {FILES[0]: b"again", FILES[1]: b"third"}


def test_what_is_removed_while_it_may_be_given_up_is_removed(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    direct.restart(held=True)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"second")
    wait_until(lambda: Reopen.GIVEN_UP in pending(direct), "it to be given up")
    direct.restart(held=True)
    for name in FILES:
        direct.unlink(f"{AT}/{name}")
    direct.rmdir(AT)
    direct.settle_but_held()
    assert direct.listdir("run") == []


STEPS = (
    "give_up.open", "quarantine.rename", "give_up.unlink", "record.publish", "staging.remove",
    "quarantine.fsync_dir",
)  # fmt: skip


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_what_fails_on_the_way_is_made_again(direct: Direct, step: str, restarts: bool) -> None:
    saved_once(direct, AT, FILES)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"half")
        direct.settle()
        direct.system.seen.clear()
        direct.system.hook = failing(step, errno.EIO)
    wait_until(lambda: step in direct.system.seen, f"{step} to be reached")
    if restarts:
        direct.restart()
    given_up(direct)
    assert shown(direct) == published(direct, AT) == FIRST
    assert kept(direct)[FILES[0]] == b"half"


def test_what_it_wrote_whole_is_published(direct: Direct) -> None:
    """It was killed after its end marker; nobody looked before."""
    at = f"run/{MARKED}"
    saved_once(direct, at, TRAINER)
    with job(direct, killed=True):
        save(direct, at, TRAINER, b"second")
    assert publish(direct) == []
    assert published(direct, at) == shown(direct, at) == dict.fromkeys(TRAINER, b"second")
    assert kept(direct) == {}


def test_what_a_pointer_names_is_published(direct: Direct) -> None:
    """It was killed after it had written the pointer, too."""
    at, tracker = "iter_0000003", "latest_checkpointed_iteration.txt"
    names = [f"mp_rank_{each:02}/model.pt" for each in range(2)]

    def save_all(text: bytes) -> None:
        save(direct, at, tuple(names), text)
        direct.write_file(tracker, b"3")

    with job(direct):
        direct.mkdir(at)
        for name in names:
            direct.mkdir(f"{at}/{os.path.dirname(name)}")
        save_all(b"first")
    assert publish(direct) == []
    with job(direct, killed=True):
        save_all(b"second")
    assert publish(direct) == []
    assert shown(direct, at) == dict.fromkeys(names, b"second")
    assert kept(direct) == {}


def test_what_ended_well_waits_for_its_flush(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    with job(direct):
        save(direct, AT, FILES[:1], b"second")
    direct.settle()
    assert shown(direct) == {FILES[0]: b"second", FILES[1]: b"first"}
    assert publish(direct) == []
    assert published(direct, AT) == {FILES[0]: b"second", FILES[1]: b"first"}


def test_while_another_one_lives_it_stays(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    with job(direct) as living:
        save(direct, AT, FILES[:1], b"second")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
            direct.caller = dataclasses.replace(CALLER, process=other.pid)
            save(direct, AT, FILES[1:], b"half")
            other.kill()
        direct.caller = dataclasses.replace(CALLER, process=living)
        direct.settle()
        assert shown(direct) == {FILES[0]: b"second", FILES[1]: b"half"}
    given_up(direct)
    assert shown(direct) == FIRST
    assert kept(direct) == {FILES[0]: b"second", FILES[1]: b"half"}


def test_what_another_removed_in_it_does_not_come_back(direct: Direct) -> None:
    saved_once(direct, AT, FILES)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as killed:
        direct.caller = dataclasses.replace(CALLER, process=killed.pid)
        save(direct, AT, ("more.bin",), b"half")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
            direct.unlink(f"{AT}/{FILES[1]}", process=other.pid)
        direct.caller = CALLER
        killed.kill()
    wait_until(lambda: direct.run_sync(lambda: nobody_lives(direct)), "its end to be known")
    direct.settle()
    assert sorted(shown(direct)) == [FILES[0], "more.bin"]


def test_what_somebody_calls_whole_is_published(direct: Direct) -> None:
    """`tierfs commit`, of which the word is there when the last writer is killed."""
    saved_once(direct, AT, FILES)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"second")
        groups = direct.fs.core.groups

        def ask() -> None:
            for group in groups:
                groups.ask(group, -1)

        direct.run_sync(ask)
    direct.settle()
    wait_until(lambda: is_over(direct), "it to be published")
    assert published(direct, AT) == shown(direct) == {FILES[0]: b"second", FILES[1]: b"first"}


def test_it_stays_if_what_was_published_is_gone(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct()
    saved_once(direct, AT, FILES)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"second")
        direct.settle()
        for path in (direct.shared / AT).iterdir():
            path.unlink()
        (direct.shared / AT).rmdir()
    wait_until(
        lambda: direct.run_sync(lambda: all(g.stays for g in direct.fs.core.groups)),
        "it to be seen",
    )
    assert shown(direct) == {FILES[0]: b"second", FILES[1]: b"first"}
    with job(direct):
        save(direct, AT, FILES, b"third")
    assert publish(direct) == []
    assert published(direct, AT) == dict.fromkeys(FILES, b"third")


def slow(step: str, _: tuple[object, ...]) -> None:
    if step == "quarantine.rename":
        time.sleep(0.5)


@pytest.mark.parametrize("look", ["by name", "listed", "open"])
@pytest.mark.parametrize("torn", [False, True])
def test_who_looks_at_once_sees_what_is_published(direct: Direct, look: str, torn: bool) -> None:
    """As a job that is started again: it waits until what was written over is given up."""
    saved_once(direct, AT, FILES)
    with subprocess.Popen(["sleep", "60"]) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        save(direct, AT, (FILES[0], "more.bin"), b"half")
        fd = direct.open(f"{AT}/{FILES[1]}", os.O_WRONLY) if torn else -1
        direct.caller = CALLER
        stale = direct._again(direct._stat, f"{AT}/{FILES[0]}")[0]
        direct.system.hook = slow
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if torn:
            direct.write(fd, b"to")
            opened = direct._fds.pop(fd)
            direct.run(direct.fs.files.flush, opened.handle, process.pid)
            direct.run(direct.fs.files.release, opened.handle)
        wait_until(lambda: direct.run_sync(lambda: nobody_lives(direct)), "its end to be known")
    if look == "by name":
        assert direct.read_file(f"{AT}/{FILES[0]}") == b"first"
    elif look == "listed":
        assert sorted(direct.listdir(AT)) == sorted(FILES)
    else:
        with pytest.raises(OSError, match=f"Errno {errno.ESTALE}"):  # the kernel looks it up again
            direct.run(direct.fs.files.open, stale, os.O_RDONLY, CALLER)
    assert shown(direct) == FIRST


def test_who_removes_what_he_saw_before_removes_what_is_there_again(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal does not ask once more for what was listed just now, and names its inode."""
    monkeypatch.setattr(seen, "BELIEVED_SECONDS", 60.0)
    saved_once(direct, AT, FILES)
    with job(direct, killed=True):
        save(direct, AT, FILES[:1], b"half")
        direct.settle()
        direct.restart()  # nothing has an object here
        assert sorted(direct.listdir(AT)) == sorted(FILES)
    given_up(direct)
    direct.unlink(f"{AT}/{FILES[0]}")
    ops = direct.run_sync(
        lambda: [(op.kind, op.base_inode) for op in direct.rooms.backlog.under(ROOT)]
    )
    assert ops == [(OpKind.UNLINK, (direct.shared / AT / FILES[0]).stat().st_ino)]
