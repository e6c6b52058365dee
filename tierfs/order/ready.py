"""The items that can be worked on, oldest first."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from heapq import merge
from operator import attrgetter

from sortedcontainers import SortedKeyList

from tierfs.order.item import Item

_position = attrgetter("facts.position")


class Work(enum.Enum):
    """What is to be done with an op that `take` returned."""

    __hash__ = object.__hash__  # that of Enum is a function of Python

    STAGE_LARGE = "stage a large file"
    STAGE_SMALL = "stage a small file"
    PUBLISH = "publish"  # a staged file, or apply any other op


def work_of(item: Item) -> Work:
    """What is to be done with `item` next."""
    if not item.to_stage:
        return Work.PUBLISH
    return Work.STAGE_LARGE if item.facts.is_large else Work.STAGE_SMALL


class Ready:
    """Ready items by the work that they need."""

    def __init__(self) -> None:
        self._lists = {work: SortedKeyList(key=_position) for work in Work}
        self._work_of: dict[Item, Work] = {}

    def add(self, item: Item, work: Work) -> None:
        """`item` can be worked on."""
        self._work_of[item] = work
        self._lists[work].add(item)

    def discard(self, item: Item) -> None:
        """`item` cannot, or is about to change its position."""
        work = self._work_of.pop(item, None)
        if work is not None:
            self._lists[work].remove(item)

    def oldest_first(self, work: Collection[Work]) -> Iterator[Item]:
        """The items that need one of `work`; not to be changed meanwhile."""
        return merge(*(self._lists[one] for one in work), key=_position)
