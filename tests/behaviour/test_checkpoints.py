"""Checkpoints in which names are taken and given again while ops are pending: what is published."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.behaviour.calls import Calls, OsCalls, beside, error_of
from tests.behaviour.direct import CALLER, Direct
from tests.behaviour.stalls import until_looked_at
from tests.faults import Stall, failing
from tests.harness import wait_until
from tierfs.control.server import Peer
from tierfs.daemon.flushing import Flushing
from tierfs.daemon.report import Report
from tierfs.groups import State, Verdict
from tierfs.model import ROOT, UNLINKED_BY
from tierfs.namespace.grouping.broken import Broken
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.grouping.taking_part import TakingPart

Step = Callable[[Direct], object]
NAMES = ("model.safetensors", "trainer_state.json")
AT = "checkpoint-1"


def made(at: str) -> Step:
    """A directory that holds all files of a checkpoint."""

    def step(direct: Direct) -> None:
        direct.mkdir(at)
        for name in NAMES:
            direct.write_file(f"{at}/{name}", b"old")

    return step


def renamed(old: str, new: str) -> Step:
    """A directory gets another name."""
    return lambda direct: direct.rename(old, new)


def removed(path: str) -> Step:
    """A file goes."""
    return lambda direct: direct.unlink(path)


def written(path: str) -> Step:
    """A file is made, or written anew."""
    return lambda direct: direct.write_file(path, b"new")


def put_into_place(path: str) -> Step:
    """A file is written under another name and renamed."""

    def step(direct: Direct) -> None:
        direct.write_file(f"{path}.tmp", b"new")
        direct.rename(f"{path}.tmp", path)

    return step


def sent(direct: Direct) -> None:
    """Everything so far is committed; what follows is held back again."""
    direct.settle()
    flush(direct)
    direct.restart(held=True)


MARKER, MODEL = (f"{AT}/{name}" for name in reversed(NAMES))

STORIES: dict[str, list[Step]] = {
    "marker again, nothing sent": [
        made("b"), renamed("b", AT), removed(MARKER), written(MARKER),
    ],
    "marker again": [made(AT), sent, removed(MARKER), written(MARKER)],
    "marker put into place again": [made(AT), sent, removed(MARKER), put_into_place(MARKER)],
    "marker put into place again, nothing sent": [
        made("b"), renamed("b", AT), removed(MARKER), put_into_place(MARKER),
    ],
    "marker again before the rename": [
        made("b"), sent, removed(f"b/{NAMES[1]}"), written(f"b/{NAMES[1]}"), renamed("b", AT),
    ],
    "marker again around the rename": [
        made("b"), sent, removed(f"b/{NAMES[1]}"), renamed("b", AT), written(MARKER),
    ],
    "all again": [made(AT), sent, removed(MODEL), written(MODEL), written(MARKER)],
    "all again, nothing sent": [
        made("b"), renamed("b", AT), removed(MODEL), written(MODEL), written(MARKER),
    ],
    "all again, another name": [
        made("checkpoint-2"), sent, removed(f"checkpoint-2/{NAMES[1]}"),
        renamed("checkpoint-2", AT), removed(MODEL), written(MODEL), written(MARKER),
    ],
}  # fmt: skip


def flush(direct: Direct) -> None:
    """As `flush --wait`: what is whole is sealed, and the removals are made."""

    async def seal() -> list[str]:
        groups = direct.fs.core.groups
        reasons = []
        for group in groups:
            verdict = await direct.fs.sealing.flush(group, frozenset(), time.monotonic())
            if groups.get(group.id) is group and group.seal is None and verdict is not None:
                reasons.append(verdict.reason)
        return reasons

    assert direct.run(seal) == []
    direct.settle()


def contents(calls: Calls) -> dict[str, bytes]:
    """What is seen of the files."""
    return {path: item.content for path, item in calls.tree().items()}


class Looks:
    """Looks at the shared tier before each call that may change it.

    Attributes:
        bad: what looked like a whole checkpoint and was none.
    """

    def __init__(self, shared: Path) -> None:
        self._at = shared / AT
        self.bad: list[str] = []

    def __call__(self, step: str, _: tuple[object, ...]) -> None:
        try:
            there = set(os.listdir(self._at))
        except FileNotFoundError:
            return
        if NAMES[1] in there and NAMES[0] not in there:
            self.bad.append(f"before {step}: {sorted(there)}")


def test_a_checkpoint_that_was_sealed_since_is_listed(make_direct: Callable[..., Direct]) -> None:
    """What was listed a moment ago is told again: without its name, as it was not sealed then."""
    direct = make_direct()
    made(AT)(direct)
    direct.settle()
    assert direct.listdir() == [AT]
    scan = direct.fs.tree.directory(1).scan
    assert scan is not None
    scan.until += 60
    flush(direct)
    assert (direct.shared / AT).exists()
    assert direct.listdir() == [AT]


@pytest.mark.parametrize("story", STORIES)
def test_names_taken_and_given_again(make_direct: Callable[..., Direct], story: str) -> None:
    """With a restart after each step in turn, and without: whole under its name, or not there."""
    steps = STORIES[story]
    for dies in range(len(steps) + 1):
        direct = make_direct(held=True)
        for index, step in enumerate(steps):
            step(direct)
            if index == dies:
                direct.restart(held=True)
        direct.system.hook = looks = Looks(direct.shared)
        before = contents(direct)
        direct.settle()
        flush(direct)
        direct.system.hook = None
        assert contents(direct) == contents(OsCalls(direct.shared)) == before
        assert looks.bad == [], f"restart after step {dies}"


def test_a_flush_in_the_middle_of_a_removal_does_not_make_half_of_it(
    make_direct: Callable[..., Direct],
) -> None:
    """Nothing is taken from what stands under its name until it is known what is meant."""
    direct = make_direct()
    made(AT)(direct)
    sent(direct)
    direct.go()

    async def flush_by(*processes: int) -> bool:
        rooms = direct.rooms
        ops = list(rooms.backlog.under(ROOT))
        unlinkers = rooms.fs.core.groups.unlinkers
        done = await rooms.writeback.wait(
            ops, 0.5, keeps=lambda op: unlinkers.is_under_way(op, processes)
        )
        return done.timed_out

    with subprocess.Popen(["sleep", "60"]) as unlinker:
        direct.unlink(MODEL, unlinker.pid)
        assert direct.run(flush_by, os.getpid())
        assert {path.name for path in (direct.shared / AT).iterdir()} == set(NAMES)
        assert not direct.run(flush_by, unlinker.pid), "who removed it wants it to be made"
        assert {path.name for path in (direct.shared / AT).iterdir()} == {NAMES[1]}
        unlinker.terminate()


@pytest.mark.parametrize("done", ["it ends", "it saves elsewhere", "it removes elsewhere"])
@pytest.mark.parametrize("restarts", [False, True])
def test_one_who_removes_and_is_quiet_for_long_has_not_edited_it_yet(
    make_direct: Callable[..., Direct], done: str, restarts: bool
) -> None:
    """He may go on with it: half of a removal is not to stand under the name of the checkpoint."""
    direct = make_direct(group_settle=0.1)
    direct.mkdir("other")
    direct.write_file("other/file", b"x")
    made(AT)(direct)
    sent(direct)
    there = direct.shared / AT / NAMES[0]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as unlinker:
        direct.unlink(MODEL, unlinker.pid)
        if restarts:
            direct.restart()
        direct.go()
        time.sleep(0.5)
        assert there.exists()
        direct.caller = dataclasses.replace(CALLER, process=unlinker.pid)
        if done == "it saves elsewhere":
            direct.write_file("other/new", b"y")
        elif done == "it removes elsewhere":
            direct.unlink("other/file", unlinker.pid)
        else:
            assert unlinker.stdin is not None
            unlinker.stdin.close()
            unlinker.wait()
        wait_until(lambda: not there.exists(), "the edit to be made")
    assert direct.listdir(AT) == [NAMES[1]] == os.listdir(direct.shared / AT)


def left_alone(direct: Direct) -> set[Path]:
    """Which files of a checkpoint are on the shared tier, when all that can go has gone."""
    direct.settle()
    return {path for path in direct.shared.rglob("*") if path.name in NAMES}


def test_an_unlinker_that_lived_at_a_restart_and_ends_well_has_edited_it(direct: Direct) -> None:
    made(AT)(direct)
    sent(direct)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as unlinker:
        direct.unlink(MODEL, unlinker.pid)
        direct.restart(held=True)
    assert unlinker.returncode == 0

    def forgotten() -> bool:
        ops = direct.rooms.backlog.under(ROOT)
        return not any(field.startswith(UNLINKED_BY) for op in ops for field in op.fields)

    wait_until(lambda: direct.run_sync(forgotten), "its end to be known")
    direct.restart(held=True)
    assert direct.listdir() == [AT]
    assert left_alone(direct) == {direct.shared / AT / NAMES[1]}


def test_what_was_written_before_its_directory_went_into_a_checkpoint_survives_a_restart(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    for directory in ("top", f"top/{AT}", "part"):
        direct.mkdir(directory)
    for name in NAMES:
        direct.write_file(f"top/{AT}/{name}", b"old")
    sent(direct)
    direct.write_file("part/shard", b"new")
    direct.rename("part", f"top/{AT}/part")
    before = contents(direct)
    direct.restart(held=True)
    assert contents(direct) == before
    direct.settle()
    flush(direct)
    assert contents(direct) == contents(OsCalls(direct.shared)) == before


STEP, TRACKER = "iter_0000003", "latest_checkpointed_iteration.txt"
PARTS = ("mp_rank_00", "mp_rank_01")


def save_step(direct: Direct, text: bytes, *, parts: int = len(PARTS), die: bool = False) -> None:
    """A process of its own that saves, and names what it has saved if that is all of it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        for folder in (STEP, *(f"{STEP}/{part}" for part in PARTS)):
            with contextlib.suppress(FileExistsError):
                direct.mkdir(folder)
        for part in PARTS[:parts]:
            direct.write_file(f"{STEP}/{part}/model.pt", text)
        if parts == len(PARTS):
            direct.write_file(TRACKER, b"3")
        if die:
            process.kill()
    wait_until(lambda: direct.run_sync(lambda: nobody_lives(direct)), "its end to be known")


def nobody_lives(direct: Direct) -> bool:
    return not any(group.writers.processes(State.LIVING) for group in direct.fs.core.groups)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pointer_does_not_call_whole_what_is_written_over_afterwards(
    make_direct: Callable[..., Direct], restarts: bool
) -> None:
    """It was whole and not yet published when the next save of it began, and that was killed."""
    direct = make_direct(held=True)
    save_step(direct, b"first")
    save_step(direct, b"second", parts=1, die=True)
    if restarts:
        direct.restart(held=True)
    direct.go()

    def verdict() -> str:
        (group,) = direct.fs.core.groups
        return group.verdict.reason if group.verdict is not None else ""

    over = "files of it were written over after the pointer that names it"
    wait_until(lambda: over in direct.run_sync(verdict), "it to be looked at", timeout=10)
    assert not (direct.shared / TRACKER).exists()
    save_step(direct, b"third")
    if restarts:
        direct.restart()
    direct.settle()
    there = {path: item.content for path, item in OsCalls(direct.shared).tree().items()}
    want = {f"{STEP}/{part}/model.pt": b"third" for part in PARTS} | {TRACKER: b"3"}
    assert {path: content for path, content in there.items() if path in want} == want


def test_a_checkpoint_of_which_nothing_can_be_said_keeps_no_other_from_being_heard_of(
    direct: Direct,
) -> None:
    """Other nodes would take this one for gone, and what it writes in the others for left."""
    for step in range(3):
        direct.mkdir(f"step-{step}")
        direct.write_file(f"step-{step}/__0_0.distcp", b"x")
    direct.settle()
    said = {path: path.read_bytes() for path in direct.shared.glob(".tierfs/groups/*/writer-*")}
    assert len(said) == 3
    direct.system.hook = failing("presence.open", errno.EIO)
    direct.run(TakingPart(direct.fs.core).say_all)
    direct.system.hook = None
    assert sum(path.read_bytes() != before for path, before in said.items()) == 2


def test_a_flush_waits_for_what_a_seal_lets_go_that_was_over_before_it_looked(
    make_direct: Callable[..., Direct],
) -> None:
    """A pointer is held when it waits first; whoever seals what it names."""
    direct = make_direct(held=True)
    save_step(direct, b"first")

    async def ignore(_: object) -> None:
        return

    async def flushed() -> int:
        rooms = direct.rooms
        sealing = rooms.fs.sealing
        look, flush_now = sealing._look, sealing.flush

        async def not_yet(group: Group) -> bool:
            return group is not None

        async def late(group: Group, processes: frozenset[int], called: float) -> Verdict | None:
            sealing._look = look  # type: ignore[method-assign]
            sealing.ask(group, processes, called)
            while any(rooms.backlog.under(ROOT)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            return await flush_now(group, processes, called)

        sealing._look, sealing.flush = not_yet, late  # type: ignore[method-assign]
        flushing = Flushing(rooms, Report(rooms), trio.CapacityLimiter(1))
        direct.go()
        found = await flushing.wait((), 20.0, Peer(os.getpid(), 0, 0), ignore)
        return found.exit_code

    assert direct.run(flushed) == 0
    assert (direct.shared / TRACKER).read_bytes() == b"3"


def test_a_directory_is_not_removed_while_a_checkpoint_in_it_is_published(direct: Direct) -> None:
    """Its writer has ended, so it is not listed; a moment later it is whole."""
    direct.mkdir("run")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        direct.caller = dataclasses.replace(CALLER, process=process.pid)
        made(f"run/{AT}")(direct)
        direct.caller = CALLER
    wait_until(lambda: direct.run_sync(lambda: nobody_lives(direct)), "its end to be known")
    direct.settle()
    direct.system.hook = stall = Stall("seal.rename")
    (group,) = direct.fs.core.groups
    direct.run(direct.fs.sealing.flush, group, frozenset(), time.monotonic())
    assert stall.reached.wait(10)
    assert direct.listdir("run") == []
    removing = beside(direct.rmdir, "run")
    time.sleep(0.3)
    waits = not removing.done()
    stall.release()
    assert waits
    assert error_of(removing.result) == "ENOTEMPTY"
    assert direct.listdir("run") == [AT]


def test_a_look_that_is_overtaken_by_the_seal_does_not_take_it_back(direct: Direct) -> None:
    """It saw the checkpoint as unsealed, and hears that when it is published."""
    made(AT)(direct)
    direct.settle()
    until_looked_at(direct)
    direct.system.hook = stall = Stall("look.close")
    looking = beside(direct.stat, AT)
    assert stall.reached.wait(10)
    assert direct.listdir() == [AT]  # which is not asked again for a moment
    flush(direct)
    stall.release()
    looking.result()
    assert direct.listdir() == [AT]
    node = direct.fs.tree.by_shared[(direct.shared / AT).stat().st_ino]
    assert node.directory is not None
    assert not direct.fs.core.groups.is_unsealed(node.directory)


def test_a_checkpoint_that_ends_while_another_one_is_looked_at_is_let_be(direct: Direct) -> None:
    """What cannot be committed of each is noted one after the other."""
    direct.mkdir("checkpoint-1")
    direct.write_file("checkpoint-1/a", b"1")
    groups = direct.run_sync(lambda: list(direct.fs.core.groups))
    direct.unlink("checkpoint-1/a")
    direct.rmdir("checkpoint-1")
    direct.settle()
    direct.drop_caches()
    assert [group.id in direct.fs.tree.directories for group in groups] == [False]
    direct.run(Broken(direct.fs.core)._look, *groups)
