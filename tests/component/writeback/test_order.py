"""Marked and open files in a flush, and what the service says of itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.component.writeback.rig import open_rig, reached, releasing, running
from tests.faults import FaultyOS, Stall
from tierfs.model import OpState


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "local", tmp_path / "shared"


async def test_a_marker_is_held_while_its_shard_is_stuck(tiers: tuple[Path, Path]) -> None:
    def hook(step: str, detail: tuple[object, ...]) -> None:
        if step == "put.rename" and b"__0_0.distcp" in detail:
            raise OSError(errno.EACCES, "refused")

    async with running(open_rig(*tiers, FaultyOS(hook))) as rig:
        rig.mkdir("step_1")
        shard = rig.put("step_1/__0_0.distcp", b"s" * 100_000)
        marker = rig.put("step_1/.metadata", b"m")
        result = await rig.writeback.wait([shard, marker], 20)
        assert result.stuck == (shard,)
        assert [held.op for held in result.held] == [marker]
        assert "__0_0.distcp" in result.held[0].reason
        assert not rig.on_shared("step_1/.metadata").exists()


async def test_an_open_file_is_named_and_not_waited_for(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        op = rig.put("f", b"f", state=OpState.OPEN)
        other = rig.put("g", b"g")
        result = await rig.writeback.wait([op, other], 20)
        assert (result.committed_files, result.open, result.timed_out) == (1, (op,), False)
        op.state = OpState.PENDING
        rig.backlog.renumber(op, rig.journal.next_number())
        rig.writeback.submit(op)
        await rig.drain()
        assert rig.on_shared("f").read_bytes() == b"f"


async def test_status_shows_what_is_under_way(tiers: tuple[Path, Path]) -> None:
    stall = Stall("put.fsync")
    async with running(open_rig(*tiers, FaultyOS(stall))) as rig, releasing(stall):
        rig.put("f", b"f" * 300_000)
        await reached(stall)
        (transfer,) = rig.writeback.status().transfers
        assert (transfer.path, transfer.sent_bytes, transfer.total_bytes) == ("f", 300_000, 300_000)
        assert rig.writeback.status().write_rate_bytes > 0
        stall.release()
        await rig.drain()
        assert rig.writeback.status().transfers == ()


async def test_the_removal_of_the_last_whole_one_goes_when_its_name_is_needed(
    tiers: tuple[Path, Path],
) -> None:
    """For something that is not published in its place: it could not be held either."""
    async with running(open_rig(*tiers)) as rig:
        rig.mkdir("run")
        rig.mkdir("run/checkpoint-1")
        await rig.drain()
        rig.trash("run/checkpoint-1")
        rig.mkdir("run/checkpoint-1")
        await rig.drain()
        assert rig.committed()[-2:] == ["trash checkpoint-1", "mkdir checkpoint-1"]
