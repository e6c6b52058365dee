"""A shared tier that answers questions and takes no content, or takes it slowly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import FaultyTier, LoopDevice, Node, compare, wait_until
from tests.harness.devices import frozen

MIB = 1 << 20


def health(node: Node) -> tuple[str, str]:
    shared = node.status()["shared"]
    return str(shared["state"]), str(shared["reason"])


@pytest.mark.parametrize("size", [5, 5 * MIB, 70 * MIB])
def test_content_that_hangs_is_seen(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node], size: int
) -> None:
    """Nothing but new files is pending, so no change of a name tells of it."""
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    (node.mount / "run").mkdir()
    (node.mount / "run" / "before").write_bytes(b"1")
    node.settle()
    with frozen(device):
        (node.mount / "run" / "new").write_bytes(bytes(range(256)) * (size // 256) + b"end")
        wait_until(lambda: health(node)[0] == "failing", "the hang to be seen", timeout=30)
        assert health(node)[1].startswith("content: nothing was taken for ")
        assert (node.mount / "run" / "before").read_bytes() == b"1"
    node.settle()
    wait_until(lambda: health(node) == ("healthy", ""), "it to be believed again", timeout=30)
    compare(node.mount, device.mountpoint)
    staged = (device.mountpoint / ".tierfs" / "staging").rglob("*")
    wait_until(lambda: not [path for path in staged if path.is_file()], "the questions to go")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_tier_that_crawls_is_slow_and_no_more(
    shared_dir: Path, make_node: Callable[..., Node]
) -> None:
    """1 MB/s, shared by reads and writes: a piece of a large file takes half a minute."""
    with FaultyTier(shared_dir / "real", shared_dir / "seen") as tier:
        node = make_node(shared=tier.mountpoint)
        node.expected = [r"the shared tier is slow"]
        node.start()
        seen = set()
        with tier.crawl(1e6):
            for number in range(6):
                (node.mount / f"large{number}").write_bytes(os.urandom(10 * MIB))
            until = time.monotonic() + 150
            while time.monotonic() < until:
                seen.add(health(node))
                time.sleep(0.5)
        assert {state for state, _ in seen} <= {"healthy", "slow"}, seen
        node.settle(timeout=120)
        compare(node.mount, tier.directory)
        node.close()
