"""The rules read the other way round: who waits for an item."""

from __future__ import annotations

from collections.abc import Iterator

from tierfs.model import Mark, Op, OpKind
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item, rebuilds
from tierfs.order.passing import inside_replaced, moved_by, moves_out, passes
from tierfs.order.rules import negative_keys


class Dependents:
    """Who waits for whom, backwards; the counterpart of `Rules.wait`."""

    def __init__(self, indexes: Indexes) -> None:
        self._in = indexes

    def of(self, item: Item) -> Iterator[Item]:
        """All that wait for `item`, some more than once, those held open or marked not included.

        Of those that share a name only the next: the others wait for that one.
        """
        yield from self.bound_to(item)
        yield from self._covering(item)
        yield from self._others(item)

    def bound_to(self, item: Item) -> Iterator[Item]:
        """Those that cannot be applied without `item`: of its keys, or in its directory."""
        yield from self._same_key(item)
        yield from self._children(item)

    def held_by(self, item: Item) -> Iterator[Item]:
        """All that wait until `item` is closed, accepted, rewritten or discarded."""
        facts = item.facts
        if facts.placement.is_log:
            return
        for directory in facts.directories:
            for found in self._in.watchers.items(directory):
                commit = found.facts.placement.is_commit_name and found.facts.parent == directory
                if (found.op.parent, found.op.name) == (item.op.parent, item.op.name):
                    commit = False  # a snapshot of the file that is open
                if found is not item and (facts.mark is not None or (facts.is_open and commit)):
                    yield found

    def _same_key(self, item: Item) -> Iterator[Item]:
        for key in item.facts.keys:
            later = self._in.same.after(key, item.facts.position)
            found = next((one for one in later if not passes(one, item)), None)
            if found is not None:
                yield found

    def _children(self, item: Item) -> Iterator[Item]:
        made = item.facts.object
        if rebuilds(item.op) and not item.facts.aside:
            yield from self._in.everything.after(made, item.facts.position)
        if item.op.kind is OpKind.RENAME:
            yield from self._moved_below(item)
        if item.op.kind is not OpKind.MKDIR:
            return
        for found in self._in.everything.items(made):
            if made in (found.op.parent, found.op.parent2):
                yield found

    def _moved_below(self, item: Item) -> Iterator[Item]:
        for moved in moved_by(item.op):
            for found in self._in.everything.after(moved, item.facts.position):
                if found.op.kind is OpKind.RENAME and moves_out(item, found):
                    yield found

    def _covering(self, item: Item) -> Iterator[Item]:
        facts = item.facts
        if not facts.counted or facts.aside or facts.mark is Mark.TORN:
            return
        if item.is_removal and facts.out:
            return
        index = self._in.guarded if facts.out else self._in.covering
        for directory in facts.directories:
            for found in index.after(directory, facts.rank):
                if item.is_removal and (found.is_removal or inside_replaced(found, item)):
                    continue
                yield found

    def _others(self, item: Item) -> Iterator[Item]:
        facts = item.facts
        for directory in facts.directories:
            for found in self._in.removers.after(directory, facts.rank):
                if facts.counted and facts.mark is not Mark.TORN and not facts.aside:
                    yield found
        if item.is_commit_unlink:
            yield from self._after_commit_unlink(item)
        if facts.out or not facts.counted:
            return
        yield from self._made_anew(item)
        if facts.is_large:
            yield from self._in.small.after(facts.parent, facts.rank)
        if facts.placement.negative is not None:
            yield from self._after_negative(item)

    def _made_anew(self, item: Item) -> Iterator[Item]:
        """The REOPENs after it of a checkpoint around it."""
        for directory in item.facts.directories:
            for found in self._in.rebuilders.after(directory, item.facts.rank):
                if found is not item and found.op.kind is OpKind.REOPEN:
                    yield found

    def _after_negative(self, item: Item) -> Iterator[Item]:
        for found in self._in.everything.items(item.facts.parent):
            if found.facts.rank > item.facts.rank and _is_behind(item, found.op):
                yield found

    def _after_commit_unlink(self, item: Item) -> Iterator[Item]:
        for index in (self._in.removals, self._in.dead_removals):
            for found in index.after(item.facts.parent, item.facts.position):
                if not found.is_commit_unlink:
                    yield found


def _is_behind(negative: Item, op: Op) -> bool:
    key = negative.facts.placement.negative
    return any(found == key for found in negative_keys(op))
