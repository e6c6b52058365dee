"""Fixtures of the behavioural cases: each runs on the file system object and through the kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.behaviour.calls import Calls, OsCalls
from tests.behaviour.direct import Direct
from tests.behaviour.workers import Workers
from tests.harness import LoopDevice, Node
from tierfs.control.client import FlushIncomplete, flush
from tierfs.namespace.overlay.tree import ROOT_INO

SIDES = ["direct-pending", "direct-committed", "kernel-pending", "kernel-committed"]


class Mounted(OsCalls):
    """The `os` module on a real mount; the case has a directory of its own in it."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(node.mount / name)
        self.shared = node.shared / name
        self.root.mkdir()

    def settle(self) -> None:
        try:
            flush(self.root, timeout=30)
        except FlushIncomplete as error:
            raise AssertionError(error.result) from error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes through the kernel is a mount test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "[kernel" in item.name:
            item.add_marker(pytest.mark.mount)


MOST_DESCRIPTORS = 50
"""That the cases of this folder together may leave to the process; each of them once left four."""


@pytest.fixture(scope="session", autouse=True)
def descriptors() -> Iterator[None]:
    """Whatever ends in the middle, what it had open is closed."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    left = len(os.listdir("/proc/self/fd")) - before
    assert left <= MOST_DESCRIPTORS, f"{left} descriptors are left"


@pytest.fixture(scope="session")
def mounted_node(tiers: tuple[LoopDevice, LoopDevice]) -> Iterator[Node]:
    """One mount for all cases."""
    shared = tiers[1].mountpoint / "behaviour"
    shared.mkdir()
    node = Node(tiers[0].mountpoint / "behaviour", shared, "behaviour")
    try:
        yield node
    finally:
        node.close()
    assert not node.unexpected(), "\n".join(node.unexpected())


@pytest.fixture
def make_direct(
    tiers: tuple[LoopDevice, LoopDevice], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Direct]]:
    """File system objects, each on tiers of its own; stopped and removed afterwards."""
    made: list[Direct] = []
    name = _folder(request)

    def make(*, held: bool = False, **settings: float) -> Direct:
        folder = f"{name}-{len(made)}"
        direct = Direct(tiers[0].mountpoint / folder, tiers[1].mountpoint / folder, **settings)
        direct.start(held=held)
        made.append(direct)
        return direct

    yield make
    for index, direct in enumerate(made):
        direct.system.hook = None
        direct.stop()
        for tier in tiers:
            shutil.rmtree(tier.mountpoint / f"{name}-{index}")


@pytest.fixture
def direct(make_direct: Callable[..., Direct]) -> Direct:
    """A file system object with its write-back at work."""
    return make_direct()


@pytest.fixture
def workers(
    tiers: tuple[LoopDevice, LoopDevice], request: pytest.FixtureRequest
) -> Iterator[Workers]:
    """One mount, of which one worker follows the other."""
    local, shared = (tier.mountpoint / _folder(request) for tier in tiers)
    made = Workers(local, shared)
    made.start()
    yield made
    made.system.hook = None
    made.stop()
    made.close_kept()
    for folder in (local, shared):
        shutil.rmtree(folder)


@pytest.fixture(params=SIDES)
def fs(request: pytest.FixtureRequest) -> Iterator[Calls]:
    """The case's file system; afterwards every view of it must be the same.

    `pause` settles on the sides that are called committed. On `direct-pending` nothing is sent
    before the end, on `kernel-pending` the write-back runs beside the case.
    """
    driver, _, state = request.param.partition("-")
    calls: Calls
    if driver == "direct":
        calls = request.getfixturevalue("make_direct")(held=state == "pending")
    else:
        node = request.getfixturevalue("mounted_node")
        if not node.is_mounted():
            node.start()
        calls = Mounted(node, _folder(request))
    calls.settles_here = state == "committed"
    yield calls
    if isinstance(calls, Direct):
        check_restarts(calls)
    else:
        check_shared(calls)


def check_shared(calls: Calls) -> None:
    """What is seen before and after the commit, and what is then on the shared tier, is one."""
    before = calls.tree()
    calls.settle()
    assert calls.tree() == before, "the commit changed what is seen"
    assert OsCalls(calls.shared).tree() == before, "the shared tier has something else"


def check_restarts(direct: Direct) -> None:
    """As `check_shared`, and over a restart before the commit and one after; nothing is left."""
    before = direct.tree()
    direct.restart(held=True)
    assert direct.tree() == before, "the restart changed what is seen"
    check_shared(direct)
    direct.drop_caches()
    check_nothing_left(direct)
    direct.restart()
    assert direct.tree() == before, "another start sees something else"


def check_nothing_left(direct: Direct) -> None:
    """Committed and forgotten: only the root is known.

    The directories in use are kept on purpose, once the keeper has looked at them, for an outage.
    """

    def left() -> tuple[object, ...]:
        tree, keeper = direct.fs.tree, direct.fs.keeper
        for directory in list(keeper._held):
            keeper._let_go(directory)
        nodes = {ino: node for ino, node in tree.nodes.items() if ino != ROOT_INO}
        return nodes, tree.objects, {k: v for k, v in tree.directories.items() if v.parent}

    assert direct.run_sync(left) == ({}, {}, {}), "something is kept that nobody needs"


def _folder(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "").replace("/", "_")[:100]
