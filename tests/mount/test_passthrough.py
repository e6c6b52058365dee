"""Files that the kernel reads and writes itself: what the daemon does not see must be right too.

Each case holds without passthrough as well (TIERFS_TEST_PASSTHROUGH=off), unless it says otherwise.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import subprocess
from collections.abc import Callable

import pytest

from tests.harness import LoopDevice, Node, as_user, compare, wait_until
from tests.harness.errors import fails_with
from tests.harness.users import ALICE

MIB = 1 << 20
NS = 1_234_567_890_123_456_789
OFF = os.environ.get("TIERFS_TEST_PASSTHROUGH") == "off"

only_passthrough = pytest.mark.skipif(OFF, reason="about passthrough alone")


@only_passthrough
def test_status_says_that_it_is_on(node: Node) -> None:
    status = node.status()
    assert status["passthrough"] is True
    assert status["passthrough_reason"] == ""
    (node.mount / "f").write_bytes(b"x")
    assert (node.mount / "f").read_bytes() == b"x"
    assert node.status()["fallbacks"] == {}


def test_switched_off(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings = {"passthrough": False}
    node.start()
    status = node.status()
    assert status["passthrough"] is False
    assert "--no-passthrough" in status["passthrough_reason"]
    (node.mount / "f").write_bytes(b"x" * 3 * MIB)
    assert (node.mount / "f").read_bytes() == b"x" * 3 * MIB
    node.settle()
    fd = os.open(node.mount / "f", os.O_WRONLY)  # as touch(1): nothing is written
    os.setxattr(node.mount / "f", "user.mark", b"1")
    os.utime(fd, ns=(NS, NS))
    os.close(fd)
    node.settle()
    assert (node.shared / "f").stat().st_mtime_ns == NS
    assert os.getxattr(node.shared / "f", "user.mark") == b"1"
    compare(node.mount, node.shared)


def test_a_write_open_that_changes_nothing_sends_nothing(node: Node) -> None:
    (node.mount / "f").write_bytes(b"." * MIB)
    node.settle()
    inode = (node.shared / "f").stat().st_ino
    with (node.mount / "f").open("r+b"):
        pass
    node.settle()
    assert (node.shared / "f").stat().st_ino == inode


def test_write_opens_that_change_nothing_leave_nothing_behind(node: Node) -> None:
    (node.mount / "f").write_bytes(b"." * MIB)
    node.settle()
    for _ in range(20):
        with (node.mount / "f").open("r+b") as writer, (node.mount / "f").open("rb") as reader:
            assert reader.read(1) == b"."
            assert writer.read(1) == b"."
    node.settle()
    wait_until(
        lambda: len(list((node.local / "objects").glob("??/*"))) <= 1, "the older copies to go"
    )
    assert (node.mount / "f").read_bytes() == b"." * MIB


def test_write_beside_readers_of_the_shared_file(
    node: Node, replacement: Callable[[], Node]
) -> None:
    """DESIGN 4: older readers keep what they have open, everybody else sees the new version."""
    (node.mount / "f").write_bytes(b"old version")
    node.settle()
    other = replacement()
    with (other.mount / "f").open("rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        with (other.mount / "f").open("r+b", buffering=0) as writer:
            writer.write(b"NEW")
            assert (other.mount / "f").read_bytes() == b"NEW version"
            assert (other.mount / "f").stat().st_size == 11
        assert reader.read() == b" version"
        os.truncate(other.mount / "f", 3)
        assert (other.mount / "f").read_bytes() == b"NEW"
    other.settle()
    assert (other.shared / "f").read_bytes() == b"NEW"
    compare(other.mount, other.shared)


@pytest.mark.parametrize("committed", [False, True], ids=["pending", "clean"])
@pytest.mark.parametrize("truncate", [False, True], ids=["update", "truncate"])
def test_write_beside_readers_of_a_local_copy(node: Node, committed: bool, truncate: bool) -> None:
    """Here they have the same inode open, and see what is written, as on any file system."""
    (node.mount / "f").write_bytes(b"old version")
    if committed:
        node.settle()
    with (node.mount / "f").open("rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        with (node.mount / "f").open("wb" if truncate else "r+b", buffering=0) as writer:
            writer.write(b"NEW")
            reader.seek(0)
            assert reader.read() == (b"NEW" if truncate else b"NEW version")
            (node.mount / "other").write_bytes(b"x")
            node.settle(node.mount / "other")
        if committed:
            assert (node.shared / "f").exists()
        reader.seek(0)
        assert reader.read() == (b"NEW" if truncate else b"NEW version")
    node.settle()
    assert (node.shared / "f").read_bytes() == (b"NEW" if truncate else b"NEW version")
    compare(node.mount, node.shared)


def test_what_was_closed_goes_although_it_is_written_again(node: Node) -> None:
    """A marker waits for the version that was closed before it, not for a later one."""
    (node.mount / "d").mkdir()
    (node.mount / "d" / "shard").write_bytes(b"closed")
    with (node.mount / "d" / "shard").open("rb", buffering=0) as reader:
        with (node.mount / "d" / "shard").open("r+b", buffering=0) as writer:
            writer.write(b"edited")
            wait_until(
                lambda: (node.shared / "d" / "shard").exists(), "the closed version to be sent"
            )
            assert (node.shared / "d" / "shard").read_bytes() == b"closed"
        assert reader.read() == b"edited"
    node.settle()
    assert (node.shared / "d" / "shard").read_bytes() == b"edited"


def test_everything_happens_to_a_file_while_it_is_open(node: Node) -> None:
    path = node.mount / "f"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as reader:
        assert reader.read(1) == b"0"
        node.settle()
        assert reader.read(1) == b"1"
        os.rename(path, node.mount / "g")
        node.settle()
        assert reader.read(1) == b"2"
        (node.mount / "h").write_bytes(b"replaced")
        os.rename(node.mount / "h", node.mount / "g")
        node.settle()
        assert reader.read(1) == b"3"
        assert (node.mount / "g").read_bytes() == b"replaced"
        (node.mount / "g").unlink()
        node.settle()
        assert reader.read() == b"456789"
        assert os.fstat(reader.fileno()).st_size == 10
    with (node.mount / "w").open("wb", buffering=0) as writer:
        writer.write(b"one ")
        os.rename(node.mount / "w", node.mount / "x")
        writer.write(b"two ")
        (node.mount / "x").unlink()
        writer.write(b"three")
        assert os.fstat(writer.fileno()).st_size == 13
    node.settle()
    assert os.listdir(node.mount) == []
    compare(node.mount, node.shared)


def test_more_open_files_than_the_usual_limit(node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2500
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 500)), hard))
    try:
        fds = [
            os.open(node.mount / f"f{index}", os.O_CREAT | os.O_RDWR, 0o644)
            for index in range(count)
        ]
        for index, fd in enumerate(fds):
            os.write(fd, b"%d" % index)
        for index, fd in enumerate(fds):
            assert os.pread(fd, 10, 0) == b"%d" % index
            os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    node.settle()
    assert len(os.listdir(node.shared)) >= count
    assert (node.shared / "f2499").read_bytes() == b"2499"


def test_advice_and_direct_io(node: Node) -> None:
    (node.mount / "f").write_bytes(b"ab" * MIB)
    fd = os.open(node.mount / "f", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 2 * MIB, os.POSIX_FADV_WILLNEED)
    assert os.pread(fd, 4, MIB) == b"abab"
    os.close(fd)
    buffer = mmap.mmap(-1, MIB)
    buffer.write(b"cd" * (MIB // 2))
    fd = os.open(node.mount / "f", os.O_RDWR | os.O_DIRECT)
    assert os.pwrite(fd, buffer, MIB) == MIB
    assert os.preadv(fd, [buffer], 0) == MIB
    assert buffer[:4] == b"abab"
    os.close(fd)
    node.settle()
    assert (node.shared / "f").read_bytes() == b"ab" * (MIB // 2) + b"cd" * (MIB // 2)


def test_allocation_and_holes(node: Node) -> None:
    path = node.mount / "f"
    path.write_bytes(b"x" * MIB)
    subprocess.run(["fallocate", "-p", "-o", "262144", "-l", "262144", path], check=True)
    subprocess.run(["fallocate", "-z", "-o", "0", "-l", "4096", path], check=True)
    fd = os.open(path, os.O_RDONLY)
    assert os.lseek(fd, 4096, os.SEEK_HOLE) == 262144
    assert os.lseek(fd, 262144, os.SEEK_DATA) == 524288
    for where in (-1, -(2**63)):
        with fails_with(errno.ENXIO):
            os.lseek(fd, where, os.SEEK_DATA)
    os.close(fd)
    content = path.read_bytes()
    assert content[:4097] == bytes(4096) + b"x"
    assert content[262144:524288] == bytes(262144)
    subprocess.run(["fallocate", "-n", "-l", str(4 * MIB), path], check=True)
    assert path.stat().st_size == MIB
    assert path.stat().st_blocks * 512 > 3 * MIB
    subprocess.run(["fallocate", "-l", str(2 * MIB), path], check=True)
    assert path.stat().st_size == 2 * MIB
    node.settle()
    compare(node.mount, node.shared)


def test_copies_share_blocks(node: Node) -> None:
    size = 64 * MIB
    (node.mount / "from").write_bytes(os.urandom(size))
    before = os.statvfs(node.local).f_bfree
    source = os.open(node.mount / "from", os.O_RDONLY)
    target = os.open(node.mount / "to", os.O_CREAT | os.O_WRONLY, 0o644)
    assert os.copy_file_range(source, target, size) == size
    os.close(source)
    os.close(target)
    os.sync()
    taken = (before - os.statvfs(node.local).f_bfree) * os.statvfs(node.local).f_frsize
    assert taken < size // 2
    assert (node.mount / "to").read_bytes() == (node.mount / "from").read_bytes()
    node.settle()
    compare(node.mount, node.shared)


@pytest.mark.parametrize("committed", [False, True])
def test_a_write_by_another_user_takes_setuid_away(node: Node, committed: bool) -> None:
    path = node.mount / "f"
    path.write_bytes(b"#!/bin/true\n")
    path.chmod(0o4777)
    if committed:
        node.settle()
    assert path.stat().st_mode & 0o7777 == 0o4777

    def write() -> None:
        with path.open("ab") as file:
            file.write(b"evil")

    as_user(write, ALICE)
    assert path.stat().st_mode & 0o7777 == 0o777
    path.chmod(0o6777)
    as_user(lambda: os.truncate(path, 3), ALICE)
    assert path.stat().st_mode & 0o7777 == 0o777
    node.settle()
    assert (node.shared / "f").stat().st_mode & 0o7777 == 0o777


@only_passthrough
def test_a_stacked_file_system_goes_the_ordinary_way(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("upper")
    merged = device.mountpoint / "merged"
    for name in ("lower", "over", "work", "merged"):
        (device.mountpoint / name).mkdir()
    layers = ",".join(
        f"{key}={device.mountpoint / name}"
        for key, name in (("lowerdir", "lower"), ("upperdir", "over"), ("workdir", "work"))
    )
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", merged], check=True)
    node = make_node(local=merged / "tier")
    try:
        node.start()
        status = node.status()
        assert status["passthrough"] is False
        assert "stacked" in status["passthrough_reason"]
        (node.mount / "f").write_bytes(b"x" * 3 * MIB)
        assert (node.mount / "f").read_bytes() == b"x" * 3 * MIB
        node.settle()
        compare(node.mount, node.shared)
    finally:
        node.close()
        subprocess.run(["umount", merged], check=True)


@only_passthrough
def test_the_shared_tier_alone_is_stacked(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("upper")
    merged = device.mountpoint / "merged"
    for name in ("lower", "over", "work", "merged"):
        (device.mountpoint / name).mkdir()
    (device.mountpoint / "lower" / "f").write_bytes(b"from below")
    layers = ",".join(
        f"{key}={device.mountpoint / name}"
        for key, name in (("lowerdir", "lower"), ("upperdir", "over"), ("workdir", "work"))
    )
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", merged], check=True)
    node = make_node(shared=merged)
    try:
        node.start()
        assert node.status()["passthrough"] is True
        with (node.mount / "f").open("rb") as one, (node.mount / "f").open("rb") as two:
            assert one.read() == two.read() == b"from below"
        assert node.status()["fallbacks"] == {"on a stacked file system (overlayfs)": 1}
    finally:
        node.close()
        subprocess.run(["umount", merged], check=True)


@only_passthrough
def test_a_scarce_local_tier_is_written_through_the_daemon(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    local = make_device("local", 320 * MIB)
    node = make_node(local=local.mountpoint / "tier")
    node.settings = {"passthrough_reserve": 0.9}
    node.start()
    (node.mount / "large").write_bytes(os.urandom(64 * MIB))

    def refused() -> bool:
        (node.mount / "probe").write_bytes(b"x")
        return node.status()["fallbacks"].get("local tier below its reserve", 0) > 0

    wait_until(refused, "a file opened for writing to go the ordinary way")
    assert (node.mount / "probe").read_bytes() == b"x"
    node.settle()
    compare(node.mount, node.shared)
