"""Items sorted per key: the one kind of index that the backlog is made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

from tierfs.order.item import Item, Position

K = TypeVar("K", bound=Hashable)


class Ranked(Generic[K]):
    """For each key the items under it, sorted by `order`; every call is O(log n).

    An item's order must not change while it is in here. Empty keys take no memory.
    """

    def __init__(self, order: Callable[[Item], Position]) -> None:
        self._order = order
        self._lists: dict[K, SortedKeyList] = {}

    def add(self, key: K, item: Item) -> None:
        """Put `item` under `key`."""
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = SortedKeyList(key=self._order)
        found.add(item)

    def remove(self, key: K, item: Item) -> None:
        """Take `item` from under `key`; ValueError when it is not there."""
        found = self._lists[key]
        found.remove(item)
        if not found:
            del self._lists[key]

    def first(self, key: K, *, but: Item | None = None) -> Item | None:
        """The lowest item under `key`, `but` not counted."""
        return next((item for item in self._lists.get(key, ()) if item is not but), None)

    def last(self, key: K) -> Item | None:
        """The highest item under `key`."""
        found = self._lists.get(key)
        return found[-1] if found else None

    def before(
        self, key: K, position: Position, *, latest: bool = True, but: Item | None = None
    ) -> Item | None:
        """The highest (or lowest) item under `key` below `position`, `but` not counted."""
        found = self._lists.get(key)
        if found is None:
            return None
        end = found.bisect_key_left(position)
        for index in range(end - 1, -1, -1) if latest else range(end):
            item: Item = found[index]
            if item is not but:
                return item
        return None

    def after(self, key: K, position: Position) -> Iterator[Item]:
        """The items under `key` above `position`, lowest first; not to be changed meanwhile."""
        found = self._lists.get(key)
        if found is None:
            return iter(())
        items: Iterator[Item] = found.irange_key(position, inclusive=(False, False))
        return items

    def next_after(self, key: K, position: Position) -> Item | None:
        """The lowest item under `key` above `position`."""
        return next(self.after(key, position), None)

    def between(self, key: K, low: Position, high: Position | None) -> list[Item]:
        """The items under `key` above `low` and up to `high` (None: no upper end)."""
        found = self._lists.get(key)
        if found is None:
            return []
        return list(found.irange_key(low, high, inclusive=(False, True)))

    def items(self, key: K) -> list[Item]:
        """All items under `key`, lowest first."""
        return list(self._lists.get(key, ()))

    def ascending(self, key: K) -> Iterator[Item]:
        """The items under `key`, lowest first; not to be changed meanwhile."""
        items: Iterator[Item] = iter(self._lists.get(key, ()))
        return items

    def descending(self, key: K) -> Iterator[Item]:
        """The items under `key`, highest first; not to be changed meanwhile."""
        items: Iterator[Item] = reversed(self._lists.get(key, ()))
        return items
