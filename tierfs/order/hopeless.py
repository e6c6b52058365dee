"""What cannot go on by itself: everything behind a marked, an open or a held op."""

from __future__ import annotations

from tierfs.order.dependents import Dependents
from tierfs.order.item import Item


class Hopeless:
    """For each item that waits, however indirectly, for a marked, open or held op: one such op.

    Found forwards from those roots, so that it costs what is blocked and not what is pending, and
    kept until something changes that can matter: commits of what is not blocked do not.
    """

    def __init__(self, dependents: Dependents) -> None:
        self._dependents = dependents
        self._roots: dict[Item, None] = {}
        self._found: dict[Item, Item] | None = None

    def changed(self, item: Item) -> None:
        """`item` came or its facts changed."""
        if item.facts.mark is not None or item.facts.is_open or item.facts.aside:
            self._roots[item] = None
            self._found = None
        elif self._roots:
            self._roots.pop(item, None)
            self._found = None

    def gone(self, item: Item) -> None:
        """`item` is committed or dropped."""
        if item in self._roots or (self._found and item in self._found):
            self._found = None
        self._roots.pop(item, None)

    def root(self, item: Item) -> Item | None:
        """A marked, open or held item that `item` is, or waits for."""
        if self._found is None:
            self._found = self._search()
        return self._found.get(item)

    def _search(self) -> dict[Item, Item]:
        found = {root: root for root in self._roots}
        todo = list(found)
        while todo:
            item = todo.pop()
            behind = [*self._dependents.of(item)]
            if item in self._roots:
                behind += self._dependents.held_by(item)
            for one in behind:
                if one not in found:
                    found[one] = found[item]
                    todo.append(one)
        return found
