"""Full tiers, dying tiers, and what must not grow for ever."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, fails_with, frozen, shut_down, wait_until

MIB = 1 << 20


def object_files(node: Node) -> list[Path]:
    """Every object of the local tier, directories included."""
    return list((node.local / "objects").glob("??/*"))


def journal_bytes(node: Node) -> int:
    """Size of the journal and its WAL."""
    return sum(path.stat().st_size for path in node.local.glob("journal*"))


def journal_rows(node: Node) -> int:
    """Rows of pending ops, read from a copy once the daemon has gone."""
    database = next(node.local.glob("journal*.db"))
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM op").fetchone()[0])


def save(parent: Path, step: int, size: int = 2000) -> None:
    folder = parent / f"step_{step}"
    folder.mkdir()
    for rank in range(2):
        (folder / f"__{rank}_0.distcp").write_bytes(bytes([step % 256, rank]) * size)
    (folder / ".metadata.tmp").write_bytes(b"m")
    os.rename(folder / ".metadata.tmp", folder / ".metadata")


KEPT = 2 * 4
"""Objects of the two steps that are there: of each its directory, two shards and their index."""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_thousand_rounds_leave_nothing_behind(node: Node) -> None:
    largest_journal = 0
    for step in range(1, 1001):
        save(node.mount, step)
        if step > 2:
            shutil.rmtree(node.mount / f"step_{step - 2}")
        if step % 100 == 0:
            node.settle()
            wait_until(lambda: len(object_files(node)) <= KEPT, "old objects to go")
            largest_journal = max(largest_journal, journal_bytes(node))
    node.settle()
    assert sorted(os.listdir(node.mount)) == ["step_1000", "step_999"]
    compare(node.mount, node.shared)
    assert largest_journal < 16 * MIB
    assert [p for p in (node.shared / ".tierfs" / "staging").rglob("*") if p.is_file()] == []
    assert node.umount().code == 0
    assert journal_rows(node) == 0
    assert journal_bytes(node) < 4 * MIB


def test_both_tiers_full_or_silent_lose_nothing(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """A writer waits for the shared tier; where the kernel writes by itself it gets ENOSPC."""
    local = make_device("local", 320 * MIB)
    shared = make_device("shared", 1024 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.expected = [r"ENOSPC|No space", "the local tier is full"]
    node.settings = {"full_wait": "300ms"}
    node.start()
    closed: list[int] = []

    def write() -> None:
        for index in range(24):
            with (node.mount / f"f{index}").open("wb") as file:
                file.write(bytes([index]) * 16 * MIB)
            closed.append(index)

    def is_full() -> bool:
        used = os.statvfs(local.mountpoint)
        return used.f_bavail * used.f_frsize < 16 * MIB

    with ThreadPoolExecutor(1) as pool:
        with frozen(shared):
            writing = pool.submit(write)
            wait_until(lambda: writing.done() or is_full(), "the local tier to be full")
            assert len(closed) >= 5
            for index in list(closed):
                assert (node.mount / f"f{index}").read_bytes() == bytes([index]) * 16 * MIB
        error = writing.exception()
    assert error is None or getattr(error, "errno", 0) == errno.ENOSPC
    failed = node.mount / f"f{len(closed)}"
    if failed.exists():
        failed.unlink()
    node.settle()
    compare(node.mount, shared.mountpoint)
    assert len(os.listdir(node.mount)) == len(closed)
    (node.mount / "after").write_bytes(b"x" * 16 * MIB)
    node.settle()


def test_clean_copies_make_room_for_new_files(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    local = make_device("local", 320 * MIB)
    shared = make_device("shared", 2048 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.settings = {"watermark": 0.6}
    node.start()
    for index in range(40):  # three times what fits
        (node.mount / f"f{index}").write_bytes(bytes([index]) * 20 * MIB)
        node.settle(node.mount / f"f{index}")
    used = os.statvfs(local.mountpoint)
    assert used.f_bfree > used.f_blocks * 0.2
    for index in (0, 20, 39):
        assert (node.mount / f"f{index}").read_bytes() == bytes([index]) * 20 * MIB
    compare(node.mount, shared.mountpoint)


def test_full_shared_tier_is_waited_for(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    shared = make_device("shared", 320 * MIB)
    node = make_node(shared=shared.mountpoint)
    node.expected = [r"ENOSPC|No space"]
    node.start()
    (node.mount / "d").mkdir()
    (node.mount / "before").write_bytes(b"x")
    node.settle()
    ballast = shared.fill(leave=4 * MIB)
    (node.mount / "large").write_bytes(os.urandom(32 * MIB))
    (node.mount / "medium").write_bytes(bytes(2 * MIB))  # would fit: that is kept for small files
    (node.mount / "d" / "small").write_bytes(b"checkpoint-1")
    wait_until(lambda: node.status()["retrying"], "the write-back to meet ENOSPC")
    assert node.flush(timeout=1).code == 2
    assert (node.mount / "large").stat().st_size == 32 * MIB
    assert not (shared.mountpoint / "large").exists()
    assert not (shared.mountpoint / "medium").exists()
    node.settle(node.mount / "d")
    ballast.unlink()
    node.settle()
    compare(node.mount, shared.mountpoint)


def test_a_request_that_hangs_is_named(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    local = make_device("local")
    node = make_node(local=local.mountpoint / "tier").start()
    (node.mount / "d").mkdir()
    with frozen(local):
        asking = subprocess.Popen(["touch", str(node.mount / "d" / "new")])
        wait_until(lambda: node.status()["hanging"], "the request to be named")
        hanging = node.status()["hanging"]
        shown = node.cli("status", node.mount).out
    assert asking.wait() == 0
    assert [(each["operation"], each["path"]) for each in hanging] == [
        ("create", str(node.mount / "d" / "new"))
    ]
    assert hanging[0]["seconds"] >= 5
    assert f"{node.mount / 'd' / 'new'}: create for" in shown
    assert node.status()["hanging"] == []


def test_frozen_shared_tier_serves_local_copies(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    shared = make_device("shared")
    node = make_node(shared=shared.mountpoint).start()
    with frozen(shared):
        for index in range(20):
            (node.mount / f"f{index}").write_bytes(b"%d" % index * 1000)
            assert (node.mount / f"f{index}").read_bytes() == b"%d" % index * 1000
        assert len(os.listdir(node.mount)) == 20
    node.settle()
    compare(node.mount, shared.mountpoint)


def test_dead_shared_tier_is_an_error_and_no_missing_name(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """G10: a tier error is an error, never an empty directory or ENOENT."""
    shared = make_device("shared")
    node = make_node(shared=shared.mountpoint)
    node.expected = [r"EIO|Input/output|shut ?down|shared tier"]
    node.start()
    (node.mount / "d").mkdir()
    (node.mount / "d" / "committed").write_bytes(b"x" * 1000)
    node.settle()
    with (node.mount / "pending").open("wb") as file:
        shut_down(shared)
        file.write(b"local")
    assert (node.mount / "pending").read_bytes() == b"local"
    with pytest.raises(OSError) as caught:  # noqa: PT011
        (node.mount / "d" / "other").stat()
    assert caught.value.errno in (errno.EIO, errno.ETIMEDOUT)
    listed = subprocess.run(["ls", node.mount / "d"], check=False, capture_output=True)
    assert listed.returncode != 0, "a process that was started since would take it for the present"
    assert node.is_alive()
    assert node.status()["pending_files"] == 1
    assert node.umount("--force").code == 0
    shared.unmount(lazy=True)
    shared.mount()
    node.start()
    node.settle()
    compare(node.mount, shared.mountpoint)


def test_many_pending_files(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    shared = make_device("shared", 1024 * MIB)
    node = make_node(shared=shared.mountpoint).start()
    with frozen(shared):
        (node.mount / "d").mkdir()
        for index in range(3000):
            os.close(os.open(node.mount / "d" / f"f{index}", os.O_CREAT | os.O_WRONLY, 0o644))
        assert node.status()["pending_files"] == 3000
        assert len(os.listdir(node.mount / "d")) == 3000
    node.settle()
    assert len(os.listdir(shared.mountpoint / "d")) == 3000


def test_what_is_pending_is_not_free(node: Node) -> None:
    """A temporary name is not sent for a while: its bytes are taken all the same."""
    free = os.statvfs(node.mount).f_bavail * os.statvfs(node.mount).f_frsize
    (node.mount / "x.tmp").write_bytes(bytes(8 * MIB))

    def taken() -> int:
        st = os.statvfs(node.mount)
        return free - st.f_bavail * st.f_frsize

    wait_until(lambda: taken() > 7 * MIB, "statfs to tell")
    with (node.mount / "sparse.tmp").open("wb") as file:
        file.truncate(1 << 40)
    os.stat(node.mount / "sparse.tmp")
    wait_until(lambda: 7 * MIB < taken() < 100 * MIB, "a hole to take nothing")
    node.settle()
    assert taken() < 100 * MIB


def test_more_open_files_than_descriptors(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is raised as far as it goes; beyond it an open fails, and nothing else does."""
    node = make_node()
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)", r"EMFILE|Too many open files"]
    plain = node.command
    monkeypatch.setattr(
        node, "command", lambda *words: ["prlimit", "--nofile=256:1400", *plain(*words)]
    )
    node.start()
    monkeypatch.undo()
    names = [f"f{index}" for index in range(800)]
    files = []
    with ExitStack() as stack:
        with fails_with(errno.EMFILE):
            for name in names:
                files.append(stack.enter_context((node.mount / name).open("w+b", buffering=0)))
        assert 600 < len(files) < 800
        if node.status()["supervisor_pid"]:
            node.kill_worker()
        for index, file in enumerate(files):
            file.write(b"%d" % index)
            assert os.pread(file.fileno(), 10, 0) == b"%d" % index
    for name in names[len(files) :]:
        (node.mount / name).write_bytes(b"later")
    node.settle()
    for index, name in enumerate(names):
        want = b"%d" % index if index < len(files) else b"later"
        assert (node.shared / name).read_bytes() == want
    compare(node.mount, node.shared)
