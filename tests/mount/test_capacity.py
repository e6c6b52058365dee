"""A local tier that fills: eviction, writers that wait, what is kept for small files."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, fails_with, frozen, wait_until
from tests.harness.devices import fill

MIB = 1 << 20
LOCAL = 320 * MIB

WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
while True:
    os.write(fd, bytes(1 << 20))
"""


def small_local(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node], **settings: object
) -> tuple[Node, LoopDevice]:
    """A node with a local tier of 320 MiB; the device of its shared tier of 2 GiB."""
    local, shared = make_device("local", LOCAL), make_device("shared", 2048 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.settings = settings
    return node, shared


def pattern(name: str, size: int) -> bytes:
    """Content that differs from file to file and from block to block."""
    block = (name.encode() * 4096)[:4096]
    return b"".join(block[:-8] + index.to_bytes(8, "big") for index in range(size // 4096))


def save(path: Path, size: int) -> None:
    """Writes it in pieces, as savers do."""
    content = memoryview(pattern(path.name, size))
    with path.open("wb", buffering=0) as file:
        done = 0
        while done < size:
            done += file.write(content[done : done + MIB])


def tier_of(path: Path) -> str:
    return os.getxattr(path, "user.tierfs.tier").decode()


def test_the_least_recently_used_goes_and_what_is_in_use_stays(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    node, shared = small_local(make_device, make_node, watermark=0.7, watermark_low=0.4)
    node.start()
    for index in range(6):
        save(node.mount / f"f{index}", 16 * MIB)
    node.settle()
    opened = (node.mount / "f0").open("rb")
    with (node.mount / "f1").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    (node.mount / "f2").read_bytes()  # later than the three after it
    for index in range(6, 13):  # above 0.7 of 320 MiB, with what the file system takes itself
        save(node.mount / f"f{index}", 16 * MIB)
    node.settle()
    wait_until(lambda: node.status()["capacity"]["evicted_files"] >= 3, "eviction")
    tiers = {f"f{index}": tier_of(node.mount / f"f{index}") for index in range(13)}
    assert [name for name in ("f3", "f4", "f5") if tiers[name] != "shared"] == []
    assert [name for name in ("f0", "f1", "f12") if tiers[name] != "both"] == []
    assert opened.read() == pattern("f0", 16 * MIB)
    assert mapped[:] == pattern("f1", 16 * MIB)
    opened.close()
    mapped.close()
    capacity = node.status()["capacity"]
    assert capacity["clean_bytes"] == 16 * MIB * capacity["clean_files"]
    assert capacity["evicted_bytes"] == 16 * MIB * (13 - capacity["clean_files"])
    compare(node.mount, shared.mountpoint)


def test_writers_wait_for_room(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """More than twice what fits, at once, through the daemon: nobody gets ENOSPC."""
    node, shared = small_local(make_device, make_node, full_wait="5min")
    node.start("--no-passthrough")
    failed: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for index in range(4):
                save(node.mount / f"{name}{index}", 36 * MIB)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failed == []
    for name in "abcd":
        for index in range(4):
            found = (node.mount / f"{name}{index}").read_bytes()
            assert found == pattern(f"{name}{index}", 36 * MIB)
    node.settle()
    assert node.status()["capacity"]["evicted_files"]
    compare(node.mount, shared.mountpoint)


def test_a_full_tier_has_room_for_small_files_and_lets_the_killed_go(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    node, shared = small_local(make_device, make_node, full_wait="10min")
    node.expected = [r"ENOSPC|No space"]
    node.start("--no-passthrough")
    wait_until(lambda: node.status()["capacity"]["reserve_bytes"] > 4 * MIB, "the reserve")
    (node.local.parent / "ballast").touch()  # later there may be no room for an inode
    with frozen(shared):
        save(node.mount / "pending", 16 * MIB)  # what the others wait for
        script = [sys.executable, "-c", WRITER]
        large = [subprocess.Popen([*script, str(node.mount / name)]) for name in ("x", "y")]
        wait_until(lambda: node.status()["capacity"]["waiting_writes"] == 2, "both to wait")
        ballast = fill(node.local.parent)  # not even what the writers' last pieces left
        sizes = [os.stat(node.mount / name).st_size for name in ("x", "y")]
        for index in range(20):
            (node.mount / f"latest{index}").write_bytes(b"checkpoint-500" * 1000)
        assert [os.stat(node.mount / name).st_size for name in ("x", "y")] == sizes
        (node.mount / "d").mkdir()
        (node.mount / "d" / "link").symlink_to("../latest0")
        for each in large:
            each.send_signal(signal.SIGKILL)
            assert each.wait(timeout=20) == -signal.SIGKILL
        assert node.status()["capacity"]["waiting_writes"] == 0
    ballast.unlink()
    for name in ("x", "y"):
        (node.mount / name).unlink()
    node.settle()
    compare(node.mount, shared.mountpoint)


def test_a_file_that_outgrows_the_tier_is_reported_and_kept(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """The kernel writes past the daemon, so nobody can make it wait."""
    node, shared = small_local(make_device, make_node, expect_bytes="1M")
    node.expected = [r"ENOSPC|No space"]
    node.start()
    if not node.status()["passthrough"]:
        pytest.skip("about passthrough alone")
    block, written = pattern("huge", MIB), 0
    with frozen(shared), (node.mount / "huge").open("wb", buffering=0) as file:
        with fails_with(errno.ENOSPC):
            while True:
                written += file.write(block[written % MIB :])
        wait_until(lambda: node.status()["capacity"]["outgrown_files"] == 1, "it to be counted")
    whole, rest = divmod(written, MIB)
    assert (node.mount / "huge").read_bytes() == block * whole + block[:rest]
    node.settle()
    assert node.status()["capacity"]["outgrown_files"] == 0
    compare(node.mount, shared.mountpoint)


def test_closes_wait_while_too_much_is_pending(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """The wait is no deadlock: not for one that is larger than the limit, nor for a flush."""
    shared = make_device("shared", 1024 * MIB)
    node = make_node(shared=shared.mountpoint)
    node.settings = {"max_pending_bytes": "8M"}
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)"]
    node.start()
    (node.mount / "larger").write_bytes(bytes(16 * MIB))
    node.settle()
    script = [sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes"
              "(bytes(6 << 20))"]  # fmt: skip

    def waiting() -> int:
        return int(node.status()["capacity"]["waiting_closes"])

    with frozen(shared):
        closers = [subprocess.Popen([*script, str(node.mount / f"f{i}.tmp")]) for i in range(4)]
        wait_until(lambda: waiting() == 3, "all but the first to wait")
        closers[1].kill() if closers[1].poll() is None else closers[2].kill()
        wait_until(lambda: waiting() == 2, "the killed one to go")
        assert node.status()["pending_bytes"] <= 22 * MIB
    for each in closers:
        assert each.wait(timeout=30) in (0, -signal.SIGKILL)
    assert node.cli("set", node.mount, "bwlimit=256K").code == 0
    closers = [subprocess.Popen([*script, str(node.mount / name)]) for name in "gh"]
    wait_until(lambda: waiting() == 1, "the second to wait")
    if node.status()["supervisor_pid"]:
        node.kill_worker()
        wait_until(lambda: waiting() == 1, "it to wait again")
    assert node.cli("set", node.mount, "bwlimit=off").code == 0
    for each in closers:
        assert each.wait(timeout=60) == 0
    node.settle()
    compare(node.mount, shared.mountpoint)
