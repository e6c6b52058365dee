"""Room on the local tier for a copy that somebody wants (`tierfs warm`, policy `cache`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.behaviour.direct import Direct
from tests.harness import wait_until
from tierfs.namespace.overlay.nodes import Node

BLOCK = 1 << 20
SIZE = 20 * BLOCK
HIGH, LOW = 0.8, 0.7
FILES = 6
FILE = 2 * BLOCK


class Tier:
    """A local tier of SIZE; all but the last of FILES files have a copy there.

    Attributes:
        others: bytes that are taken besides.
        wanted: the last one.
    """

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        self._objects = direct.rooms.settings.local / "objects"
        self.others = 0
        for number in range(FILES):
            direct.write_file(f"f{number}", b"x" * FILE)
        direct.settle()
        self.wanted: Node = direct.run(self._drop_last)
        direct.rooms.store.usage = self._usage  # type: ignore[method-assign]

    async def _drop_last(self) -> Node:
        fs = self._direct.fs
        node, _ = await self._direct._walk(f"f{FILES - 1}", follow=True)
        assert node.shared is not None
        copy = await fs.core.journal.clean_copy(node.shared.inode)
        assert copy is not None
        assert not await fs.eviction.drop_idle([copy])
        return node

    def _usage(self) -> tuple[int, int]:
        taken = sum(path.stat().st_size for path in self._objects.glob("*/*"))
        return SIZE, SIZE - taken - self.others

    def bring(self) -> bool:
        """Makes a copy of the last one; whether the tier is below its mark then."""
        assert self._direct.run(self._direct.fs.warming.bring, self.wanted)
        total, free = self._usage()
        return total - free <= HIGH * total


@pytest.fixture
def tier(make_direct: Callable[..., Direct]) -> Tier:
    return Tier(make_direct(watermark=HIGH, watermark_low=LOW))


def test_more_copies_go_when_a_writer_took_the_room(tier: Tier) -> None:
    tier.others = 5 * BLOCK
    eviction = tier._direct.fs.eviction
    make = eviction.make

    async def make_and_lose(wanted: int) -> int:
        eviction.make = make  # type: ignore[method-assign]
        made = await make(wanted)
        tier.others += FILE
        return made

    eviction.make = make_and_lose  # type: ignore[method-assign]
    assert tier.bring()


def test_what_is_promised_to_others_is_free_besides(tier: Tier) -> None:
    tier.others = 4 * BLOCK
    promises = tier._direct.fs.core.promises
    tier._direct.run_sync(lambda: promises.take(99, 4 * BLOCK, 0))
    assert tier.bring()
    assert tier._usage()[1] >= 8 * BLOCK


def test_there_is_no_room_beside_what_cannot_go(tier: Tier) -> None:
    tier.others = 5 * BLOCK
    opened = [tier._direct.open(f"f{number}") for number in range(FILES - 1)]
    with pytest.raises(OSError, match="no room for it beside what is pending"):
        tier.bring()
    for fd in opened:
        tier._direct.close(fd)
    wait_until(lambda: not tier._direct.fs.tree.objects, "the descriptors to be closed")
    assert tier.bring()
