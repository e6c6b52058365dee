"""G6: kill -9, reboot, killed writers, second daemons; the application's view before and after."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, frozen, wait_until
from tests.harness.storm import Storm
from tests.harness.trees import compare_snapshots, snapshot

MIB = 1 << 20


def staging_files(shared: Path) -> list[Path]:
    """Everything left in the staging area of the shared tier."""
    return [path for path in (shared / ".tierfs" / "staging").rglob("*") if not path.is_dir()]


def agree(storm: Storm) -> None:
    """The mount shows what every finished operation left; forget what was under way."""
    doubtful = storm.uncertain | {path + ".tmp" for path in storm.uncertain}

    def certain(root: Path) -> dict[str, object]:
        return {
            path: (entry.kind, entry.mode, entry.size, entry.content)
            for path, entry in snapshot(root).items()
            if not any(path == d or path.startswith(f"{d}/") for d in doubtful)
        }

    assert certain(storm.mount) == certain(storm.mirror)
    for path in sorted(doubtful):
        for root in (storm.mount, storm.mirror):
            victim = root / path
            if victim.is_dir() and not victim.is_symlink():
                shutil.rmtree(victim)
            elif victim.exists():
                victim.unlink()


def complete(checkpoint: Path) -> None:
    """A checkpoint that a flush finds whole, if it is there at all."""
    if checkpoint.exists():
        for name in ("model.safetensors", "trainer_state.json"):
            (checkpoint / name).write_bytes(b"at last")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kill_at_random_loses_nothing_closed(node: Node, tmp_path: Path, seed: int) -> None:
    storm = Storm(node.mount, tmp_path / "mirror", seed)
    chance = random.Random(seed)
    for _ in range(4):
        killer = threading.Timer(
            chance.uniform(0.1, 1.5), lambda: os.kill(node.pid, signal.SIGKILL)
        )
        killer.start()
        storm.run(100_000)
        killer.join()
        assert not node.is_alive()
        node.start()
        agree(storm)
    assert storm.done > 20
    complete(node.mount / "checkpoint-1")
    node.settings["delete_hold"] = 0  # what is removed goes, even the last
    node.restart()
    node.settle()
    compare_snapshots(snapshot(node.mount), snapshot(node.shared))
    assert staging_files(node.shared) == []


def test_backlog_goes_on_after_kill(node: Node) -> None:
    (node.mount / "d").mkdir()
    for index in range(20):
        (node.mount / "d" / f"f{index}").write_bytes(b"%d" % index * 50_000)
    node.kill()
    node.start()
    for index in range(20):
        assert (node.mount / "d" / f"f{index}").read_bytes() == b"%d" % index * 50_000
    node.settle()
    compare(node.mount, node.shared)


@pytest.mark.parametrize("whole", [False, True])
def test_removals_that_were_answered_survive_the_kill(node: Node, whole: bool) -> None:
    """Of the worker, or of all: their rows share a transaction that comes after the answer."""
    node.expected.append(r"killed by SIGKILL")
    directory = node.mount / "d"
    directory.mkdir()
    names = [f"f{number:03}" for number in range(120)]
    for name in names:
        (directory / name).write_bytes(b"x")
    (directory / "empty").mkdir()
    node.settle()
    for _ in range(3):
        gone, names = names[:30], names[30:]
        os.listdir(directory)
        for name in gone:
            (directory / name).unlink()
        if whole:
            node.kill()
            node.start()
        else:
            node.kill_worker()
        assert sorted(os.listdir(directory)) == sorted([*names, "empty"])
    (directory / "empty").rmdir()
    node.kill()
    node.start()
    assert sorted(os.listdir(directory)) == names
    (directory / gone[0]).write_bytes(b"again")
    node.settle()
    assert sorted(os.listdir(node.shared / "d")) == sorted([gone[0], *names])


def test_dead_mount_is_replaced(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    node.kill()
    assert node.is_mounted()
    assert not node.is_alive()
    node.start()
    assert (node.mount / "f").read_bytes() == b"x"


def test_file_open_for_writing_at_the_kill_is_not_committed_as_whole(node: Node) -> None:
    (node.mount / "half").write_bytes(b"old, committed")
    node.settle()
    fd = os.open(node.mount / "half", os.O_WRONLY)
    os.write(fd, b"NEW, torn in the")
    node.kill()
    with pytest.raises(OSError, match=r"connect|abort|Input/output"):
        os.close(fd)
    node.start()
    assert (node.mount / "half").read_bytes() in (b"old, committed", b"NEW, torn in the")
    node.flush()
    assert (node.shared / "half").read_bytes() == b"old, committed"


def test_writer_killed_in_the_middle_is_torn(node: Node) -> None:
    (node.mount / "model.pt").write_bytes(b"good")
    node.settle()
    code = (
        "import os, signal\n"
        f"f = open({str(node.mount / 'model.pt')!r}, 'wb')\n"
        "f.write(b'half a model'); f.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    wait_until(lambda: node.status()["stuck"], "the torn file to be reported")
    assert node.status()["stuck"][0]["state"] == "torn"
    assert (node.mount / "model.pt").read_bytes() == b"half a model"
    assert node.flush().code == 3
    assert (node.shared / "model.pt").read_bytes() == b"good"
    (node.mount / "model.pt").write_bytes(b"a whole model")
    node.settle()
    assert (node.shared / "model.pt").read_bytes() == b"a whole model"


@pytest.mark.parametrize("decision", ["accept", "discard"])
def test_torn_file_is_accepted_or_discarded(node: Node, decision: str) -> None:
    (node.mount / "model.pt").write_bytes(b"good")
    node.settle()
    code = (
        "import os, signal\n"
        f"f = open({str(node.mount / 'model.pt')!r}, 'wb')\n"
        "f.write(b'half'); f.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    wait_until(lambda: node.status()["stuck"], "the torn file to be reported")
    result = node.cli(decision, node.mount / "model.pt", "--json")
    assert result.code == 0, result.err
    node.settle()
    want = b"half" if decision == "accept" else b"good"
    assert (node.mount / "model.pt").read_bytes() == want
    assert (node.shared / "model.pt").read_bytes() == want


def tear(path: Path) -> None:
    """A writer of `path` is killed in the middle; returns when it has been closed."""
    code = f"import os; f = open({str(path)!r}, 'wb'); f.write(b'half'); f.flush(); os.abort()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGABRT


def test_a_torn_file_that_is_only_opened_stays_torn(node: Node) -> None:
    """Who opens it for writing and changes nothing has decided nothing."""
    tear(node.mount / "model.pt")
    wait_until(lambda: node.status()["stuck"], "the torn file to be reported")
    os.close(os.open(node.mount / "model.pt", os.O_RDWR))
    assert node.flush().code == 3
    assert not (node.shared / "model.pt").exists()


def test_a_torn_file_that_is_gone_holds_nothing(node: Node) -> None:
    """As SQLite does with the journal of a writer that was killed: opened, then removed."""
    names = [node.mount / name for name in ("unlinked", "open", "changed", "replaced", "again")]
    for name in names:
        tear(name)
    wait_until(lambda: len(node.status()["stuck"]) == len(names), "them to be reported")
    for name in names:
        fd = os.open(name, os.O_RDWR)
        if name.name == "changed":
            os.write(fd, b"H")
            os.fsync(fd)
        if name.name == "open":
            name.unlink()
        os.close(fd)
        if name.name == "replaced":
            (node.mount / "new").write_bytes(b"whole")
            (node.mount / "new").rename(name)
        elif name.name != "open":
            name.unlink()
    tear(node.mount / "again")
    (node.mount / "again").unlink()
    node.settle()
    compare(node.mount, node.shared)
    assert os.listdir(node.mount) == ["replaced"]


@pytest.fixture
def device(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """A shared tier that can be frozen, so that a backlog stays a backlog."""
    return make_device("shared", 512 * MIB)


def reboot(node: Node) -> None:
    """As after a power cut: the daemon gone, another boot, the same disks."""
    if node.is_alive():
        node.kill()
    node.close()
    node.environment["TIERFS_TEST_BOOT_ID"] = "00000000-0000-4000-8000-00000000beef"
    node.environment["TIERFS_TEST_MOUNT_ID"] = "424242"


@pytest.mark.parametrize("decision", ["accept", "discard"])
def test_unsynced_file_is_suspect_after_a_reboot(
    make_node: Callable[..., Node], decision: str
) -> None:
    """The daemon dies as it is about to sync the file: closed, and never on disk for sure."""
    node = make_node()
    node.settings["supervisor"] = False
    node.environment["TIERFS_TEST_FAULT"] = "local.fsync:1:kill"
    node.start()
    (node.mount / "f").write_bytes(b"closed, never synced")
    wait_until(lambda: not node.is_alive(), "the daemon to die before the sync")
    del node.environment["TIERFS_TEST_FAULT"]
    reboot(node)
    node.start()
    stuck = node.status()["stuck"]
    assert [(os.path.basename(s["path"]), s["state"]) for s in stuck] == [("f", "suspect")]
    assert (node.mount / "f").read_bytes() == b"closed, never synced"
    assert node.flush().code == 3
    assert not (node.shared / "f").exists()
    assert node.cli(decision, node.mount / "f").code == 0
    node.settle()
    assert (node.shared / "f").exists() == (decision == "accept")
    wait_until(
        lambda: (node.mount / "f").exists() == (decision == "accept"),
        "the kernel to ask again",
        timeout=2,
    )


def test_synced_files_survive_a_reboot(make_node: Callable[..., Node], device: LoopDevice) -> None:
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        for index in range(5):
            with (node.mount / f"f{index}").open("wb") as file:
                file.write(b"synced %d" % index)
                file.flush()
                os.fsync(file.fileno())
        wait_until(lambda: node.status()["oldest_unsynced_seconds"] == 0, "everything to be synced")
        reboot(node)
    node.start()
    assert node.status()["stuck"] == []
    node.settle()
    for index in range(5):
        assert (device.mountpoint / f"f{index}").read_bytes() == b"synced %d" % index


def test_second_daemon_on_one_local_tier_is_refused(
    node: Node, make_node: Callable[..., Node]
) -> None:
    second = make_node("second", local=node.local)
    result = second.cli(*second.mount_words())
    assert result.code != 0
    assert len(result.err.strip().splitlines()) == 1
    assert str(node.status()["worker_pid"]) in result.err
    assert not second.is_mounted()
    (node.mount / "f").write_bytes(b"the first goes on")
    node.settle()


def test_sigterm_with_a_backlog_detaches_quickly(
    make_node: Callable[..., Node], device: LoopDevice
) -> None:
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        for index in range(10):
            (node.mount / f"f{index}").write_bytes(bytes([index]) * MIB)
        started = time.monotonic()
        os.kill(node.pid, signal.SIGTERM)
        wait_until(lambda: not node.is_mounted(), "the mount to be detached", timeout=30)
        assert time.monotonic() - started < 30
    wait_until(lambda: not Path(f"/proc/{node.pid}").exists(), "the daemon to end", timeout=30)
    node.start()
    for index in range(10):
        assert (node.mount / f"f{index}").read_bytes() == bytes([index]) * MIB
    node.settle()


def test_staging_of_a_killed_daemon_is_swept(
    make_node: Callable[..., Node], device: LoopDevice
) -> None:
    node = make_node(shared=device.mountpoint).start()
    with (node.mount / "large").open("wb") as file:
        file.write(bytes(range(256)) * (200 * MIB // 256))
    wait_until(lambda: staging_files(device.mountpoint), "the transfer to begin", poll=0.001)
    node.kill()
    assert not (device.mountpoint / "large").exists()
    node.start()
    node.settle()
    wait_until(lambda: not staging_files(device.mountpoint), "old staging to be swept")
    compare(node.mount, device.mountpoint)


@pytest.mark.parametrize("step", ["put.rename", "put.fsync", "put.fsync_dir"])
def test_death_at_a_step_of_the_commit(make_node: Callable[..., Node], step: str) -> None:
    node = make_node()
    node.settings["supervisor"] = False
    node.environment["TIERFS_TEST_FAULT"] = f"{step}:2:kill"
    node.start()
    (node.mount / "a").write_bytes(b"a" * 100_000)
    node.flush(timeout=5)
    (node.mount / "b").write_bytes(b"b" * 100_000)
    wait_until(lambda: not Path(f"/proc/{node.pid}").exists(), f"the daemon to die at {step}")
    del node.environment["TIERFS_TEST_FAULT"]
    node.start()
    node.settle()
    compare(node.mount, node.shared)
    assert staging_files(node.shared) == []
