"""The indexes of the backlog: each answers one question of the rules in O(log n)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from tierfs.model import ROOT, Mark, Name, ObjectId, OpKind
from tierfs.order.classify import Klass
from tierfs.order.item import Facts, Item, Key, rebuilds, takes_content
from tierfs.order.ranked import Ranked

_position = attrgetter("facts.position")
_rank = attrgetter("facts.rank")

_OF_CHECKPOINTS = frozenset({OpKind.SEAL, OpKind.REOPEN, OpKind.TRASH})

Place = tuple[Ranked[Any], Any]
"""An index, and a key under which an item stands there."""


@functools.lru_cache(maxsize=1024)
def _of_each(index: Ranked[Any], keys: tuple[Any, ...]) -> tuple[Place, ...]:
    """The places in `index` under each of `keys`: the same for all that one directory holds."""
    return tuple((index, key) for key in keys)


class Indexes:
    """All pending items, indexed. An item is placed under its facts and unplaced by them.

    Attributes:
        same: per key, what must be applied in number order.
        everything: per directory, all items in its subtree.
        saves, removals: per directory, those in its subtree that are in the order.
        dead_saves, dead_removals: per directory, those that are out of it.
        covering: per directory, the ordered items that cover it; `guarded`: of those, the removals
            and the renames that replace something.
        large, small: per parent, the files of that size.
        makers, removers: per directory, the MKDIR or RMDIR of itself; `replacers`: the renames
            that put something in the place of something in it.
        marked, opened: per directory, the marked and the open items in its subtree.
        watchers: per directory, the items that a mark in its subtree takes out of the order.
        commit_unlinks, stuck_unlinks: per directory, the UNLINKs of its commit names.
        rebuilders: per directory, the REOPEN or TRASH of itself.
        seals: per key, the SEALs that concern it; the object of their directory counts as one.
            `sealing`: all of them, under the root.
        trashes: per directory, the TRASHes of what it holds; `trashes_below`: those in its subtree
            now; `held`: per name and object that leads to them now, those that are held.
        pointers: per directory, the pointers that lead to it; `held_pointers`: per directory, the
            held ones in its subtree.
        negatives: per (directory, sibling or b""), the negative files to come before it.
    """

    def __init__(self) -> None:
        self.same: Ranked[Key] = Ranked(_position)
        self.everything: Ranked[ObjectId] = Ranked(_position)
        self.saves: Ranked[ObjectId] = Ranked(_rank)
        self.removals: Ranked[ObjectId] = Ranked(_rank)
        self.dead_saves: Ranked[ObjectId] = Ranked(_rank)
        self.dead_removals: Ranked[ObjectId] = Ranked(_rank)
        self.covering: Ranked[ObjectId] = Ranked(_position)
        self.guarded: Ranked[ObjectId] = Ranked(_position)
        self.large: Ranked[ObjectId] = Ranked(_rank)
        self.small: Ranked[ObjectId] = Ranked(_rank)
        self.makers: Ranked[ObjectId] = Ranked(_position)
        self.removers: Ranked[ObjectId] = Ranked(_position)
        self.replacers: Ranked[ObjectId] = Ranked(_position)
        self.marked: Ranked[ObjectId] = Ranked(_position)
        self.opened: Ranked[ObjectId] = Ranked(_position)
        self.watchers: Ranked[ObjectId] = Ranked(_position)
        self.commit_unlinks: Ranked[ObjectId] = Ranked(_position)
        self.stuck_unlinks: Ranked[ObjectId] = Ranked(_position)
        self.rebuilders: Ranked[ObjectId] = Ranked(_position)
        self.seals: Ranked[Key] = Ranked(_position)
        self.sealing: Ranked[ObjectId] = Ranked(_position)
        self.trashes: Ranked[ObjectId] = Ranked(_position)
        self.trashes_below: Ranked[ObjectId] = Ranked(_position)
        self.held: Ranked[Key] = Ranked(_position)
        self.pointers: Ranked[ObjectId] = Ranked(_position)
        self.held_pointers: Ranked[ObjectId] = Ranked(_position)
        self.negatives: Ranked[tuple[ObjectId, Name]] = Ranked(_rank)

    def place(self, item: Item) -> None:
        """Put `item` everywhere where its facts say that it belongs."""
        item.places = self._places(item)
        for index, key in item.places:
            index.add(key, item)

    def unplace(self, item: Item) -> None:
        """Take `item` out again; its facts must be those that it was placed by."""
        for index, key in item.places:
            index.remove(key, item)

    def move(self, item: Item, facts: Facts) -> None:
        """`item` has other facts from now on."""
        known = item.facts
        if (facts.position, facts.rank) != (known.position, known.rank):
            self.unplace(item)
            item.facts = facts
            self.place(item)
            return
        item.facts = facts
        before, item.places = set(item.places), self._places(item)
        after = set(item.places)
        for index, key in before - after:
            index.remove(key, item)
        for index, key in after - before:
            index.add(key, item)

    def _places(self, item: Item) -> list[Place]:
        """Of nearly all a few, so what only some have is asked for first."""
        facts, kind = item.facts, item.op.kind
        places: list[Place] = [(self.same, key) for key in facts.keys]
        places += _of_each(self.everything, facts.directories)
        index = self._order_index(item)
        if index is not None:
            places += _of_each(index, facts.directories)
        if not facts.placement.is_log:
            if facts.mark is not None:
                places += _of_each(self.marked, facts.directories)
            if facts.is_open:
                places += _of_each(self.opened, facts.directories)
        if facts.placement.cover or facts.watched:
            places += self._waiting(facts)
        if facts.placement.klass is Klass.SMALL:
            places.append((self.small, facts.parent))
        places += self._special(item)
        if facts.targets or facts.aside or kind in _OF_CHECKPOINTS:
            places += self._of_checkpoints(item)
        return places

    def _order_index(self, item: Item) -> Ranked[ObjectId] | None:
        facts = item.facts
        if not facts.counted or facts.aside:
            return None
        if item.is_removal:
            return self.dead_removals if facts.out else self.removals
        if not facts.out:
            return self.saves
        # what is torn was never whole: no removal waits
        return None if facts.mark is Mark.TORN else self.dead_saves

    def _waiting(self, facts: Facts) -> Iterator[Place]:
        for directory in facts.placement.cover:
            yield self.covering, directory
            if facts.guarded:
                yield self.guarded, directory
        for directory in facts.watched:
            yield self.watchers, directory

    def _special(self, item: Item) -> Iterator[Place]:
        facts, kind = item.facts, item.op.kind
        if kind is OpKind.MKDIR:
            yield self.makers, facts.object
        elif kind is OpKind.RMDIR:
            yield self.removers, facts.object
        elif kind is OpKind.RENAME and takes_content(item.op, facts.placement):
            yield self.replacers, facts.parent
        elif item.is_commit_unlink:
            yield self.commit_unlinks, facts.parent
            if facts.mark is not None:
                yield self.stuck_unlinks, facts.parent
        elif kind is OpKind.PUT and facts.counted and not facts.out:
            if facts.placement.negative is not None:
                yield self.negatives, facts.placement.negative
            if facts.is_large:
                yield self.large, facts.parent

    def _of_checkpoints(self, item: Item) -> Iterator[Place]:
        facts, op = item.facts, item.op
        for target in facts.targets:
            yield self.pointers, target
        if rebuilds(op):
            yield self.rebuilders, facts.object
        if op.kind is OpKind.SEAL:
            yield self.sealing, ROOT
            for key in (*facts.keys, (facts.parent, b"")):
                yield self.seals, key
        elif op.kind is OpKind.TRASH:
            yield self.trashes, facts.parent
            for lead in item.leads:
                yield self.trashes_below, lead.directory
                if facts.aside:
                    yield self.held, (lead.directory, lead.name)
                    yield self.held, (lead.directory, b"")
        elif facts.aside and not item.is_removal:
            for directory in facts.directories:
                yield self.held_pointers, directory
