"""A save burst while the shared tier answers nothing, against the same with a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import measures
from tests.harness import FaultyTier, LoopDevice, Node, wait_until

IN_EACH = 3
"""Bursts in each state and round: one in three finds pages that nobody used yet, natively as well,
and takes up to twenty times as long."""


def bursts(
    local: LoopDevice, shared: LoopDevice, words: list[str], burst: Callable[[Path], float],
    rounds: int,
) -> tuple[float, float]:  # fmt: skip
    """The best seconds of a burst into a directory in use: with the tier healthy, and hung.

    A burst makes its directory, its files and their content; nothing is pending when it begins.
    """
    healthy, hung = [], []
    kept, seen = shared.mountpoint / "outage", shared.mountpoint / "outage-seen"
    with FaultyTier(kept, seen) as tier:
        node = Node(local.mountpoint, tier.mountpoint, "outage").start(*words)
        try:
            run = node.mount / "run"
            run.mkdir()
            node.settle(timeout=600)
            wait_until(lambda: str(run) in node.status()["announced"], "a look", timeout=60)
            for number in range(rounds):
                for attempt in range(IN_EACH):
                    saved = run / f"healthy{number}-{attempt}"
                    _touch_memory(local.mountpoint / "touched", burst)
                    healthy.append(burst(saved))
                    measures.remove(saved)
                    node.settle(timeout=600)
                with tier.hang():
                    wait_until(lambda: not _is_healthy(node), "the outage", timeout=60)
                    for attempt in range(IN_EACH):
                        saved = run / f"hung{number}-{attempt}"
                        _touch_memory(local.mountpoint / "touched", burst)
                        hung.append(burst(saved))
                        measures.remove(saved)
                wait_until(lambda: _is_healthy(node), "the tier", timeout=120)
                node.settle(timeout=600)
        finally:
            tier.heal()
            node.close()
    for left in (node.root, kept, seen):  # the next mode begins with empty tiers
        measures.remove(left)
    return min(healthy), min(hung)


def _touch_memory(directory: Path, burst: Callable[[Path], float]) -> None:
    """Pages that were just freed are taken faster than others: each burst is to find as many."""
    burst(directory)
    measures.remove(directory)


def _is_healthy(node: Node) -> bool:
    return bool(node.status()["shared"]["state"] == "healthy")
