"""A node that writes a sealed checkpoint again, to be killed at any step and not to come back."""

from __future__ import annotations

import os
from pathlib import Path

from tests.component.shared.crashing import serve
from tests.component.shared.group_support import GROUP, NAME, STAGED, seal, sealed_group
from tests.component.shared.support import TOP, make_tier
from tierfs.osio import OS

FILES = ("model.bin", "sub/shard.bin")


def again(root: Path, text: str) -> None:
    """Write all of the staged generation, as the write-back does: each file by one rename."""
    for name in FILES:
        (root / "fresh").write_text(f"{text} {name}")
        os.rename(root / "fresh", root / STAGED / name)


async def live(root: Path, source: Path, system: OS) -> None:
    tier = make_tier(root, system)
    tier.probe()
    tier.register("node-a")
    tier.retire_old_generations()
    sealed_group(tier, root, GROUP, "old")
    inode = tier.reopen_linked(TOP, NAME, GROUP, 7)[0].inode
    again(root, "lost")
    seal(tier, GROUP, inode)
    tier.close()


if __name__ == "__main__":
    serve(live)
