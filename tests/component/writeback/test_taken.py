"""Names that were made blindly in an outage, and that another node has made meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.component.writeback.rig import Rig, open_rig, running
from tierfs.model import BLIND, Op
from tierfs.writeback import OutcomeKind

LATER = 4_000_000_000
EARLIER = 1_000_000_000


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "local", tmp_path / "shared"


def blindly(op: Op) -> Op:
    op.fields = (*op.fields, BLIND)
    return op


def theirs(rig: Rig, name: str, content: bytes, mtime: int) -> Path:
    path = rig.on_shared(name)
    path.write_bytes(content)
    os.utime(path, (mtime, mtime))
    return path


def kept(rig: Rig) -> list[bytes]:
    """What is in quarantine."""
    return [Path(each.shown).read_bytes() for each in rig.shared.quarantined()]


async def test_a_free_name_is_a_name_like_any_other(tiers: tuple[Path, Path]) -> None:
    async with running(open_rig(*tiers)) as rig:
        blindly(rig.put("f", b"ours"))
        blindly(rig.symlink("f", "link"))
        await rig.drain()
        assert rig.on_shared("f").read_bytes() == b"ours"
        assert rig.on_shared("link").readlink() == Path("f")
        assert kept(rig) == []


@pytest.mark.parametrize(
    ("mtime", "stands", "put_away"),
    [(EARLIER, b"ours", b"theirs"), (LATER, b"theirs", b"ours")],
)
async def test_the_later_close_wins(
    tiers: tuple[Path, Path], mtime: int, stands: bytes, put_away: bytes
) -> None:
    async with running(open_rig(*tiers)) as rig:
        path = theirs(rig, "f", b"theirs", mtime)
        blindly(rig.put("f", b"ours"))
        await rig.drain()
        assert path.read_bytes() == stands
        assert kept(rig) == [put_away]
        won = OutcomeKind.COMMITTED if stands == b"ours" else OutcomeKind.DROPPED
        assert [outcome.kind for outcome in rig.ended] == [won]
        assert [each.path for each in rig.shared.quarantined()] == [b"f"]


@pytest.mark.parametrize("mtime", [EARLIER, LATER])
async def test_the_same_content_settles_it(tiers: tuple[Path, Path], mtime: int) -> None:
    async with running(open_rig(*tiers)) as rig:
        first = rig.put("f", b"the same")
        await rig.drain()
        os.utime(rig.on_shared("f"), (mtime, mtime))
        second = rig.put("f", b"the same")
        second.base_inode = None
        blindly(second)
        await rig.drain()
        assert rig.on_shared("f").read_bytes() == b"the same"
        assert [outcome.op for outcome in rig.ended] == [first, second]
        assert all(outcome.kind is OutcomeKind.COMMITTED for outcome in rig.ended)
        assert kept(rig) == []


@pytest.mark.parametrize(
    ("mtime", "stands", "put_away"),
    [(EARLIER, b"ours", b"theirs"), (LATER, b"theirs", b"ours")],
)
async def test_a_rename_to_a_taken_name(
    tiers: tuple[Path, Path], mtime: int, stands: bytes, put_away: bytes
) -> None:
    async with running(open_rig(*tiers)) as rig:
        rig.put("draft", b"ours")
        await rig.drain()
        path = theirs(rig, "f", b"theirs", mtime)
        blindly(rig.rename("draft", "f"))
        await rig.drain()
        assert path.read_bytes() == stands
        assert kept(rig) == [put_away]
        assert not rig.on_shared("draft").exists()


async def test_what_we_know_of_is_replaced(tiers: tuple[Path, Path]) -> None:
    """The version before was ours: nothing is put away."""
    async with running(open_rig(*tiers)) as rig:
        rig.put("f", b"first")
        await rig.drain()
        second = rig.put("f", b"second")
        second.base_inode = rig.on_shared("f").stat().st_ino
        blindly(second)
        await rig.drain()
        assert rig.on_shared("f").read_bytes() == b"second"
        assert kept(rig) == []
