"""Files that the local tier has no room for go on on the shared tier (G9)."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, wait_until
from tests.harness.devices import frozen

MIB = 1 << 20

FULL = r"the local tier is full"


@pytest.fixture
def local(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    return make_device("local", 128 * MIB)


@pytest.fixture
def full(local: LoopDevice) -> Callable[[], None]:
    """Takes all the room that is left on the local tier."""
    return lambda: local.fill() and None


@pytest.fixture
def shared(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    return make_device("shared", 768 * MIB)


@pytest.fixture
def small(local: LoopDevice, shared: LoopDevice, make_node: Callable[..., Node]) -> Node:
    """A mount without passthrough whose local tier is smaller than its shared one."""
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.expected = [FULL]
    node.settings = {"full_wait": "0.2s"}
    return node.start("--no-passthrough")


def block(index: int) -> bytes:
    return random.Random(index).randbytes(MIB)


def test_a_file_larger_than_the_whole_local_tier(small: Node) -> None:
    large = small.mount / "large"
    with large.open("wb") as file:
        for index in range(160):
            file.write(block(index))
    with large.open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(160))
    small.settle()
    wait_until(lambda: (small.shared / "large").stat().st_nlink == 1, "its object to go")
    compare(small.mount, small.shared)
    with (small.shared / "large").open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(160))
    wait_until(lambda: not staged_files(small), "what was staged to go")


def test_the_shared_tier_hangs_while_a_file_moves_to_it(small: Node, shared: LoopDevice) -> None:
    """Its writer waits until the tier is there again; small files are saved meanwhile."""
    small.expected.append("shared tier|hangs")
    hanging, may_go_on = threading.Event(), threading.Event()

    def write() -> None:
        with (small.mount / "large").open("wb") as file:
            for index in range(160):
                if index == 120:
                    hanging.set()
                    may_go_on.wait(60)
                file.write(block(index))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert hanging.wait(60)
        with frozen(shared):
            may_go_on.set()
            for index in range(5):
                (small.mount / f"small{index}").write_bytes(b"%d" % index * 1000)
            wait_until(
                lambda: small.status()["shared"]["state"] != "healthy", "it to be seen", timeout=60
            )
            assert not writing.done()
            assert (small.mount / "small0").read_bytes() == b"0" * 1000
        writing.result(60)
    small.settle()
    compare(small.mount, small.shared)
    with (small.shared / "large").open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(160))


def test_a_file_without_a_name_that_outgrows_the_local_tier(small: Node) -> None:
    """O_TMPFILE: it gets its name where it lies."""
    fd = os.open(small.mount, os.O_TMPFILE | os.O_RDWR)
    for index in range(160):
        os.pwrite(fd, block(index), index * MIB)
    os.link(f"/proc/self/fd/{fd}", small.mount / "large", src_dir_fd=fd)
    os.close(fd)
    small.settle()
    with (small.shared / "large").open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(160))
    compare(small.mount, small.shared)


def staged_files(node: Node) -> list[Path]:
    return [path for path in staged(node) if path.is_file()]


def staged(node: Node) -> list[Path]:
    return list((node.shared / ".tierfs" / "staging").rglob("*"))


def test_what_is_done_to_a_spilled_file(small: Node, full: Callable[[], None]) -> None:
    """Each as on any file, while the local tier is full and its content lies on the shared one."""
    path, model = small.mount / "f", bytearray()
    rng = random.Random(3)
    with path.open("w+b", buffering=0) as file:
        full()
        for _ in range(60):
            at = rng.randrange(0, len(model) + 1)
            data = rng.randbytes(rng.randrange(1, 400_000))
            assert os.pwrite(file.fileno(), data, at) == len(data)
            model[at : at + len(data)] = data
        assert os.getxattr(path, "user.tierfs.tier") == b"shared"
        file.truncate(len(model) // 2)
        del model[len(model) // 2 :]
        os.fsync(file.fileno())
        with path.open("ab") as appending:
            appending.write(b"appended")
        model += b"appended"
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[100:200] = b"m" * 100
            mapped.flush()
        model[100:200] = b"m" * 100
        path.chmod(0o640)
        os.setxattr(path, "user.a", b"1")
        assert path.read_bytes() == model
        os.rename(path, small.mount / "g")
        file.seek(0, os.SEEK_END)
        file.write(b"end")
        model += b"end"
    path = small.mount / "g"
    assert path.read_bytes() == model
    small.settle()
    compare(small.mount, small.shared)
    done = small.shared / "g"
    assert done.read_bytes() == model
    assert os.getxattr(done, "user.a") == b"1"
    assert [each for each in os.listxattr(done) if "tierfs" in each] == ["user.tierfs.digest"]
    wait_until(lambda: done.stat().st_nlink == path.stat().st_nlink == 1, "its object to go")
    with path.open("r+b") as file:
        file.write(b"again")
    assert path.read_bytes() == b"again" + model[5:]
    small.settle()
    compare(small.mount, small.shared)


def test_what_is_made_while_the_local_tier_is_full(small: Node, full: Callable[[], None]) -> None:
    """Names need no room there; a committed file is edited where there is room for a copy."""
    (small.mount / "old").write_bytes(block(1) * 8)
    small.settle()
    full()
    (small.mount / "d").mkdir()
    os.symlink("d", small.mount / "link")
    for index in range(300):
        (small.mount / "d" / f"f{index}").write_bytes(block(2)[: index * 100])
    with (small.mount / "old").open("r+b") as file:
        file.write(b"new")
    small.settle()
    compare(small.mount, small.shared)
    assert (small.shared / "old").read_bytes()[:1000] == b"new" + block(1)[3:1000]


def test_a_spilled_file_outlives_the_daemon(small: Node, full: Callable[[], None]) -> None:
    small.expected += [r"worker \d+ ended", "writer was killed", "torn"]
    closed, being_written = small.mount / "closed.tmp", small.mount / "f"
    with being_written.open("w+b", buffering=0) as file, closed.open("wb") as other:
        full()
        file.write(block(1))
        other.write(block(2))
        other.close()
        if small.status()["supervisor_pid"]:
            small.kill_worker()
            file.write(block(3))
            assert being_written.read_bytes() == block(1) + block(3)
    assert closed.read_bytes() == block(2)
    fd = os.open(small.mount / "torn", os.O_CREAT | os.O_WRONLY)
    os.write(fd, block(4))
    os.fsync(fd)  # its row is written
    small.kill()
    with contextlib.suppress(OSError):
        os.close(fd)
    small.start("--no-passthrough")
    assert closed.read_bytes() == block(2)
    assert (small.mount / "torn").read_bytes() == block(4)
    assert [each["path"] for each in small.status()["stuck"]] == [str(small.mount / "torn")]
    assert small.cli("accept", small.mount / "torn").code == 0
    small.settle()
    compare(small.mount, small.shared)
    assert (small.shared / "torn").read_bytes() == block(4)
    wait_until(lambda: not staged_files(small), "what was staged to go")
