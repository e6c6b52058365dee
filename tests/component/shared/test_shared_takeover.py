"""A node that is gone for good was writing a sealed checkpoint again; another one goes on."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.shared import takeover_script
from tests.component.shared.crashing import LOOKS, die
from tests.component.shared.group_support import (
    FINAL,
    GROUP,
    KEEP,
    NAME,
    STAGED,
    files_in,
    seal,
    sealed_group,
    whole,
)
from tests.component.shared.support import TOP, make_tier, names
from tests.faults import FaultyOS, failing
from tierfs.osio import OS
from tierfs.shared import GroupState, SharedTier, reopen

OpenTier = Callable[..., SharedTier]
OTHER = "b" * 32
OF_GROUPS = ("reopen.", "linked.", "record.", "manifest.", "seal.", "trash.")
MUST_HAVE = {
    "reopen.mkdir", "reopen.link", "reopen.rename", "linked.publish", "record.publish",
    "manifest.publish", "seal.exchange", "seal.fsync_dir", "trash.rename",
}  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the one who is gone."""
    monkeypatch.setattr(reopen, "SEAL_SECONDS", 0.0)


def deaths(seen: list[str]) -> list[str]:
    """The first and the last change of each label, from the beginning of the next generation on."""
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for step in seen:
        counts[step] += 1
        if counts["reopen.open"] and step.startswith(OF_GROUPS) and not step.endswith(LOOKS):
            first.setdefault(step, counts[step])
    return [
        f"{step}:{nth}:kill" for step in first for nth in sorted({first[step], counts[step]})
    ]  # fmt: skip


@pytest.mark.parametrize("edited", [False, True], ids=["written", "edited"])
async def test_killed_at_every_step(memory_root: Path, edited: bool) -> None:
    """`edited`: the new node takes its end marker away first, so it is not whole meanwhile."""
    intact = memory_root / "intact"
    intact.mkdir()
    system = FaultyOS()
    await takeover_script.live(intact, intact, system)
    faults = deaths(system.seen)
    assert {fault.split(":")[0] for fault in faults} >= MUST_HAVE
    runs = {fault: memory_root / fault.replace(":", "-") for fault in faults}
    die(Path(takeover_script.__file__), runs, intact)
    for fault, root in runs.items():
        tier = make_tier(root, OS(), member=OTHER)
        tier.register("node-b")
        tier.finish_any_seal(TOP, NAME)  # as whoever looks for the name
        assert files_in(root / FINAL) in (whole("old"), whole("lost")), fault
        save(tier, root, edited=edited)
        assert files_in(root / FINAL) == whole("saved"), fault
        tier.sweep_trash(KEEP)
        (root / "fresh").unlink(missing_ok=True)  # of the one who is gone
        assert names(root) == [".tierfs", FINAL], fault
        assert list((root / ".tierfs").glob("trash/*")) == [], fault
        tier.close()


def save(tier: SharedTier, root: Path, *, edited: bool) -> None:
    before = files_in(root / FINAL)
    inode = (root / FINAL).stat().st_ino
    if edited:
        record = tier.reopen_whole(TOP, NAME, GROUP, inode)
        assert tier.reopen_whole(TOP, NAME, GROUP, inode) == record
        assert record.inode == inode
        assert files_in(root / STAGED) == before
    else:
        [top, *_] = rebuilt = tier.reopen_linked(TOP, NAME, GROUP, 7)
        assert tier.reopen_linked(TOP, NAME, GROUP, 7) == rebuilt
        assert files_in(root / FINAL) == before
        inode = top.inode
    assert tier.group_records(GROUP)[-1].state is GroupState.OPEN
    takeover_script.again(root, "saved")
    seal(tier, GROUP, inode)


def test_who_may_be_sealing_is_waited_for(
    root: Path, open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopen, "SEAL_SECONDS", 3600.0)
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member=OTHER)
    old = sealed_group(tier, root, GROUP, "old")
    [top, _] = tier.reopen_linked(TOP, NAME, GROUP, 7)
    takeover_script.again(root, "new")
    system.hook = failing("seal.exchange", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        seal(tier, GROUP, top.inode)
    with pytest.raises(BlockingIOError):
        other.reopen_linked(TOP, NAME, GROUP, 7)
    with pytest.raises(BlockingIOError):
        other.reopen_whole(TOP, NAME, GROUP, old)
    seal(tier, GROUP, top.inode)
    assert files_in(root / FINAL) == whole("new")
