"""Files that the local tier has no room for go on on the shared tier (G9)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.harness import LoopDevice, Node, compare

MIB = 1 << 20

FULL = r"the local tier is full"


@pytest.fixture
def small(make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]) -> Node:
    """A mount without passthrough whose local tier is smaller than its shared one."""
    local = make_device("local", 320 * MIB)
    shared = make_device("shared", 1536 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.expected = [FULL]
    return node.start("--no-passthrough")


def block(index: int) -> bytes:
    return random.Random(index).randbytes(MIB)


def test_a_file_larger_than_the_whole_local_tier(small: Node) -> None:
    large = small.mount / "large"
    with large.open("wb") as file:
        for index in range(400):
            file.write(block(index))
    with large.open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(400))
    small.settle()
    assert (small.shared / "large").stat().st_nlink == 1
    compare(small.mount, small.shared)
    with (small.shared / "large").open("rb") as file:
        assert all(file.read(MIB) == block(index) for index in range(400))
    assert not [path for path in staged(small) if path.is_file()]


def staged(node: Node) -> list:
    return list((node.shared / ".tierfs" / "staging").rglob("*"))
