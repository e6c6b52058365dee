"""The life of a checkpoint whose removal was cut off, to be killed at any step.

Its job is killed when it has removed one file: REOPEN makes the next generation without that, the
removal of the sealed one waits for its turn, another job removes the rest. Noted is what is done,
as in `group_crash_script`.
"""

from __future__ import annotations

from pathlib import Path

from tests.component.shared.crashing import serve
from tests.component.shared.group_crash_script import Life
from tests.component.shared.group_support import GROUP, KEEP, NAME, STAGED
from tests.component.shared.support import TOP, make_tier
from tierfs.osio import OS
from tierfs.shared import Place

REMOVED = b"sub/shard.bin"
WHOLE = {"model.bin": "old model.bin", "sub/shard.bin": "old sub/shard.bin"}
"""What may be seen under the final name, or nothing."""


class CutOff(Life):
    def cut_off(self) -> int:
        tier = self.tier
        return self.once(
            "reopen", lambda: tier.reopen_linked(TOP, NAME, GROUP, 7, skip=[REMOVED])[0].inode
        )

    def take_older(self, inode: int) -> None:
        """As `group_steps.trash` of an op with OLDER."""
        self.tier.trash_older(TOP, NAME, inode, GROUP)
        self.tier.forget_removed(TOP, NAME, GROUP)

    def remove_rest(self, inode: int) -> None:
        """The next job: plain removals in what is staged."""
        tier = self.tier
        staged = Place(STAGED.encode(), inode)
        if tier.lookup_staged(TOP, STAGED.encode()) is not None:
            tier.unlink(staged, b"model.bin", None)
            if tier.lookup(staged, b"sub") is not None:
                tier.rmdir(staged, b"sub", None)
            tier.rmdir(TOP, STAGED.encode(), inode)
        tier.forget_removed(TOP, NAME, GROUP)


async def live(root: Path, source: Path, system: OS) -> None:
    tier = make_tier(root, system)
    tier.probe()
    tier.register("node-a")
    tier.retire_old_generations()
    life = CutOff(root, tier)
    sealed = life.save(GROUP, "old")
    staged = life.cut_off()
    life.once("take older", lambda: life.take_older(sealed))
    life.once("remove rest", lambda: life.remove_rest(staged))
    tier.sweep()
    tier.sweep_trash(KEEP)
    tier.close()


if __name__ == "__main__":
    serve(live)
