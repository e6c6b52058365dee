from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.devices import LoopDevice
from tierfs.local import ObjectStore
from tierfs.osio import OS


@pytest.fixture(scope="session", params=["xfs", "ext4"])
def file_system(device_root: Path, request: pytest.FixtureRequest) -> Iterator[LoopDevice]:
    """Both file systems that a local tier is meant to be on."""
    with LoopDevice(device_root, f"objects-{request.param}", 512 << 20, request.param) as device:
        yield device


@pytest.fixture
def directory(file_system: LoopDevice) -> Iterator[Path]:
    """An empty directory to be a local tier."""
    path = file_system.mountpoint / "tier"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_store() -> Iterator[Callable[..., ObjectStore]]:
    """Open stores that are closed at the end."""
    stores: list[ObjectStore] = []

    def open_one(path: Path, system: OS | None = None) -> ObjectStore:
        stores.append(ObjectStore.open(path, system or OS()))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(directory: Path, open_store: Callable[..., ObjectStore]) -> ObjectStore:
    return open_store(directory)
