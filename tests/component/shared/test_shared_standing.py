"""A shared tier that is not under its path, or not yet, and is found there again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.component.shared.support import TOP, attributes, make_tier, staging_names
from tests.faults import FaultyOS, Stall, at
from tierfs.model import Kind
from tierfs.shared import SharedTier

OpenTier = Callable[..., SharedTier]


@pytest.fixture
def join_later(root: Path, open_tier: OpenTier) -> Iterator[Callable[[FaultyOS], SharedTier]]:
    """A member of a tier that did not answer when its daemon started."""
    known = open_tier(root)
    tiers: list[SharedTier] = []

    def absent(system: FaultyOS) -> SharedTier:
        tier = make_tier(root, system, expected_id=known.shared_id, absent=known.inode)
        tiers.append(tier)

        def join() -> None:
            tier.probe()
            tier.register("node-a")

        tier.join = join
        return tier

    yield absent
    for tier in tiers:
        tier.close()


def make_link(tier: SharedTier, row: int) -> None:
    """What any worker thread may do at any time."""
    tier.stage_symlink(row, b"link", b"target", attributes(Kind.SYMLINK), place=TOP)


def refuses(tier: SharedTier, number: int = errno.ENODEV) -> None:
    """Everything that is asked of `tier` gets `number`."""
    for call in (
        lambda: make_link(tier, 1),
        lambda: tier.lookup(TOP, b"f"),
        tier.statvfs,
        tier.retire_old_generations,
    ):
        with pytest.raises(OSError, match=r".") as caught:
            call()
        assert caught.value.errno == number


@pytest.mark.parametrize("step", ["probe.mkdir", "staging.list", "register.member"])
def test_nobody_uses_a_tier_that_is_only_being_joined(
    join_later: Callable[[FaultyOS], SharedTier], step: str
) -> None:
    stall = Stall(step)
    tier = join_later(FaultyOS(stall))
    refuses(tier)
    with ThreadPoolExecutor(1) as pool:
        beat = pool.submit(tier.beat)
        assert stall.reached.wait(20)
        refuses(tier)
        stall.release()
        beat.result(20)
    make_link(tier, 1)
    assert tier.lookup(TOP, b"f") is None


def test_a_join_that_fails_again_and_again_keeps_nothing_open(
    join_later: Callable[[FaultyOS], SharedTier],
) -> None:
    system = FaultyOS(lambda step, _: full(step))

    def full(step: str) -> None:
        if step == "register.member" and system.seen.count(step) <= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tier = join_later(system)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            tier.beat()
        assert len(os.listdir("/proc/self/fd")) == before
    tier.beat()
    make_link(tier, 1)


def test_nobody_uses_a_tier_that_is_only_being_found_again(root: Path, open_tier: OpenTier) -> None:
    inside = root / "tier"
    inside.mkdir()
    stall = Stall("beat.staging")
    tier = open_tier(inside, FaultyOS(stall))
    inside.rename(root / "away")
    with pytest.raises(OSError, match="is gone"):
        tier.beat()
    refuses(tier)
    (root / "away").rename(inside)
    with ThreadPoolExecutor(1) as pool:
        beat = pool.submit(tier.beat)
        assert stall.reached.wait(20)
        refuses(tier)
        stall.release()
        beat.result(20)
    make_link(tier, 1)
    assert len(staging_names(tier)) == 1


def test_a_root_that_is_let_go_of_says_nothing_of_its_names(
    root: Path, open_tier: OpenTier
) -> None:
    """A call that had passed the guard before finds a descriptor that leads nowhere."""
    inside = root / "tier"
    (inside / "d").mkdir(parents=True)
    system = FaultyOS()
    tier = open_tier(inside, system)

    def lose(*_: object) -> None:
        inside.rename(root / "away")
        with pytest.raises(OSError, match="is gone"):
            tier.beat()

    system.hook = at("place.open", 1, lose)
    with pytest.raises(OSError, match="is gone") as caught:
        tier.lookup(TOP, b"d")
    assert caught.value.errno == errno.ENODEV


def test_another_tier_under_the_path_is_not_taken(root: Path, open_tier: OpenTier) -> None:
    inside = root / "tier"
    inside.mkdir()
    tier = open_tier(inside)
    inside.rename(root / "away")
    inside.mkdir()
    open_tier(inside, member="b" * 32)
    with pytest.raises(OSError, match="not the shared tier any more"):
        tier.beat()
    refuses(tier)
