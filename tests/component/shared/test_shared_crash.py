"""A process killed at every labelled step: nothing partial under a final name, nothing left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.shared import crash_script
from tests.component.shared.crashing import die, ends_of
from tests.component.shared.support import CHUNK, make_tier, staging_names
from tests.faults import FaultyOS
from tierfs.osio import OS
from tierfs.shared.digest import digest_of_file

MUST_HAVE = {
    "put.create", "put.reserve", "put.write", "put.reread", "put.size", "put.digest", "put.chown",
    "put.chmod", "put.times", "put.fsync", "put.rename", "put.fsync_dir", "mkdir.rename",
    "symlink.rename", "link.rename", "rename.rename", "unlink.unlink", "retire.fsync_dir",
    "register.id",
}  # fmt: skip


PUBLISHED = {"d", "large", "latest", "new"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of a chunk that is a hole and one that has data in it, and a small one beside it."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.seek(CHUNK + 4000)
        file.write(os.urandom(9000))
    (tmp_path / "small").write_bytes(b"small")
    return path


async def steps_of(root: Path, source: Path) -> list[str]:
    system = FaultyOS()
    await crash_script.live(root, source, system)
    assert set(system.seen) >= MUST_HAVE
    return ends_of(system.seen)


def check_published(root: Path, source: Path) -> None:
    """The invariants: what has a final name is whole, and hashes to what is recorded."""
    for path in visible(root):
        if ".staging_probe_" in str(path):
            continue
        if path.is_symlink():
            assert os.readlink(path) == "d/large"
        elif path.is_dir():
            assert os.getxattr(path, "user.tierfs.id") == b"7123456789abcdef"
        else:
            original = source if path.name == "large" else source.with_name("small")
            assert digest_of(path) == digest_of(original)
            assert os.getxattr(path, "user.tierfs.digest").decode() == digest_of(path)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return digest_of_file(OS(), file.fileno(), "sha256")


def visible(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.relative_to(root).parts[0] != ".tierfs":
            yield path


async def test_killed_at_every_step(memory_root: Path, source: Path) -> None:
    """In memory, because a killed process loses no page cache anywhere; a power cut is another
    test's.
    """
    root = memory_root
    whole = root / "whole"
    whole.mkdir()
    runs = {fault: root / fault.replace(":", "-") for fault in await steps_of(whole, source)}
    assert names_of(whole) == PUBLISHED
    die(Path(crash_script.__file__), runs, source)
    for fault, place in runs.items():
        check_published(place, source)
        await crash_script.live(place, source, OS())  # what was interrupted can be made again
        check_published(place, source)
        assert names_of(place) == PUBLISHED, fault
        tier = make_tier(place)
        assert staging_names(tier) == [], fault
        assert tier.foreign() == [], fault
        tier.close()


def names_of(root: Path) -> set[str]:
    return {path.name for path in visible(root)}
