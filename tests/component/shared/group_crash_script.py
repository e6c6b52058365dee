"""The life of a checkpoint, to be killed at any step: saved, saved over, written over by who is
killed, written again, removed.

What is done is noted in a file beside the tier, as in the journal; what is not noted is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.component.shared.crashing import serve
from tests.component.shared.group_support import (
    FINAL,
    GROUP,
    KEEP,
    NAME,
    OLDER,
    STAGED,
    manifest_of,
    seal,
    stage_group,
)
from tests.component.shared.support import TOP, make_tier
from tierfs.model import ObjectId, OpKind
from tierfs.osio import OS
from tierfs.shared import Place, SharedTier

WHOLE = (
    {"model.bin": "old model.bin", "sub/shard.bin": "old sub/shard.bin"},
    {"model.bin": "new model.bin", "sub/shard.bin": "new sub/shard.bin"},
    {"model.bin": "newer", "left.bin": "newer"},
    {"model.bin": "newest"},
)
"""What may be seen under the final name, in this order."""

INNER = f"{FINAL}/sub/.staging_checkpoint-1"
"""It lies in the one that is written over and given up; not in what is seen: it is empty."""


class Life:
    def __init__(self, root: Path, tier: SharedTier) -> None:
        self.root, self.tier = root, tier
        self.notes = Path(f"{root}.notes")
        self.done: dict[str, int] = (
            json.loads(self.notes.read_text()) if self.notes.exists() else {}
        )

    def once(self, what: str, step: Callable[[], int | None]) -> int:
        if what not in self.done:
            self.done[what] = step() or 0
            self.notes.write_text(json.dumps(self.done))
        return self.done[what]

    def save(self, group: ObjectId, text: str, replaced: ObjectId | None = None) -> int:
        made = self.once(f"make {text}", lambda: stage_group(self.tier, self.root, group, text))
        self.once(f"seal {text}", lambda: self.seal(group, made, replaced))
        return made

    def seal(self, group: ObjectId, inode: int, replaced: ObjectId | None = None) -> None:
        if not self.tier.happened(OpKind.SEAL, TOP, NAME, inode, group):
            seal(self.tier, group, inode, replaced)

    def remove(self, group: ObjectId, inode: int) -> None:
        tier = self.tier
        self.once(f"trash {group}", lambda: self.trash(group, inode))
        name = b"%016x" % group
        trash = Place(b".tierfs/trash")
        inside = Place(trash.path + b"/" + name)
        if tier.lookup(trash, name) is not None:
            tier.unlink(inside, b"model.bin", None)
            if tier.lookup(inside, b"sub") is not None:
                tier.unlink(Place(inside.path + b"/sub"), b"shard.bin", None)
                tier.rmdir(inside, b"sub", None)
            tier.rmdir(trash, name, inode)
        tier.forget_group(group)

    def trash(self, group: ObjectId, inode: int) -> None:
        if not self.tier.happened(OpKind.TRASH, TOP, NAME, inode, group):
            self.tier.trash(TOP, NAME, inode, group)

    def overwrite(self) -> int:
        tier = self.tier
        gone = [b"sub/shard.bin"]
        inode = self.once(
            "reopen", lambda: tier.reopen_linked(TOP, NAME, GROUP, 7, skip=gone)[0].inode
        )
        self.once("write", lambda: self.write("newer", "left.bin"))
        self.once("seal newer", lambda: self.seal(GROUP, inode))
        self.once("look", self.check_inner)
        return inode

    def put_inner(self) -> int:
        """An unsealed checkpoint comes into it, with the directory that holds it."""
        inner = self.root / INNER
        inner.mkdir(exist_ok=True)
        return inner.stat().st_ino

    def check_inner(self) -> None:
        found = [path.stat().st_ino for path in self.root.rglob(os.path.basename(INNER))]
        assert found == [self.done["inner"]], "it is there, and only once"
        assert (self.root / INNER).exists()

    def give_up(self) -> None:
        """Who writes it over once more is killed, and nobody goes on."""
        tier = self.tier
        self.once("reopen lost", lambda: tier.reopen_linked(TOP, NAME, GROUP, 8)[0].inode)
        self.once("write lost", lambda: self.write("lost"))
        self.once("give up", lambda: tier.give_up_next(TOP, NAME, GROUP)[0].inode)
        self.once("look again", self.check_inner)
        self.once("inner gone", lambda: (self.root / INNER).rmdir())

    def edit(self, inode: int) -> None:
        tier = self.tier
        self.once("whole", lambda: tier.reopen_whole(TOP, NAME, GROUP, inode).number)
        place = Place(STAGED.encode(), inode, GROUP)
        self.once("unlisted", lambda: tier.reopen_unlisted(place, GROUP).number)
        self.once("write again", lambda: self.write("newest"))
        self.once("seal newest", lambda: self.seal_without_stale(inode))

    def write(self, text: str, *more: str) -> None:
        for name in ("model.bin", *more):
            (self.root / "fresh").write_text(text)
            os.rename(self.root / "fresh", self.root / STAGED / name)

    def seal_without_stale(self, inode: int) -> None:
        tier = self.tier
        if tier.happened(OpKind.SEAL, TOP, NAME, inode, GROUP):
            return
        stale = next(r.stale for r in reversed(tier.group_records(GROUP)) if r.stale)
        found = tier.walk(Place(STAGED.encode()))
        lines = manifest_of([each for each in found if each.incarnation not in stale])
        tier.seal(TOP, NAME, GROUP, inode, manifest=lines, stale=stale)


async def live(root: Path, source: Path, system: OS) -> None:
    tier = make_tier(root, system)
    tier.probe()
    tier.register("node-a")
    tier.retire_old_generations()
    life = Life(root, tier)
    old = life.save(OLDER, "old")
    life.save(GROUP, "new", OLDER)
    life.once("remove old", lambda: life.remove(OLDER, old))
    life.once("inner", life.put_inner)
    inode = life.overwrite()
    life.once("sweep", lambda: tier.sweep_trash(KEEP))
    life.give_up()
    life.edit(inode)
    life.once("remove new", lambda: life.remove(GROUP, inode))
    tier.sweep()
    tier.sweep_trash(KEEP)
    tier.close()


if __name__ == "__main__":
    serve(live)
