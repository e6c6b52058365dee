"""What goes wrong on the way: retried, stuck, or hanging, and nothing else is held up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.component.writeback.rig import (
    FAST,
    Rig,
    close_rig,
    open_rig,
    plain_files,
    reached,
    releasing,
    running,
    staged_files,
    until,
)
from tests.faults import FaultyOS, Stall, at, failing
from tests.harness import LoopDevice, frozen
from tests.harness.devices import run
from tierfs.errors import XattrsFull
from tierfs.journal import SaveDirectory, SaveOp
from tierfs.model import ROOT, Mark, OpState
from tierfs.writeback import OutcomeKind
from tierfs.writeback.failures import judge
from tierfs.writeback.staging import LOCAL_STEPS


def test_more_xattrs_than_the_tier_takes_are_no_full_tier() -> None:
    verdict = judge(XattrsFull(b"user.x"), "a/f")
    assert verdict.stuck
    assert "xattrs" in verdict.text
    assert not judge(OSError(errno.ENOSPC, ""), "a/f").stuck


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "local", tmp_path / "shared"


def _scenario(rig: Rig) -> None:
    """One op of every kind."""
    rig.mkdir("d")
    rig.put("d/a", b"a" * 10_000)
    rig.symlink("a", "d/s")
    rig.link("d/a", "d/b")
    rig.rename("d/a", "d/c")
    rig.store.set_attributes(rig.names[b"d/c"][0], mode=0o600)
    rig.setattr("d/c", "mode")
    rig.put("d/c2", b"x")
    rig.unlink("d/b")
    rig.mkdir("e")
    rig.rmdir("e")


def _check(shared: Path) -> None:
    names = {str(p.relative_to(shared)) for p in plain_files(shared)}
    assert names == {"d", "d/c", "d/c2", "d/s"}
    assert (shared / "d/c").read_bytes() == b"a" * 10_000
    assert (shared / "d/c").stat().st_mode & 0o777 == 0o600
    assert staged_files(shared) == []


def _steps_of_the_scenario(tmp_path: Path) -> list[str]:
    """All labels between the submission of the scenario and its end."""
    system = FaultyOS()
    tmp_path.mkdir()

    async def main() -> int:
        async with running(open_rig(tmp_path / "local", tmp_path / "shared", system)) as rig:
            start = len(system.seen)
            _scenario(rig)
            await rig.drain()
            return start

    start = trio.run(main)
    steps = dict.fromkeys(system.seen[start:])
    return [
        step
        for step in steps
        if not step.startswith(("local.", "journal.")) and step not in LOCAL_STEPS
    ]


def test_an_error_at_any_step_is_retried(tmp_path: Path) -> None:
    """EIO once at each step of the shared tier: everything arrives all the same."""
    steps = _steps_of_the_scenario(tmp_path / "plain")
    assert {"put.fsync", "put.rename", "mkdir.rename", "rename.rename", "unlink.unlink"} <= {*steps}
    for number, step in enumerate(steps):
        if step.endswith("close"):
            continue
        before = len(os.listdir("/proc/self/fd"))

        async def main(step: str = step, number: int = number) -> None:
            base = tmp_path / str(number)
            system = FaultyOS()
            async with running(_open(base, system)) as rig:
                system.hook = failing(step, errno.EIO)
                _scenario(rig)
                await rig.drain(20)
                assert rig.writeback.status().retrying == ()
                _check(rig.shared.root)

        trio.run(main)
        assert len(os.listdir("/proc/self/fd")) == before, step


def _open(base: Path, system: FaultyOS) -> Rig:
    base.mkdir(parents=True)
    return open_rig(base / "local", base / "shared", system)


async def test_an_outage_ends_and_everything_arrives(tiers: tuple[Path, Path]) -> None:
    gone = True

    def hook(step: str, _: tuple[object, ...]) -> None:
        if gone and step.startswith(("put.", "mkdir.", "place.")) and "close" not in step:
            raise OSError(errno.EIO, "dead")

    async with running(open_rig(*tiers, FaultyOS(hook))) as rig:
        _scenario(rig)
        ops = list(rig.backlog.under(ROOT))
        result = await rig.writeback.wait(ops, 0.3)
        assert result.timed_out
        assert set(result.remaining) == set(ops)
        status = rig.writeback.status()
        assert "d" in {r.path for r in status.retrying}
        assert all("EIO" in r.error and r.attempts > 0 for r in status.retrying)
        gone = False
        await rig.drain(20)
        _check(rig.shared.root)
        assert rig.writeback.statistics.failures["EIO"] > 1


async def test_what_differs_when_read_back_is_sent_again(tiers: tuple[Path, Path]) -> None:
    shared = tiers[1]

    def flip(*_: object) -> None:
        (path,) = staged_files(shared)
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"\x00")

    async with running(open_rig(*tiers, FaultyOS(at("put.reread", 1, flip)))) as rig:
        op = rig.put("f", b"\xff" * 100_000)
        await rig.writeback.committed(op)
        assert rig.on_shared("f").read_bytes() == b"\xff" * 100_000
        assert rig.writeback.statistics.verify_mismatches == 1
        assert staged_files(shared) == []


async def test_one_stuck_file_holds_up_nobody_else(tiers: tuple[Path, Path]) -> None:
    allowed = False

    def hook(step: str, detail: tuple[object, ...]) -> None:
        if step == "put.rename" and b"refused" in detail and not allowed:
            raise OSError(errno.EACCES, "refused")

    async with running(open_rig(*tiers, FaultyOS(hook))) as rig:
        bad = rig.put("refused", b"b")
        good = rig.put("good", b"g")
        await rig.writeback.committed(good)
        result = await rig.writeback.wait([bad], 20)
        assert result.stuck == (bad,)
        assert not result.timed_out
        assert bad.mark is Mark.STUCK
        assert "give root access" in (bad.error or "")
        assert rig.journal.load().ops[0].mark is Mark.STUCK
        assert rig.writeback.status().retrying == ()
        allowed = True
        result = await rig.writeback.wait([bad], 20)
        assert result.committed_files == 1
        assert rig.on_shared("refused").read_bytes() == b"b"


async def test_an_immutable_directory_on_the_shared_tier(
    tmp_path: Path, make_device: Callable[..., LoopDevice]
) -> None:
    """A real refusal, for root too; what is closed elsewhere goes on, and a flush tries again."""
    device = make_device("shared", 320 << 20)
    async with running(open_rig(tmp_path / "local", device.mountpoint / "tier")) as rig:
        await rig.writeback.committed(rig.mkdir("d"))
        run("chattr", "+i", rig.on_shared("d"))
        try:
            bad = rig.put("d/f", b"f")
            good = rig.put("good", b"g")
            result = await rig.writeback.wait([bad, good], 20)
            assert (result.committed_files, result.stuck) == (1, (bad,))
            assert "immutable" in (bad.error or "")
        finally:
            run("chattr", "-i", rig.on_shared("d"))
        result = await rig.writeback.wait([bad], 20)
        assert result.committed_files == 1
        assert rig.on_shared("d/f").read_bytes() == b"f"


async def test_a_stuck_file_is_tried_again_by_itself(tiers: tuple[Path, Path]) -> None:
    system = FaultyOS(failing("put.rename", errno.EPERM))
    settings = replace(FAST, stuck_retry_seconds=0.05)
    async with running(open_rig(*tiers, system, settings=settings)) as rig:
        op = rig.put("f", b"f")
        with trio.fail_after(10):
            await rig.writeback.committed(op)
        assert rig.writeback.statistics.failures["EPERM"] == 1


async def test_a_stuck_file_is_tried_again_after_a_restart(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers, FaultyOS(failing("put.rename", errno.EPERM)))) as rig:
        result = await rig.writeback.wait([rig.put("f", b"f")], 20)
        assert len(result.stuck) == 1
    async with running(open_rig(*tiers)) as rig:
        await rig.drain()
        assert rig.on_shared("f").read_bytes() == b"f"


async def test_a_vanished_object_is_stuck(tiers: tuple[Path, Path]) -> None:
    stall = Stall("local.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        rig.put("first", b"1")
        await reached(stall)
        op = rig.put("lost", b"x" * 100_000)
        rig.store.remove(op.object)
        stall.release()
        result = await rig.writeback.wait([op], 20)
        assert result.stuck == (op,)
        assert "cannot be read" in (op.error or "")


async def test_what_went_with_the_drive_says_so_when_a_read_ends_later(
    tiers: tuple[Path, Path],
) -> None:
    stall = Stall("put.read")

    def hook(step: str, detail: tuple[object, ...]) -> None:
        stall(step, detail)
        if step == "put.read":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with running(open_rig(*tiers, FaultyOS(hook))) as rig, releasing(stall):
        op = rig.put("f", b"f")
        await reached(stall)
        rig.writeback.lost(op, "the drive failed")
        stall.release()
        await until(lambda: op.attempts > 0)
        assert (op.mark, op.error) == (Mark.STUCK, "f: the drive failed")


async def test_a_vanished_directory_object_ends_a_flush(tiers: tuple[Path, Path]) -> None:
    rig = open_rig(*tiers)
    op = rig.mkdir("d")
    rig.store.remove(op.object)
    async with running(rig):
        for _ in range(2):
            result = await rig.writeback.wait([op], 20)
            assert (result.stuck, result.timed_out) == ((op,), False)


async def test_closed_files_become_durable_while_the_shared_tier_is_away(
    tiers: tuple[Path, Path],
) -> None:
    stall = Stall("retire.list")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        await reached(stall)
        op = rig.put("f", b"f")
        await until(lambda: op.durable)
        stall.release()
        await rig.drain()


async def test_a_bug_in_a_worker_does_not_end_write_back(
    tiers: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    async with running(open_rig(*tiers, FaultyOS(at("put.rename", 1, bug)))) as rig:
        await rig.writeback.committed(rig.put("f", b"f"))
        assert rig.on_shared("f").read_bytes() == b"f"
    assert "Traceback" in caplog.text


async def test_a_directory_removed_by_somebody_else(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        await rig.writeback.committed(rig.mkdir("d"))
        rig.on_shared("d").rmdir()
        op = rig.put("d/f", b"f")
        result = await rig.writeback.wait([op], 20)
        assert result.stuck == (op,)
        assert "outside this mount" in (op.error or "")
        assert not rig.on_shared("d").exists(), "no ghost of a removed directory comes back"


async def test_a_directory_removed_while_the_daemon_was_dead(tiers: tuple[Path, Path]) -> None:
    """Whether the op happened is asked of a directory that is gone: nobody waits for that."""
    async with running(open_rig(*tiers)) as rig:
        await rig.writeback.committed(rig.mkdir("d"))
        made = rig.places.record(rig.names[b"d"][0])
        assert made is not None
        rig.journal.post(SaveDirectory(made))
    rig = open_rig(*tiers)
    op = rig.put("d/f", b"f")
    op.state, op.staged_inode = OpState.PUBLISHING, 1
    await rig.journal.post(SaveOp(op)).synced()
    close_rig(rig)
    rig.on_shared("d").rmdir()
    async with running(open_rig(*tiers)) as rig:
        [op] = rig.backlog.under(ROOT)
        with trio.fail_after(20):
            await rig.writeback.committed(rig.put("g", b"g"))
        result = await rig.writeback.wait([op], 20)
        assert result.stuck == (op,)
        assert "outside this mount" in (op.error or "")


async def test_a_source_removed_by_somebody_else_is_reported(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        await rig.writeback.committed(rig.put("f", b"f"))
        rig.on_shared("f").unlink()
        rig.rename("f", "g")
        result = await rig.writeback.wait(list(rig.backlog.under(ROOT)), 20)
        assert [held.reason for held in result.dropped] == [
            "it was removed or renamed outside this mount"
        ]
        assert rig.ended[-1].kind is OutcomeKind.DROPPED


@pytest.mark.slow
async def test_a_frozen_shared_tier(tmp_path: Path, make_device: Callable[..., LoopDevice]) -> None:
    """Every write hangs in the kernel: new files are still taken, and all arrive after the thaw."""
    device = make_device("shared", 400 << 20)
    async with running(open_rig(tmp_path / "local", device.mountpoint / "tier")) as rig:
        await rig.writeback.committed(rig.put("before", b"1"))
        with frozen(device):
            ops = [rig.put(f"f{number}", os.urandom(100_000)) for number in range(20)]
            result = await rig.writeback.wait(ops, 0.5)
            assert result.timed_out
            assert len(result.remaining) == 20
            assert all(op.durable for op in ops), "the local tier goes on"
        await rig.drain(60)
        assert len(list(plain_files(rig.shared.root))) == 21


@pytest.mark.slow
async def test_a_full_shared_tier(tmp_path: Path, make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("shared", 320 << 20)
    async with running(open_rig(tmp_path / "local", device.mountpoint / "tier")) as rig:
        ballast = device.fill(leave=1 << 20)
        op = rig.put("f", os.urandom(8 << 20))
        result = await rig.writeback.wait([op], 2)
        assert result.timed_out
        (retry,) = rig.writeback.status().retrying
        assert "full" in retry.error
        ballast.unlink()
        await rig.drain(30)
        assert rig.on_shared("f").stat().st_size == 8 << 20
