"""A removal that was cut off, looked at before every call and killed at every step.

What was whole stays so under its name until its turn to go; nothing that was removed comes back,
nothing is left, and nothing goes to quarantine: all of it was removed by somebody.
"""

from __future__ import annotations

from pathlib import Path

from tests.component.shared import cut_off_crash_script
from tests.component.shared.crashing import LOOKS, die, ends_of
from tests.component.shared.cut_off_crash_script import REMOVED, WHOLE
from tests.component.shared.group_support import FINAL, STAGED, files_in
from tests.component.shared.support import make_tier, names, staging_names
from tests.faults import FaultyOS
from tierfs.osio import OS

MUST_HAVE = {
    "reopen.link", "reopen.rename", "linked.publish", "record.publish", "trash.rename",
    "trash.fsync_dir", "delete.unlink", "delete.rmdir", "unlink.unlink", "rmdir.rmdir",
    "forget.rmdir",
}  # fmt: skip


class Onlooker:
    """Looks at the tier before every call, as another node without tierfs would.

    Attributes:
        seen: whether it was whole under its final name, each change.
        staged: the files of the next generation, each change since it is there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[bool] = []
        self.staged: list[set[str]] = []

    def __call__(self, _: str, __: tuple[object, ...]) -> None:
        final, staged = self.root / FINAL, self.root / STAGED
        is_there = final.exists()
        if is_there:
            assert files_in(final) == WHOLE
            if staged.exists() and self.staged[-1:] != [set(files_in(staged))]:
                self.staged.append(set(files_in(staged)))
        if self.seen[-1:] != [is_there]:
            self.seen.append(is_there)


async def test_a_cut_off_removal_killed_at_every_step(memory_root: Path) -> None:
    whole = memory_root / "whole"
    whole.mkdir()
    onlooker = Onlooker(whole)
    system = FaultyOS(onlooker)
    await cut_off_crash_script.live(whole, whole, system)
    assert onlooker.seen == [False, True, False]
    assert onlooker.staged == [{"model.bin"}]
    check_end(whole)
    assert set(system.seen) >= MUST_HAVE
    # a look changes nothing: to be killed at it is to be killed at the next change
    changes = [step for step in system.seen if not step.endswith((*LOOKS, ".digest"))]
    runs = {step: memory_root / step.replace(":", "-") for step in ends_of(changes)}
    die(Path(cut_off_crash_script.__file__), runs, whole)
    for fault, root in runs.items():
        onlooker = Onlooker(root)
        await cut_off_crash_script.live(root, root, FaultyOS(onlooker))
        assert onlooker.seen == [False, True, False][-len(onlooker.seen) :], fault
        assert REMOVED.decode() not in set().union(*onlooker.staged), fault
        check_end(root)


def check_end(root: Path) -> None:
    """All of it was removed by somebody, and is gone."""
    assert names(root) == [".tierfs"]
    control = root / ".tierfs"
    assert [names(control / part) for part in ("groups", "trash")] == [[], []]
    tier = make_tier(root, OS())
    assert tier.quarantined() == []
    assert staging_names(tier) == []
    assert tier.foreign() == []
    tier.close()
