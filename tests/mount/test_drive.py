"""The local drive fails under the mount: it goes on, write-through, and names what is gone (G9)."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

import pytest

from tests.harness import LoopDevice, Node, fails_with, frozen, shut_down, wait_until
from tierfs.control.discovery import session_directory

MIB = 1 << 20


@pytest.fixture
def local(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    return make_device("local")


@pytest.fixture
def shared(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    return make_device("shared", 768 * MIB)


@pytest.fixture
def node(local: LoopDevice, shared: LoopDevice, make_node: Callable[..., Node]) -> Node:
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.expected = [r"EIO|Input/output|shut ?down|local drive|disk I/O", "cleaning up"]
    return node.start()


def stuck(node: Node) -> set[str]:
    return {os.path.basename(each["path"]) for each in node.status()["stuck"]}


def broken(shared: LoopDevice) -> set[str]:
    """The files that are said to be lost, where other nodes look for that."""
    (group,) = (shared.mountpoint / ".tierfs" / "groups").iterdir()
    return set(json.loads(max(group.glob("*.json")).read_text()).get("files", ()))


def test_a_dead_drive_makes_the_mount_write_through(
    node: Node, local: LoopDevice, shared: LoopDevice
) -> None:
    mount = node.mount
    (mount / "run").mkdir()
    (mount / "run" / "committed").write_bytes(b"c" * MIB)
    (mount / "run" / "checkpoint-1").mkdir()
    (mount / "run" / "checkpoint-1" / "model.bin").write_bytes(b"m" * MIB)
    node.settle(mount / "run" / "committed")
    staged = shared.mountpoint / "run" / ".staging_checkpoint-1" / "model.bin"
    wait_until(staged.exists, "what is closed to be sent")
    reader = (mount / "run" / "committed").open("rb", buffering=0)
    written = (mount / "run" / "written").open("wb", buffering=0)
    written.write(b"w" * 1000)
    part = (mount / "run" / "checkpoint-1" / "part.bin").open("wb", buffering=0)
    part.write(b"p" * 1000)
    with frozen(shared):
        # more than is read of a file before its first byte is written there
        (mount / "run" / "closed").write_bytes(b"x" * 16 * MIB)
        (mount / "run" / "checkpoint-1" / "optimizer.bin").write_bytes(b"o" * 16 * MIB)
        shut_down(local)
        wait_until(lambda: dead(node), "the drive's failure to be noticed")
    # what is lost is named at once, whoever has it open
    assert {"written", "part.bin"} <= stuck(node)
    assert node.status()["open_for_write"] == 0
    found = node.cli("checkpoints", "--json", mount / "run").json
    assert [each["open_files"] for each in found["broken"]] == [0]
    with fails_with(errno.EIO):
        part.close()
    with fails_with(errno.EIO):
        written.write(b"more")
    with fails_with(errno.EIO):
        os.fsync(written.fileno())
    with fails_with(errno.EIO):
        os.close(os.dup(written.fileno()))
    with fails_with(errno.EIO):
        written.close()

    # the kernel releases a file some moments after close() has returned
    wait_until(lambda: {"closed", "optimizer.bin", "written"} <= stuck(node), "the release")
    lost = (session_directory(str(mount)) / "lost").read_text().splitlines()
    assert {str(mount / "run" / name) for name in ("closed", "written")} <= set(lost)
    assert node.flush(timeout=5).code == 3
    assert (mount / "run" / "committed").read_bytes() == b"c" * MIB
    if not node.status()["passthrough"]:
        assert reader.read(10) == b"c" * 10
    reader.close()
    assert not (shared.mountpoint / "run" / "checkpoint-1").exists()
    wait_until(lambda: broken(shared) == {"optimizer.bin", "part.bin"}, "it to be said broken")
    with pytest.raises(OSError, match="Input/output"):
        (mount / "run" / "closed").read_bytes()
    write_through(node, shared)


def write_through(node: Node, shared: LoopDevice) -> None:
    """Each file is on the shared tier when its close returns."""
    run, there = node.mount / "run", shared.mountpoint / "run"
    for index in range(5):
        (run / f"new{index}").write_bytes(b"%d" % index * 300_000)
        assert (there / f"new{index}").read_bytes() == b"%d" % index * 300_000
    (run / "committed").write_bytes(b"again")
    assert (there / "committed").read_bytes() == b"again"
    with (run / "committed").open("r+b", buffering=0) as file:
        file.seek(5)
        file.write(b" and")
        os.fsync(file.fileno())
        assert (there / "committed").read_bytes() == b"again and"
        file.write(b" again")
        assert (there / "committed").read_bytes() == b"again and"
    assert (there / "committed").read_bytes() == b"again and again"
    (run / "closed").unlink()
    (run / "closed").write_bytes(b"written anew")
    assert (there / "closed").read_bytes() == b"written anew"
    (run / "written.tmp").write_bytes(b"written anew")
    os.replace(run / "written.tmp", run / "written")
    (run / "d").mkdir()
    os.chmod(run / "d", 0o700)
    (run / "d" / "f").write_bytes(b"f")
    assert (there / "d" / "f").read_bytes() == b"f"
    (run / "d" / "g").write_bytes(b"g")
    os.rename(run / "d" / "f", run / "d" / "renamed")
    (run / "d" / "g").unlink()
    wait_until(lambda: os.listdir(there / "d") == ["renamed"], "the rename and the removal")
    assert (there / "d").stat().st_mode & 0o777 == 0o700


def test_removals_go_on_while_the_drive_fails(
    node: Node, local: LoopDevice, shared: LoopDevice
) -> None:
    """Some were answered and not written yet when it failed."""
    directory, there = node.mount / "run", shared.mountpoint / "run"
    directory.mkdir()
    names = [f"f{number:02}" for number in range(60)]
    for name in names:
        (directory / name).write_bytes(b"x")
    node.settle()
    os.listdir(directory)
    for number, name in enumerate(names):
        if number == 30:
            shut_down(local)
        (directory / name).unlink()
    assert os.listdir(directory) == []
    wait_until(lambda: dead(node), "the drive's failure to be noticed")
    assert os.listdir(directory) == []
    (directory / names[0]).write_bytes(b"anew")
    wait_until(lambda: os.listdir(there) == [names[0]], "the removals")
    assert os.listdir(directory) == [names[0]]
    assert not list(session_directory(str(node.mount)).glob("ahead-*"))


def dead(node: Node) -> bool:
    return "failed" in str(node.status()["local"]["state"])


def test_a_drive_that_comes_back(node: Node, local: LoopDevice, shared: LoopDevice) -> None:
    """What was pending on it is suspect: newer versions may have been committed meanwhile."""
    node.expected += [r"worker \d+ ended", "suspect", "drive is there again"]
    mount, there = node.mount, shared.mountpoint
    with frozen(shared):
        (mount / "pending").write_bytes(b"old")
        with (mount / "kept").open("wb", buffering=0) as file:
            file.write(b"kept")
            os.fsync(file.fileno())
        shut_down(local)
        wait_until(lambda: dead(node), "the drive's failure to be noticed")
    (mount / "pending").unlink()
    (mount / "pending").write_bytes(b"new")
    assert (there / "pending").read_bytes() == b"new"
    local.unmount()
    local.mount()
    if node.status()["supervisor_pid"]:
        wait_until(lambda: not dead(node), "the next daemon, which takes the drive", timeout=60)
    else:
        node.kill()
        node.start()
    assert node.status()["local"]["state"] == "ok"
    assert (mount / "kept").read_bytes() == b"kept"
    suspect = {os.path.basename(each["path"]) for each in node.status()["stuck"]}
    assert suspect == {"pending", "kept"}
    assert (there / "pending").read_bytes() == b"new"
    (mount / "pending").stat()  # the kernel believes for a while what it is told here
    assert node.cli("discard", mount / "pending").code == 0
    assert (mount / "pending").read_bytes() == b"new"
    assert node.cli("accept", mount / "kept").code == 0
    (mount / "after").write_bytes(b"after")
    node.settle()
    assert (mount / "pending").read_bytes() == b"new"
    assert (there / "kept").read_bytes() == b"kept"
