"""Staging a file: whole, verified, with its attributes, and nothing left behind otherwise."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import xxhash

from tests.component.shared.support import (
    CHUNK,
    MIB,
    MTIME_NS,
    TOP,
    Settings,
    attributes,
    job_of,
    make_tier,
    staging_names,
)
from tests.faults import FaultyOS, Stall, at, failing
from tierfs.errors import ObjectChanged, VerifyMismatch
from tierfs.osio import OS
from tierfs.shared import SharedTier, Staged
from tierfs.shared.bandwidth import SLICE_SECONDS, Bandwidth, Share
from tierfs.shared.digest import digest_kind, digest_of_file

OpenTier = Callable[..., SharedTier]


def reference_digest(content: bytes) -> str:
    """The definition in docs/FORMAT.md, written anew."""
    pieces = [content[start : start + CHUNK] for start in range(0, len(content), CHUNK)]
    root = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces))
    return f"sha256:64MiB:{root.hexdigest()}"


def staged_path(tier: SharedTier, staged: Staged) -> Path:
    top = tier.root / ".tierfs/staging" / tier.member
    return top / os.fsdecode(tier.generation) / os.fsdecode(staged.name)


def sparse_file(path: Path, size: int, *pieces: tuple[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
    return path


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 5 * MIB + 13])
async def test_content_arrives_and_is_accounted_for(
    any_root: Path, open_tier: OpenTier, tmp_path: Path, size: int
) -> None:
    tier = open_tier(any_root)
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    sent: list[int] = []
    with job_of(tmp_path / "f", progress=sent.append) as job:
        staged = await tier.stage_file(job)
    path = staged_path(tier, staged)
    assert path.read_bytes() == content
    assert staged.inode == path.stat().st_ino
    assert staged.digest == reference_digest(content)
    assert os.getxattr(path, "user.tierfs.digest").decode() == staged.digest
    assert sum(sent) == size


async def test_many_chunks_at_once_and_a_tail(tier: SharedTier, root: Path, tmp_path: Path) -> None:
    block = os.urandom(MIB)
    source = tmp_path / "f"
    source.write_bytes(block * 130 + b"tail")
    with job_of(source) as job:
        staged = await tier.stage_file(job)
    path = staged_path(tier, staged)
    assert path.stat().st_size == 130 * MIB + 4
    content = path.read_bytes()
    assert content == source.read_bytes()
    assert staged.digest == reference_digest(content)
    fd = os.open(path, os.O_RDONLY)
    assert digest_of_file(OS(), fd, "sha256") == staged.digest
    os.close(fd)


async def test_xxh3(root: Path, open_tier: OpenTier, tmp_path: Path) -> None:
    tier = make_tier(root, settings=Settings(digest="xxh3_128"))
    tier.register("a")
    (tmp_path / "f").write_bytes(b"content")
    with job_of(tmp_path / "f") as job:
        staged = await tier.stage_file(job)
    expected = xxhash.xxh3_128(xxhash.xxh3_128(b"content").digest()).hexdigest()
    assert staged.digest == f"xxh3_128:64MiB:{expected}"
    assert digest_kind(staged.digest) == "xxh3_128"
    tier.close()


@pytest.mark.parametrize("text", ["", "sha256", "md5:64MiB:00", "sha256:1MiB:" + "0" * 64])
def test_a_foreign_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        digest_kind(text)


async def test_holes_stay_holes(any_root: Path, open_tier: OpenTier, tmp_path: Path) -> None:
    tier = open_tier(any_root)
    size = 3 * CHUNK + 777
    pieces = ((5000, b"first"), (CHUNK - 3, b"across the border"), (size - 2, b"zz"))
    source = sparse_file(tmp_path / "f", size, *pieces)
    sent: list[int] = []
    with job_of(source, progress=sent.append) as job:
        staged = await tier.stage_file(job)
    path = staged_path(tier, staged)
    content = path.read_bytes()
    assert content == source.read_bytes()
    assert staged.digest == reference_digest(content)
    assert path.stat().st_blocks * 512 < 2 * MIB
    assert sum(sent) == size


async def test_a_petabyte_of_holes(tier: SharedTier, root: Path, tmp_path: Path) -> None:
    """Hashed as what it is, by the definition, without looking at sixteen million chunks."""
    size, data = (1 << 50) + 12345, {700 * CHUNK + 7: b"in the middle", 1 << 50: b"near the end"}
    source = sparse_file(root / "source", size, *data.items())
    sent: list[int] = []
    with job_of(source, progress=sent.append) as job:
        staged = await tier.stage_file(job)
    holes = hashlib.sha256(bytes(CHUNK)).digest()
    middle = hashlib.sha256(bytes(7) + b"in the middle" + bytes(CHUNK - 7 - 13)).digest()
    end = hashlib.sha256(b"near the end" + bytes(12345 - 12)).digest()
    chunk_digests = hashlib.sha256(holes * 700 + middle)
    chunk_digests.update(holes * ((1 << 50) // CHUNK - 701) + end)
    assert staged.digest == f"sha256:64MiB:{chunk_digests.hexdigest()}"
    assert sum(sent) == size
    fd = os.open(staged_path(tier, staged), os.O_RDONLY)
    assert digest_of_file(OS(), fd, "sha256") == staged.digest
    os.close(fd)


async def test_the_space_is_reserved_first(root: Path, open_tier: OpenTier, tmp_path: Path) -> None:
    system = FaultyOS(failing("put.reserve", errno.ENOSPC))
    tier = open_tier(root, system)
    (tmp_path / "f").write_bytes(b"x" * MIB)
    with job_of(tmp_path / "f") as job, pytest.raises(OSError, match="No space"):
        await tier.stage_file(job)
    assert "put.write" not in system.seen
    assert staging_names(tier) == []


async def test_a_file_system_that_is_really_full(
    make_device: Callable[..., object], open_tier: OpenTier, tmp_path: Path
) -> None:
    device = make_device("full", 64 * MIB, "ext4")
    tier = open_tier(device.mountpoint)  # type: ignore[attr-defined]
    (tmp_path / "f").write_bytes(b"x" * (80 * MIB))
    with job_of(tmp_path / "f") as job, pytest.raises(OSError, match="No space"):
        await tier.stage_file(job)
    assert staging_names(tier) == []


async def test_owner_mode_times_and_xattrs(tier: SharedTier, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    # user::rw- user:77:r-- group::r-- mask::r-- other::---, as linux/posix_acl_xattr.h has it
    entries = ((1, 6, -1), (2, 4, 77), (4, 4, -1), (16, 4, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    xattrs = {
        b"user.a": b"\0\1",
        b"system.posix_acl_access": acl,
        b"user.tierfs.name": b"local",
        b"security.selinux": b"label",
    }
    wanted = attributes(mode=0o640, uid=12, gid=34, size=1)
    with job_of(tmp_path / "f", xattrs=xattrs, attributes=wanted) as job:
        staged = await tier.stage_file(job)
    path = staged_path(tier, staged)
    st = path.stat()
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (12, 34, 0o640)
    assert (st.st_atime_ns, st.st_mtime_ns) == (MTIME_NS - 1, MTIME_NS)
    assert os.getxattr(path, "system.posix_acl_access") == acl
    names = {"system.posix_acl_access", "user.a", "user.tierfs.digest"}
    assert set(os.listxattr(path)) - {"trusted.SGI_ACL_FILE"} == names
    tier.publish_file(staged, TOP, b"f")
    assert tier.xattrs(TOP, b"f") == {n: xattrs[n] for n in list(xattrs)[:2]}


@pytest.mark.parametrize(("keep", "mode"), [(False, 0o755), (True, 0o6755)])
async def test_setuid_needs_a_chmod_after_the_last_write(
    tier: SharedTier, tmp_path: Path, keep: bool, mode: int
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    wanted = attributes(mode=0o6755, size=1)
    with job_of(tmp_path / "f", attributes=wanted, keep_setid=keep) as job:
        staged = await tier.stage_file(job)
    assert stat.S_IMODE(staged_path(tier, staged).stat().st_mode) == mode


async def test_attributes_changed_after_staging(tier: SharedTier, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with job_of(tmp_path / "f", xattrs={b"user.old": b"1", b"user.both": b"1"}) as job:
        staged = await tier.stage_file(job)
    path = staged_path(tier, staged)
    inode = path.stat().st_ino
    later = attributes(mode=0o600, uid=7, size=1)
    with job_of(tmp_path / "f", xattrs={b"user.both": b"2"}, attributes=later) as job:
        tier.restore_attributes(staged, job)
    assert sorted(os.listxattr(path)) == ["user.both", "user.tierfs.digest"]
    assert os.getxattr(path, "user.both") == b"2"
    st = path.stat()
    assert (st.st_uid, stat.S_IMODE(st.st_mode), st.st_ino) == (7, 0o600, inode)
    path.unlink()
    with job_of(tmp_path / "f") as job, pytest.raises(FileNotFoundError, match="staged again"):
        tier.restore_attributes(staged, job)


@pytest.mark.parametrize("size", [3 * MIB, CHUNK + 5 * MIB])
async def test_a_bit_flipped_after_the_write_is_found(
    any_root: Path, open_tier: OpenTier, tmp_path: Path, size: int
) -> None:
    """On XFS and ext4 the re-read must come from the device; the flip is made behind the cache."""
    system = FaultyOS()
    tier = open_tier(any_root, system)
    with (tmp_path / "f").open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))

    def flip(fd: int, _buffer: object, offset: int) -> None:
        path = f"/proc/self/fd/{fd}"
        with open(path, "r+b") as file:
            file.seek(offset + 5000)
            byte = file.read(1)
            file.seek(offset + 5000)
            file.write(bytes([byte[0] ^ 1]))
            file.flush()
            os.fsync(file.fileno())

    system.hook = at("put.reread", 1, flip)
    with job_of(tmp_path / "f") as job, pytest.raises(VerifyMismatch, match="differs"):
        await tier.stage_file(job)
    assert staging_names(tier) == []
    system.hook = None
    with job_of(tmp_path / "f") as job:
        assert await tier.stage_file(job)


async def test_data_where_a_hole_was_sent_is_found(
    root: Path, open_tier: OpenTier, tmp_path: Path
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)

    def scribble(fd: object, *_: object) -> None:
        assert isinstance(fd, int)
        os.pwrite(fd, b"\1", 1000)

    system.hook = at("put.reread", 1, scribble)
    source = sparse_file(tmp_path / "f", MIB)
    with job_of(source) as job, pytest.raises(VerifyMismatch):
        await tier.stage_file(job)
    assert staging_names(tier) == []


async def test_where_o_direct_is_refused(root: Path, open_tier: OpenTier, tmp_path: Path) -> None:
    """At open, and at the first write: then everything is sent once more, through the cache."""
    content = os.urandom(CHUNK + 5 * MIB + 1)
    (tmp_path / "f").write_bytes(content)
    for step in ("put.open_direct", "put.write"):
        sent: list[int] = []
        system = FaultyOS(failing(step, errno.EINVAL))
        tier = open_tier(root, system)
        with job_of(tmp_path / "f", progress=sent.append) as job:
            staged = await tier.stage_file(job)
        assert staged_path(tier, staged).read_bytes() == content
        assert staged.digest == reference_digest(content)
        assert system.seen.count("put.write_out") == 2
        assert sum(sent) == len(content)
        assert len(staging_names(tier)) == 1
        tier.discard(staged)


async def test_short_writes_are_continued(root: Path, open_tier: OpenTier, tmp_path: Path) -> None:
    content = os.urandom(2 * MIB)
    (tmp_path / "f").write_bytes(content)
    tier = open_tier(root, FaultyOS(short={"put.write": 8192}))
    with job_of(tmp_path / "f") as job:
        staged = await tier.stage_file(job)
    assert staged_path(tier, staged).read_bytes() == content


@pytest.mark.parametrize("size", [5 * MIB, CHUNK + MIB])
async def test_a_source_that_is_written_meanwhile(
    root: Path, open_tier: OpenTier, tmp_path: Path, size: int
) -> None:
    version = 1
    system = FaultyOS()
    tier = open_tier(root, system)
    sparse_file(tmp_path / "f", size, (0, b"x" * 5 * MIB))

    def write(*_: object) -> None:
        nonlocal version
        version += 1

    system.hook = at("put.write", 1, write)
    opened = job_of(tmp_path / "f", changed=lambda: version != 1)
    with opened as job, pytest.raises(ObjectChanged):
        await tier.stage_file(job)
    assert staging_names(tier) == []


@pytest.mark.parametrize("size", [MIB - 5000, MIB + 1])
async def test_a_source_of_another_size(
    root: Path, open_tier: OpenTier, tmp_path: Path, size: int
) -> None:
    system = FaultyOS(at("put.read", 1, lambda *_: os.truncate(tmp_path / "f", size)))
    tier = open_tier(root, system)
    (tmp_path / "f").write_bytes(b"x" * MIB)
    with job_of(tmp_path / "f") as job, pytest.raises(ObjectChanged):
        await tier.stage_file(job)
    assert staging_names(tier) == []


async def test_every_step_may_fail_and_leaves_nothing(
    root: Path, open_tier: OpenTier, tmp_path: Path
) -> None:
    source = sparse_file(tmp_path / "f", CHUNK + 4097, (0, b"x" * 5000), (CHUNK + 100, b"y" * 10))
    recorder = FaultyOS()
    tier = open_tier(root, recorder)
    recorder.seen.clear()
    with job_of(source, xattrs={b"user.a": b"1"}, place=TOP) as job:
        tier.discard(await tier.stage_file(job))
    steps = sorted({s for s in recorder.seen if s.startswith("put.")} - {"put.close"})
    assert len(steps) > 12
    before = len(os.listdir("/proc/self/fd"))
    for step in steps:
        recorder.hook = failing(step, errno.EIO)
        opened = job_of(source, xattrs={b"user.a": b"1"}, place=TOP)
        with opened as job, pytest.raises(OSError, match="Input/output") as caught:
            await tier.stage_file(job)
        assert f"at step {step}" in caught.value.__notes__
        assert staging_names(tier) == [], step
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_could_not_be_removed_does_not_stand_in_the_way(
    root: Path, open_tier: OpenTier, tmp_path: Path
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    (tmp_path / "f").write_bytes(b"x")

    def both(step: str, detail: tuple[object, ...]) -> None:
        if step in ("put.fsync", "staging.remove"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    system.hook = both
    with job_of(tmp_path / "f") as job, pytest.raises(OSError, match="Input/output"):
        await tier.stage_file(job)
    assert len(staging_names(tier)) == 1
    system.hook = None
    with job_of(tmp_path / "f") as job:
        tier.discard(await tier.stage_file(job))
    assert staging_names(tier) == []


@pytest.mark.parametrize("size", [5 * MIB, 2 * CHUNK])
async def test_cancellation_leaves_nothing(
    root: Path, open_tier: OpenTier, tmp_path: Path, size: int
) -> None:
    stall = Stall("put.write")
    tier = open_tier(root, FaultyOS(stall))
    sparse_file(tmp_path / "f", size, (0, b"x" * 5 * MIB))
    with job_of(tmp_path / "f") as job:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tier.stage_file, job)
            await trio.to_thread.run_sync(stall.reached.wait)
            nursery.cancel_scope.cancel()
            stall.release()
    assert staging_names(tier) == []


async def test_the_rate_is_limited_before_bytes_are_written(
    root: Path, open_tier: OpenTier, tmp_path: Path
) -> None:
    system = FaultyOS()
    tier = open_tier(root, system)
    asked: list[tuple[int, int, int]] = []

    class Watched(Bandwidth):
        def take(self, share: Share, wanted: int, check: Callable[[], None]) -> int:
            granted = super().take(share, wanted, check)
            asked.append((granted, system.seen.count("put.write"), system.seen.count("put.reread")))
            return granted

    tier.bandwidth = Watched()
    tier.bandwidth.rate = 64 * MIB
    content = os.urandom(9 * MIB + 5)
    (tmp_path / "f").write_bytes(content)
    with job_of(tmp_path / "f") as job:
        staged = await tier.stage_file(job)
    assert staged.digest == reference_digest(content)
    assert sum(granted for granted, _, _ in asked) == 2 * len(content)  # written and read back
    assert [writes + rereads for _, writes, rereads in asked] == list(range(len(asked)))
    assert max(granted for granted, _, _ in asked) <= 64 * MIB * SLICE_SECONDS


async def test_who_waits_for_bandwidth_can_be_cancelled(tier: SharedTier, tmp_path: Path) -> None:
    tier.bandwidth.rate = 1 << 16
    (tmp_path / "f").write_bytes(b"x" * (9 * MIB))
    with job_of(tmp_path / "f") as job, trio.fail_after(30):
        with trio.move_on_after(0.3) as scope:
            await tier.stage_file(job)
    assert scope.cancelled_caught
    assert staging_names(tier) == []


async def test_long_names_are_shortened(tier: SharedTier, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with job_of(tmp_path / "f", row=2**62, name=b"\xff" * 255) as job:
        staged = await tier.stage_file(job)
    assert staged.name.startswith(b"4611686018427387904-\xff")
    assert (await trio.Path(staged_path(tier, staged)).stat()).st_ino == staged.inode
