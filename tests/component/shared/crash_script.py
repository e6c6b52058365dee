"""A small life of a shared tier, to be killed at any step.

Every change in it can be made again after a crash, as the write-back does.
"""

from __future__ import annotations

from pathlib import Path

from tests.component.shared.crashing import serve
from tests.component.shared.support import CHUNK, TOP, attributes, job_of, make_tier
from tierfs.model import Kind, ObjectId
from tierfs.osio import OS
from tierfs.shared import AttributeChange, Place, SharedTier
from tierfs.shared.digest import zeros_digest

ID = ObjectId(0x7123456789ABCDEF)
DIRECTORY = attributes(Kind.DIRECTORY, mode=0o755)


async def live(root: Path, source: Path, system: OS) -> None:
    tier = make_tier(root, system)
    tier.probe()
    tier.register("node-a")
    tier.retire_old_generations()
    staged = tier.stage_directory(1, b"d", DIRECTORY, {b"user.a": b"1"}, ID)
    entry = tier.publish_directory(staged, TOP, b"d")
    directory = Place(b"d", entry.st.st_ino, entry.directory_id)
    await send(tier, source, 2, directory, b"large")
    await send(tier, source.with_name("small"), 3, TOP, b"small")
    link = tier.stage_symlink(4, b"latest", b"d/large", attributes(Kind.SYMLINK))
    tier.publish_file(link, TOP, b"latest")
    change_names(tier, directory)
    tier.sweep()
    tier.close()


async def send(tier: SharedTier, source: Path, row: int, place: Place, name: bytes) -> None:
    with job_of(source, row, name, place=place, xattrs={b"user.a": b"1"}) as job:
        staged = await tier.stage_file(job)
        tier.restore_attributes(staged, job)
        tier.publish_file(staged, place, name)


def change_names(tier: SharedTier, directory: Place) -> None:
    small = tier.lookup(TOP, b"small")
    assert small is not None
    inode = small.st.st_ino
    if tier.lookup(directory, b"new") is None:
        tier.link(TOP, b"small", inode, directory, b"old", row=5, replace=True)
        tier.rename(directory, b"old", directory, b"new", inode)
    tier.set_attributes(TOP, b"small", inode, AttributeChange(mode=0o600, xattrs={b"user.a": None}))
    tier.unlink(TOP, b"small", inode)


def main() -> None:
    zeros_digest("sha256", CHUNK)
    serve(live)


if __name__ == "__main__":
    main()
