"""Items sorted per key: the one kind of index that the backlog is made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

from tierfs.order.item import Item, Position

K = TypeVar("K", bound=Hashable)


class Ranked(Generic[K]):
    """For each key the items under it, sorted by `order`; every call is O(log n).

    An item's order must not change while it is in here. Empty keys take no memory, and a key with
    one item (nearly every name and object has one) no more than an entry of a dict. What is added
    is sorted in when its key is next asked about: a hundred thousand, at a mount, in one go.
    """

    def __init__(self, order: Callable[[Item], Position]) -> None:
        self._order = order
        self._one: dict[K, Item] = {}
        self._many: dict[K, SortedKeyList] = {}
        self._late: dict[K, list[Item]] = {}

    def __bool__(self) -> bool:
        return bool(self._one or self._many)

    def add(self, key: K, item: Item) -> None:
        """Put `item` under `key`."""
        if key in self._late:
            self._late[key].append(item)
        elif key in self._many:
            self._late[key] = [item]
        elif key in self._one:
            self._many[key] = SortedKeyList((self._one.pop(key), item), key=self._order)
        else:
            self._one[key] = item

    def remove(self, key: K, item: Item) -> None:
        """Take `item` from under `key`, where it must be."""
        found = self._sorted(key)
        if found is None:
            del self._one[key]
            return
        found.remove(item)
        if not found:
            del self._many[key]

    def _sorted(self, key: K) -> SortedKeyList | None:
        """The items under a key that has several, or had."""
        late = self._late.pop(key, None)
        if late is not None:
            self._many[key].update(late)
        return self._many.get(key)

    def items(self, key: K) -> Sequence[Item]:
        """The items under `key`, lowest first; not to be kept over a change."""
        one = self._one.get(key)
        if one is not None:
            return (one,)
        many: Sequence[Item] | None = self._sorted(key)
        return () if many is None else many

    def first(self, key: K, *, but: Item | None = None) -> Item | None:
        """The lowest item under `key`, `but` not counted."""
        return next((item for item in self.items(key) if item is not but), None)

    def before(
        self, key: K, position: Position, *, latest: bool = True, but: Item | None = None
    ) -> Item | None:
        """The highest (or lowest) item under `key` below `position`, `but` not counted."""
        one = self._one.get(key)
        if one is not None:
            return one if one is not but and self._order(one) < position else None
        found = self._sorted(key)
        if found is None:
            return None
        end = found.bisect_key_left(position)
        for index in range(end - 1, -1, -1) if latest else range(end):
            item: Item = found[index]
            if item is not but:
                return item
        return None

    def below(self, key: K, position: Position, *, latest: bool = True) -> Iterator[Item]:
        """The items under `key` below `position`, the highest (or lowest) first."""
        one = self._one.get(key)
        if one is not None:
            return iter((one,) if self._order(one) < position else ())
        found = self._sorted(key)
        if found is None:
            return iter(())
        items: Iterator[Item] = found.irange_key(
            None, position, inclusive=(True, False), reverse=latest
        )
        return items

    def after(self, key: K, low: Position, high: Position | None = None) -> Iterator[Item]:
        """The items under `key` above `low` and up to `high`; not to be changed meanwhile."""
        one = self._one.get(key)
        if one is not None:
            inside = low < self._order(one) and (high is None or self._order(one) <= high)
            return iter((one,) if inside else ())
        found = self._sorted(key)
        if found is None:
            return iter(())
        items: Iterator[Item] = found.irange_key(low, high, inclusive=(False, True))
        return items

    def next_after(self, key: K, position: Position) -> Item | None:
        """The lowest item under `key` above `position`."""
        return next(self.after(key, position), None)
