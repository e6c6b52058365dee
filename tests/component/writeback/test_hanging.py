"""Files that hang on their way hold up nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.component.writeback.rig import FAST, open_rig, reached, releasing, running, until
from tests.faults import FaultyOS, Stall


@pytest.mark.parametrize("step", ["put.rename", "put.write"])
async def test_one_that_hangs_gives_its_place_away(tmp_path: Path, step: str) -> None:
    stall = Stall(step)
    settings = replace(FAST, transfer_files=1, small_files=0, publishers=1, hang_seconds=0.2)
    tiers = tmp_path / "local", tmp_path / "shared"
    async with (
        running(open_rig(*tiers, FaultyOS(stall), settings=settings)) as rig,
        releasing(stall),
    ):
        rig.put("hangs", b"1")
        await reached(stall)
        for number in range(20):
            rig.put(f"f{number}", b"2")
        await until(lambda: len(rig.ended) == 20)
        assert not rig.on_shared("hangs").exists()
        stall.release()
        await rig.drain()
        assert rig.on_shared("hangs").read_bytes() == b"1"
        rig.put("after", b"3")
        await rig.drain()
