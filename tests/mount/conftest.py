"""Fixtures of the mount tests: the same case on a plain directory and on the mount."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node
from tests.harness.parity import Pair, Tree, check_shared


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder goes through a real mount."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.mount)


@pytest.fixture(scope="session")
def pair(tiers: tuple[LoopDevice, LoopDevice]) -> Iterator[Pair]:
    """One pair of mounts for all the parity cases."""
    local, shared = (tier.mountpoint for tier in tiers)
    plain = local / "plain"
    plain.mkdir()
    root = shared / "parity"
    root.mkdir()
    writer = Node(local / "parity", root, "writer")
    reader = Node(local / "parity", root, "reader")
    try:
        yield Pair(plain, root, writer, reader)
    finally:
        writer.close()
        reader.close()
    unexpected = writer.unexpected() + reader.unexpected()
    assert not unexpected, "unexpected log lines:\n" + "\n".join(unexpected)


@pytest.fixture(params=["plain", "pending", "committed"])
def tree(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Tree]:
    """The case's directory; on the mount, what is shared afterwards must be equal to it."""
    case = request.node.name.replace(request.param, "")
    name = request.node.name.replace("[", "-").replace("]", "").replace("/", "_")[:80]
    path = pair.base(request.param) / name
    path.mkdir(mode=0o755)
    old_umask = os.umask(0o022)
    yield Tree(path, request.param, case, pair)
    os.umask(old_umask)
    check_shared(pair, name, request.param, case)
    shutil.rmtree(path)
