"""Shared tiers on real file systems."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.shared.support import MEMBER, Settings, make_tier
from tests.harness import LoopDevice
from tierfs.osio import OS
from tierfs.shared import SharedTier

MIB = 1 << 20


@pytest.fixture(scope="session")
def xfs(device_root: Path) -> Iterator[Path]:
    with LoopDevice(device_root, "shared-xfs", 1024 * MIB) as device:
        yield device.mountpoint


@pytest.fixture(scope="session")
def ext4(device_root: Path) -> Iterator[Path]:
    with LoopDevice(device_root, "shared-ext4", 1024 * MIB, "ext4") as device:
        yield device.mountpoint


@pytest.fixture(scope="session")
def tmpfs(device_root: Path) -> Iterator[Path]:
    path = device_root / "shared-tmpfs"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "none", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def root(xfs: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on XFS."""
    yield from _fresh(xfs, request)


@pytest.fixture
def memory_root(tmpfs: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on tmpfs."""
    yield from _fresh(tmpfs, request)


@pytest.fixture(params=["xfs", "ext4", "tmpfs"])
def any_root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on each of several file systems."""
    yield from _fresh(request.getfixturevalue(request.param), request)


def _fresh(mountpoint: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = mountpoint / f"t{abs(hash(request.node.nodeid))}-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_tier() -> Iterator[Callable[..., SharedTier]]:
    """Make registered tiers; their descriptors are closed at the end of the test."""
    tiers: list[SharedTier] = []

    def opened(
        root: Path, system: OS | None = None, member: str = MEMBER, **settings: Any
    ) -> SharedTier:
        tier = make_tier(root, system, member=member, settings=Settings(**settings))
        tiers.append(tier)
        tier.register("node-a")
        return tier

    yield opened
    for tier in tiers:
        tier.close()


@pytest.fixture
def tier(root: Path, open_tier: Callable[..., SharedTier]) -> SharedTier:
    """A registered tier on XFS."""
    return open_tier(root)
