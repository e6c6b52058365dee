"""Ops of every kind reach the shared tier, in their order, whole."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.component.writeback.rig import (
    FAST,
    open_rig,
    plain_files,
    reached,
    releasing,
    running,
    staged_files,
    until,
)
from tests.faults import FaultyOS, Stall, at
from tierfs.model import ROOT, Mark, Phase
from tierfs.writeback import OutcomeKind


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "local", tmp_path / "shared"


async def test_a_file_arrives_whole_with_its_attributes(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        op = rig.put("model.pt", b"weights" * 1000, mode=0o640)
        await rig.drain()
        found = rig.on_shared("model.pt")
        assert found.read_bytes() == b"weights" * 1000
        assert stat.S_IMODE(found.stat().st_mode) == 0o640
        assert found.stat().st_mtime_ns == rig.store.attributes(op.object).mtime_ns
        assert os.getxattr(found, "user.tierfs.digest").decode() == op.digest
        outcome = rig.ended[0]
        assert outcome.st is not None
        assert outcome.st.st_ino == found.stat().st_ino
        assert outcome.st.st_ctime_ns == found.stat().st_ctime_ns
        assert rig.journal.load().ops == []
        assert staged_files(rig.shared.root) == []
        assert rig.writeback.status().committed_bytes == 7000


async def test_many_files_and_directories(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        for directory in range(5):
            rig.mkdir(f"d{directory}")
            for number in range(40):
                rig.put(f"d{directory}/f{number}", b"%d" % number)
        await rig.drain()
        names = [p for p in plain_files(rig.shared.root) if p.is_file()]
        assert len(names) == 200
        assert all(p.read_bytes() == p.name[1:].encode() for p in names)
        assert rig.writeback.statistics.durable_count == 205


async def test_every_kind_of_op(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.mkdir("run", mode=0o750)
        rig.put("run/a", b"a")
        rig.symlink("a", "run/to-a")
        rig.link("run/a", "run/b")
        await rig.drain()
        shared = rig.on_shared("run")
        assert stat.S_IMODE(shared.stat().st_mode) == 0o750
        assert os.readlink(shared / "to-a") == "a"
        assert (shared / "b").stat().st_ino == (shared / "a").stat().st_ino

        rig.rename("run/a", "run/c")
        rig.store.set_attributes(rig.names[b"run/c"][0], mode=0o600, mtime_ns=10**18)
        rig.setattr("run/c", "mode", "times")
        rig.unlink("run/b")
        rig.rename("run", "done")
        rig.unlink("done/to-a")
        await rig.drain()
        done = rig.on_shared("done")
        assert [p.name for p in done.iterdir()] == ["c"]
        assert stat.S_IMODE((done / "c").stat().st_mode) == 0o600
        assert (done / "c").stat().st_mtime_ns == 10**18

        rig.unlink("done/c")
        rig.rmdir("done")
        await rig.drain()
        assert list(plain_files(rig.shared.root)) == []
        assert rig.journal.load().directories == []


async def test_later_ops_learn_the_inode_that_an_earlier_one_makes(
    tiers: tuple[Path, Path],
) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.put("a", b"1")
        rig.link("a", "b")
        rig.rename("a", "c")
        rig.unlink("b")
        rig.unlink("c")
        await rig.drain()
        assert list(plain_files(rig.shared.root)) == []


async def test_what_somebody_else_put_under_the_name_is_not_removed(
    tiers: tuple[Path, Path],
) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.put("a", b"ours")
        await rig.drain()
        theirs = rig.on_shared("theirs")
        theirs.write_bytes(b"theirs")
        theirs.rename(rig.on_shared("a"))
        rig.unlink("a")
        await rig.drain()
        assert rig.on_shared("a").read_bytes() == b"theirs"


async def test_a_directory_that_somebody_else_filled_stays(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.mkdir("d")
        await rig.drain()
        rig.on_shared("d/theirs").write_bytes(b"theirs")
        rig.rmdir("d")
        result = await rig.writeback.wait(list(rig.backlog.under(ROOT)))
        assert rig.on_shared("d/theirs").read_bytes() == b"theirs"
        assert rig.ended[-1].kind is OutcomeKind.DROPPED
        assert [held.op.kind for held in result.dropped] == ["rmdir"]


async def test_a_directory_that_is_there_already_is_adopted(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.on_shared("d").mkdir(mode=0o711)
        rig.mkdir("d")
        rig.put("d/f", b"f")
        await rig.drain()
        assert rig.on_shared("d/f").read_bytes() == b"f"
        assert stat.S_IMODE(rig.on_shared("d").stat().st_mode) == 0o711
        assert next(o for o in rig.ended if o.op.kind == "mkdir").adopted


async def test_a_marker_comes_after_a_slow_shard(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        rig.mkdir("step_1")
        shard = rig.put("step_1/__0_0.distcp", b"s" * 2_000_000)
        await reached(stall)
        marker = rig.put("step_1/.metadata", b"m")
        other = rig.put("other", b"o")
        await rig.writeback.committed(other)
        await rig.writeback.wait([marker], 0.2)
        assert [p.name for p in rig.on_shared("step_1").iterdir()] == []
        stall.release()
        await rig.drain()
    order = rig.committed()
    assert order.index("put __0_0.distcp") < order.index("put .metadata")
    assert shard.phase == marker.phase


async def test_small_files_pass_large_ones(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    one = replace(FAST, transfer_files=1)
    async with (
        running(open_rig(*tiers, FaultyOS(stall), settings=one)) as rig,
        releasing(stall),
    ):
        rig.mkdir("other")
        rig.put("large", size=3_000_000)
        await reached(stall)
        waiting = rig.put("large2", size=3_000_000)
        small = rig.put("other/small", b"s")
        with trio.fail_after(10):
            await rig.writeback.committed(small)
        assert waiting.phase is Phase.QUEUED
        stall.release()
        await rig.drain()


async def test_a_file_written_while_it_is_sent_is_sent_again(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        op = rig.put("last.bin", b"old")
        await reached(stall)
        rig.rewrite(op, b"new content")
        stall.release()
        await rig.drain()
        assert rig.on_shared("last.bin").read_bytes() == b"new content"
        assert rig.writeback.statistics.restaged == 1
        assert staged_files(rig.shared.root) == []


async def test_a_chmod_after_staging_is_committed_with_the_file(tiers: tuple[Path, Path]) -> None:
    stall = Stall("local.fsync")  # not durable yet, so staged and not published
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        op = rig.put("f", b"f" * 100)
        await reached(stall)
        await until(lambda: op.phase is Phase.STAGED)
        rig.chmod(op, 0o604)
        stall.release()
        await rig.drain()
        assert stat.S_IMODE(rig.on_shared("f").stat().st_mode) == 0o604


async def test_nothing_is_published_before_it_is_durable(tiers: tuple[Path, Path]) -> None:
    seen: list[str] = []
    system = FaultyOS()
    async with running(open_rig(*tiers, system)) as rig:
        rig.put("a", b"a")
        await rig.drain()
        seen = [step for step in system.seen if step in ("local.fsync", "put.rename")]
    assert seen == ["local.fsync", "put.rename"]


async def test_a_cancelled_file_leaves_nothing_behind(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        op = rig.put("f", b"f")
        await reached(stall)
        rig.backlog.remove(op)
        rig.writeback.cancel(op)
        stall.release()
        with trio.fail_after(10):
            await rig.writeback.committed(op)
        await until(lambda: not staged_files(rig.shared.root))
        assert list(plain_files(rig.shared.root)) == []


async def test_a_failed_local_fsync_makes_the_file_suspect(tiers: tuple[Path, Path]) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "dead")

    async with running(open_rig(*tiers, FaultyOS(at("local.fsync", 1, fail)))) as rig:
        bad = rig.put("bad", b"b")
        result = await rig.writeback.wait([bad])
        good = rig.put("good", b"g")
        await rig.writeback.committed(good)
        assert result.stuck == (bad,)
        assert bad.mark is Mark.SUSPECT
        assert rig.journal.load().ops[0].mark is Mark.SUSPECT
        assert "tierfs accept" in (bad.error or "")
        assert [p.name for p in plain_files(rig.shared.root)] == ["good"]


@pytest.mark.parametrize("reverse", [False, True])
async def test_directory_times_end_in_the_order_of_the_application(
    tiers: tuple[Path, Path], reverse: bool
) -> None:
    """The Trainer rotates by mtime: the order of commits must not show."""
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        rig.mkdir("checkpoint-1")
        slow = rig.put("checkpoint-1/model.bin", b"1" * 2_000_000)
        await reached(stall)
        rig.mkdir("checkpoint-2")
        fast = rig.put("checkpoint-2/model.bin", b"2")
        if reverse:
            await rig.writeback.committed(fast)
        stall.release()
        await rig.drain()
        times = [rig.on_shared(f"checkpoint-{n}").stat().st_mtime_ns for n in (1, 2)]
        assert times == [slow.changed_ns, fast.changed_ns]
        assert rig.on_shared("").stat().st_mtime_ns < times[1]


async def test_a_file_that_is_taken_back_leaves_its_directory_its_time(
    tiers: tuple[Path, Path],
) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        await rig.writeback.committed(rig.mkdir("d"))
        gone = rig.put("d/gone", b"1")
        await reached(stall)
        kept = rig.put("d/kept", b"2")
        await rig.writeback.committed(kept)
        rig.backlog.remove(gone)
        rig.writeback.cancel(gone)
        stall.release()
        await until(lambda: rig.on_shared("d").stat().st_mtime_ns == kept.changed_ns)


async def test_a_time_that_was_asked_for_lasts(tiers: tuple[Path, Path]) -> None:
    """As cp -a and tar do it: the directory, its files, then the directory's own time."""
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        made = rig.mkdir("d")
        await rig.writeback.committed(made)
        rig.put("d/f", b"1")
        await reached(stall)
        rig.store.set_attributes(made.object, mtime_ns=10**18)
        await rig.writeback.committed(rig.setattr("d", "times"))
        stall.release()
        await rig.drain()
        assert rig.on_shared("d").stat().st_mtime_ns == 10**18


async def test_the_time_of_somebody_elses_change_is_kept(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        await rig.writeback.committed(rig.mkdir("d"))
        rig.put("d/slow", b"1" * 100_000)
        await reached(stall)
        rig.on_shared("d/theirs").write_bytes(b"theirs")
        theirs = rig.on_shared("d").stat().st_mtime_ns
        stall.release()
        await rig.drain()
        assert rig.on_shared("d").stat().st_mtime_ns == theirs


async def test_flush_counts_and_shows_progress(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        seen = []
        ops = [rig.put(f"f{n}", b"x" * 10) for n in range(3)]
        result = await rig.writeback.wait(ops, 20, progress=seen.append)
        assert (result.committed_files, result.committed_bytes) == (3, 30)
        assert seen[-1].done_bytes == seen[-1].total_bytes == 30
