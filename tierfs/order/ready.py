"""The items that can be worked on, oldest first."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from sortedcontainers import SortedKeyList

from tierfs.order.item import Item

_position = attrgetter("facts.position")


class Work(enum.Enum):
    """What is to be done with an op that `take` returned."""

    STAGE = "stage"
    PUBLISH = "publish"  # everything but the staging of a PUT


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

    def oldest_first(self, work: Work | None) -> Iterator[Item]:
        """The items that need `work` (None: any); not to be changed meanwhile."""
        if work is not None:
            return iter(self._lists[work])
        return merge(*self._lists.values(), key=_position)
