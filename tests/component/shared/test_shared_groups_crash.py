"""A checkpoint, looked at before every call and killed at every step: whole under its final name,
there once it was there, and the same in the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.shared import group_crash_script
from tests.component.shared.crashing import LOOKS, die, ends_of
from tests.component.shared.group_crash_script import WHOLE
from tests.component.shared.group_support import FINAL, files_in
from tests.component.shared.support import make_tier, names, staging_names
from tests.faults import FaultyOS
from tierfs.osio import OS, RENAME_EXCHANGE

MUST_HAVE = {
    "record.publish", "manifest.publish", "seal.rename", "seal.fsync_dir",
    "trash.rename", "trash.fsync_trash", "reopen.link", "reopen.rename", "linked.publish",
    "inner.rename", "quarantine.rename", "forget.rmdir", "give_up.unlink", "delete.unlink",
    "delete.rmdir",
}  # fmt: skip
NO_EXCHANGE = "seal.exchange:1+:EINVAL,"
GROUPS = (
    "record.", "manifest.", "linked.", "seal.", "trash.", "reopen.", "quarantine.", "forget.",
    "delete.", "give_up.", "inner.", "replay.", "unlink.unlink", "rmdir.rmdir", "mkdir.rename",
)  # fmt: skip
STAGES = [-1, 0, 1, 2, -1, 3, -1]
"""What is seen under the final name: the third is reopened as a whole, which takes it away."""


class Onlooker:
    """Looks at the final name before every call, as another node without tierfs would."""

    def __init__(self, root: Path, *, exchange: bool) -> None:
        self.root, self.exchange = root, exchange
        self.seen: list[int] = []

    def __call__(self, step: str, detail: tuple[object, ...]) -> None:
        self.look()
        if not self.exchange and detail[-1:] == (RENAME_EXCHANGE,):
            raise OSError(22, "Invalid argument")

    def look(self) -> None:
        final = self.root / FINAL
        here = WHOLE.index(files_in(final)) if final.exists() else -1
        if not self.seen or self.seen[-1] != here:
            self.seen.append(here)


@pytest.mark.parametrize("exchange", [True, False])
async def test_looked_at_before_every_call(memory_root: Path, exchange: bool) -> None:
    root = memory_root / "tier"
    root.mkdir()
    onlooker = Onlooker(root, exchange=exchange)
    await group_crash_script.live(root, root, FaultyOS(onlooker))
    assert onlooker.seen == (STAGES if exchange else [-1, 0, -1, 1, -1, 2, -1, 3, -1])
    check_end(root)


@pytest.mark.parametrize("prefix", ["", NO_EXCHANGE], ids=["exchange", "no_exchange"])
async def test_killed_at_every_step(memory_root: Path, prefix: str) -> None:
    whole = memory_root / "whole"
    whole.mkdir()
    system = FaultyOS(Onlooker(whole, exchange=not prefix))
    await group_crash_script.live(whole, whole, system)
    assert set(system.seen) >= MUST_HAVE
    chosen = ("seal.rename", "seal.fsync_dir", "trash.rename", "trash.fsync") if prefix else GROUPS
    # a look changes nothing: to be killed at it is to be killed at the next change
    changes = [step for step in system.seen if not step.endswith((*LOOKS, ".digest"))]
    steps = [step for step in ends_of(changes) if step.startswith(chosen)]
    runs = {prefix + step: memory_root / step.replace(":", "-") for step in steps}
    die(Path(group_crash_script.__file__), runs, whole)
    for fault, root in runs.items():
        onlooker = Onlooker(root, exchange=True)
        await group_crash_script.live(root, root, FaultyOS(onlooker))
        seen = onlooker.seen
        if prefix and len(seen) > 1 and seen[0] < 0:  # it was killed while there was none
            seen = seen[1:]
        assert seen == STAGES[-len(seen) :], fault
        check_end(root)


def check_end(root: Path) -> None:
    """All is removed, and what nobody removed is in quarantine."""
    assert names(root) == [".tierfs"]
    control = root / ".tierfs"
    assert [names(control / part) for part in ("groups", "trash")] == [[], []]
    tier = make_tier(root, OS())
    lost, stale = [Path(kept.shown) for kept in tier.quarantined()]
    assert files_in(lost) in ({"model.bin": "lost"}, {"model.bin": "lost", "left.bin": "newer"})
    assert stale.read_text() == "newer"
    assert staging_names(tier) == []
    assert tier.foreign() == []
    tier.close()
