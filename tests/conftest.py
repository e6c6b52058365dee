"""Fixtures shared by the tests that mount: tiers on real file systems, nodes, leak checks."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node
from tests.harness.devices import mount_points

MIB = 1 << 20


def _can_mount() -> str | None:
    if os.geteuid() != 0:
        return "needs root: loop devices and a mount for other users"
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    missing = [tool for tool in ("mkfs.xfs", "fsfreeze", "xfs_io") if shutil.which(tool) is None]
    return f"missing tools: {', '.join(missing)}" if missing else None


@pytest.fixture(scope="session")
def device_root() -> Iterator[Path]:
    """Where images and mount points live; nothing may still be mounted there at the end."""
    reason = _can_mount()
    if reason is not None:
        pytest.skip(reason)
    # A run that is told to end (a time limit) takes its mounts and loop devices with it.
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end", 143))
    root = Path(tempfile.mkdtemp(prefix="tierfs-test-"))
    root.chmod(0o755)  # the folders of tmp_path are closed to other users
    yield root
    signal.signal(signal.SIGTERM, before)
    left = sorted(path for path in mount_points() if root in path.parents)
    assert not left, f"still mounted after the tests: {left}"
    shutil.rmtree(root)


@pytest.fixture
def make_device(device_root: Path) -> Iterator[Callable[..., LoopDevice]]:
    """Make file systems of a given size that are gone after the test."""
    made: list[LoopDevice] = []

    def make(name: str, size: int = 512 * MIB, fstype: str = "xfs") -> LoopDevice:
        root = Path(tempfile.mkdtemp(dir=device_root))
        root.chmod(0o755)
        device = LoopDevice(root, name, size, fstype)
        device.__enter__()
        made.append(device)
        return device

    yield make
    for device in reversed(made):
        device.__exit__(None, None, None)


@pytest.fixture(scope="session")
def tiers(device_root: Path) -> Iterator[tuple[LoopDevice, LoopDevice]]:
    """Two XFS file systems for the tests that need no failing device: (local, shared)."""
    with (
        LoopDevice(device_root, "tier-local", 4096 * MIB) as local,
        LoopDevice(device_root, "tier-shared", 4096 * MIB) as shared,
    ):
        yield local, shared


@pytest.fixture
def shared_dir(
    tiers: tuple[LoopDevice, LoopDevice], request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A fresh directory of the shared tier."""
    path = tiers[1].mountpoint / _folder(request)
    path.mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_node(
    tiers: tuple[LoopDevice, LoopDevice], shared_dir: Path, request: pytest.FixtureRequest,
    make_device: Callable[..., LoopDevice],
) -> Iterator[Callable[..., Node]]:  # fmt: skip
    """Nodes on the shared directory of this test; closed and their logs checked at its end.

    They end before the devices of `make_device`, whichever of the two a test names first.
    """
    root = tiers[0].mountpoint / _folder(request)
    nodes: list[Node] = []

    def make(name: str = "a", *, shared: Path | None = None, local: Path | None = None) -> Node:
        node = Node(root, shared or shared_dir, name, local)
        nodes.append(node)
        return node

    yield make
    with ExitStack() as stack:  # each of them, also when one does not end
        for node in nodes:
            stack.callback(node.close)
    unexpected = [f"{node.name}: {line}" for node in nodes for line in node.unexpected()]
    for node in nodes:
        _keep_log(node, request)
    shutil.rmtree(root, ignore_errors=True)
    assert not unexpected, "unexpected lines in the daemon's log:\n" + "\n".join(unexpected)


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """One mounted node."""
    return make_node().start()


@pytest.fixture
def replacement(make_node: Callable[..., Node]) -> Callable[[], Node]:
    """Start a second node with an empty local tier on the same shared tier."""
    return lambda: make_node("replacement").start()


def _folder(request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("/", "_").replace("[", "-").replace("]", "")
    return f"{name[:60]}-{os.getpid()}"


def _keep_log(node: Node, request: pytest.FixtureRequest) -> None:
    directory = os.environ.get("TIERFS_TEST_LOGS")
    if directory:
        path = Path(directory, f"{_folder(request)}-{node.name}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(node.log_text())
