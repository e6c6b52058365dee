"""A save burst while write-back sends an earlier one, against one with nothing to send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import measures
from tests.harness import Node, wait_until

LIMITS = ("off", "64M")
"""Of write-back (`bwlimit`) while the burst is measured."""


def bursts(
    node: Node, burst: Callable[[Path], float], rounds: int, limit: str
) -> tuple[float, float]:
    """The best seconds of a burst with nothing to send, and of one beside write-back at `limit`."""
    quiet, busy = [], []
    for _ in range(rounds):
        node.settle(timeout=600)
        quiet.append(burst(node.mount / "quiet"))
        measures.remove(node.mount / "quiet")
        burst(node.mount / "backlog")
        _set(node, limit)
        wait_until(lambda: node.status()["write_rate_bytes"] > 0, "write-back to begin", timeout=60)
        busy.append(burst(node.mount / "busy"))
        _set(node, "off")
        node.settle(timeout=600)
        for name in ("backlog", "busy"):
            measures.remove(node.mount / name)
    return min(quiet), min(busy)


def _set(node: Node, limit: str) -> None:
    done = node.cli("set", node.mount, f"bwlimit={limit}")
    if done.code != 0:
        raise RuntimeError(done.err)
