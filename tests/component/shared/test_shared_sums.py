"""SHA256SUMS: what sha256sum(1) says of a published checkpoint."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.shared.group_support import (
    FINAL,
    GROUP,
    MTIME_NS,
    NAME,
    STAGED,
    seal,
    sealed_group,
    stage_group,
    texts,
)
from tests.component.shared.support import CHUNK, MIB, TOP, job_of, names
from tests.faults import FaultyOS
from tierfs.shared import Place, SharedTier

OpenTier = Callable[..., SharedTier]
SUMS = "SHA256SUMS"


@pytest.fixture
def tier(root: Path, open_tier: OpenTier) -> SharedTier:
    return open_tier(root, sha256sums=True)


def check(folder: Path) -> list[str]:
    """What sha256sum(1) has found right."""
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=folder, capture_output=True, check=True
    )
    return sorted(done.stdout.decode(errors="surrogateescape").splitlines())


def test_each_file_of_the_manifest_is_in_it(tier: SharedTier, root: Path) -> None:
    inode = stage_group(tier, root)
    (root / STAGED / "a\\b\nc").write_text("odd")
    (root / STAGED / os.fsdecode(b"no \xff text")).write_bytes(b"")
    (root / STAGED / "link").symlink_to("/nowhere")
    os.utime(root / STAGED, ns=(MTIME_NS, MTIME_NS))
    assert SUMS not in names(root / STAGED)
    seal(tier, GROUP, inode)
    found = check(root / FINAL)
    odd = os.fsdecode(b"no \xff text")
    assert found == sorted(["\\a\\\\b\\nc: OK", f"{odd}: OK", "model.bin: OK", "sub/shard.bin: OK"])
    st = (root / FINAL / SUMS).stat()
    assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == (1000, 1001, 0o640)
    assert (root / FINAL).stat().st_mtime_ns == MTIME_NS
    manifest = tier.manifest(GROUP)
    assert manifest is not None
    assert SUMS.encode() not in [line.path for line in manifest]
    assert SUMS.encode() not in [each.path for each in tier.walk(Place(NAME))]


def test_it_is_made_anew_with_each_generation(root: Path, open_tier: OpenTier) -> None:
    tier = open_tier(root, sha256sums=True)
    sealed_group(tier, root, GROUP, "old")
    first = (root / FINAL / SUMS).read_text()
    [top, _] = tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert SUMS not in names(root / STAGED)
    (root / "fresh").write_text("new")
    (root / "fresh").rename(root / STAGED / "model.bin")
    seal(tier, GROUP, top.inode)
    assert check(root / FINAL) == ["model.bin: OK", "sub/shard.bin: OK"]
    assert (root / FINAL / SUMS).read_text() != first
    tier.sweep_trash(0)
    assert texts(root, "quarantine") == []  # that of the old one is nobody's loss
    # renamed back as a whole, and sealed where nobody wants it
    off = open_tier(root, member="b" * 32)
    inode = (root / FINAL).stat().st_ino
    off.reopen_whole(TOP, NAME, GROUP, inode)
    seal(off, GROUP, inode)
    assert names(root / FINAL) == ["model.bin", "sub"]


def test_one_of_the_application_stays_as_it_is(tier: SharedTier, root: Path) -> None:
    inode = stage_group(tier, root)
    (root / STAGED / SUMS).write_text("mine")
    seal(tier, GROUP, inode)
    assert (root / FINAL / SUMS).read_text() == "mine"
    manifest = tier.manifest(GROUP)
    assert manifest is not None
    assert SUMS.encode() in [line.path for line in manifest]


@pytest.mark.parametrize("digest", ["sha256", "xxh3_128"])
async def test_it_is_taken_from_what_is_read_back(
    root: Path, open_tier: OpenTier, tmp_path: Path, digest: str
) -> None:
    """Three chunks, one of them a hole; nothing is read again for it."""
    system = FaultyOS()
    tier = open_tier(root, system, sha256sums=True, digest=digest)
    inode = stage_group(tier, root)
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.write(b"a" * MIB)
        file.truncate(2 * CHUNK)
        file.seek(2 * CHUNK)
        file.write(b"z" * 1000)
    with job_of(source, name=b"model.bin", plain=True) as job:
        staged = await tier.stage_file(job)
    tier.publish_file(staged, Place(STAGED.encode()), b"model.bin")
    (root / STAGED / "sub" / "shard.bin").unlink()
    seal(tier, GROUP, inode)
    assert "sums.read" not in system.seen
    with source.open("rb") as file:
        want = hashlib.file_digest(file, "sha256").hexdigest()
    assert (root / FINAL / SUMS).read_text() == f"{want}  model.bin\n"
