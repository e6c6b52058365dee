"""XFS projects: a directory that takes no renames from staging, and a tier with a quota."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, wait_until
from tests.harness.devices import run

MIB = 1 << 20


def make_project(path: Path) -> None:
    """Renames into `path` from outside its project fail with EXDEV; what is made in it inherits."""
    path.mkdir()
    run("xfs_io", "-c", "chproj 42", "-c", "chattr +P", path)


def test_everything_arrives_in_a_directory_of_another_project(node: Node) -> None:
    make_project(node.shared / "p")
    folder = node.mount / "p"
    (folder / "sub").mkdir()
    (folder / "sub" / "f").write_bytes(b"f" * 100_000)
    (folder / "latest").symlink_to("sub")
    (folder / "f").write_bytes(b"one")
    os.link(folder / "f", folder / "g")
    node.settle()
    (folder / "f").write_bytes(b"two")
    with (folder / "g").open("ab") as file:
        file.write(b"three")
    node.settle()
    assert (folder / "f").read_bytes() == (folder / "g").read_bytes() == b"twothree"
    compare(folder, node.shared / "p")
    assert node.status()["stuck"] == []
    assert [n for n in os.listdir(node.shared / "p") if n.startswith(".staging")] == []


def test_a_committed_file_is_not_renamed_into_another_project(node: Node) -> None:
    """As on XFS: EXDEV at once, and mv(1) copies; what is pending can be renamed."""
    make_project(node.shared / "p")
    folder, outside = node.mount / "p", node.mount / "outside"
    outside.mkdir()
    for name in ("moved", "linked"):
        (outside / name).write_bytes(b"content")
    (outside / "sub").mkdir()
    (folder / "inside").write_bytes(b"of the project")
    (folder / "into").mkdir()
    node.settle()
    for call, name in ((os.rename, "moved"), (os.link, "linked"), (os.rename, "sub")):
        with pytest.raises(OSError, match="cross-device") as refused:
            call(outside / name, folder / name)
        assert refused.value.errno == errno.EXDEV
    (outside / "fresh").write_bytes(b"pending")
    (outside / "fresh").rename(folder / "fresh")
    (folder / "inside").rename(folder / "into" / "inside")
    run("mv", outside / "moved", folder / "moved")
    (folder / "into" / "inside").rename(outside / "inside")
    node.settle()
    compare(node.mount, node.shared, ignore=["nlink"])
    assert sorted(os.listdir(folder)) == ["fresh", "into", "moved"]
    assert sorted(os.listdir(outside)) == ["inside", "linked", "sub"]


class Limited:
    """The directory `path` of an XFS of its own, with a quota on all that is in it."""

    def __init__(self, device: LoopDevice) -> None:
        self._device = device
        self.path = device.mountpoint / "tier"
        self.path.mkdir()
        run("xfs_io", "-c", "chproj 42", "-c", "chattr +P", self.path)

    def limit(self, mebibytes: int) -> None:
        """So much may be in it."""
        command = f"limit -p bhard={mebibytes}m 42"
        run("xfs_quota", "-x", "-c", command, self._device.mountpoint)


@pytest.fixture
def limited(device_root: Path) -> Iterator[Limited]:
    """See there. Many kernels are built without quotas of XFS."""
    device = LoopDevice(device_root, "limited", 512 * MIB, options="loop,prjquota")
    try:
        try:
            device.__enter__()
        except RuntimeError as error:
            pytest.skip(f"no quotas of XFS in this kernel: {error}")
        yield Limited(device)
    finally:
        device.__exit__(None, None, None)


def test_a_quota_on_the_shared_tier_runs_out(
    limited: Limited, make_node: Callable[..., Node]
) -> None:
    """XFS says ENOSPC. What was closed is kept, shown, and arrives when the limit is raised."""
    limited.limit(16)
    node = make_node(shared=limited.path)
    node.expected = [r"\b(ENOSPC|EDQUOT)\b"]
    node.start()
    contents = {f"f{index}": os.urandom(6 * MIB) for index in range(5)}
    for name, content in contents.items():
        (node.mount / name).write_bytes(content)
    wait_until(lambda: len(node.status()["retrying"]) >= 3, "the rest to be tried", timeout=120)
    assert all("is full" in each["error"] for each in node.status()["retrying"])
    assert node.flush(timeout=1).code == 2
    assert "retrying: " in node.cli("status", node.mount).out
    assert "tried again and again" in node.cli("doctor", "--tiers", node.mount).out
    node.cli("evict", node.mount)
    for name, content in contents.items():
        assert (node.mount / name).read_bytes() == content
    limited.limit(256)
    node.settle(timeout=300)
    assert node.status()["retrying"] == []
    compare(node.mount, limited.path)


def test_a_quota_on_the_local_tier_runs_out(
    limited: Limited, make_node: Callable[..., Node]
) -> None:
    """Nobody gets an error while the shared tier has room."""
    limited.limit(32)
    node = make_node(local=limited.path)
    node.settings = {"full_wait": "0.2s"}
    node.expected = ["the local tier is full"]
    node.start("--no-passthrough")
    contents = {f"f{index}": os.urandom(size * MIB) for index, size in enumerate((12, 12, 48))}
    for name, content in contents.items():
        with (node.mount / name).open("wb", buffering=0) as file:
            for start in range(0, len(content), MIB):
                file.write(content[start : start + MIB])
    for name, content in contents.items():
        assert (node.mount / name).read_bytes() == content
    node.settle(timeout=300)
    compare(node.mount, node.shared)
