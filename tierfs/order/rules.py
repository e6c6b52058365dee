"""Who waits for whom. The one place where the rules R1 and R2 of DESIGN 5 are written down.

The waiting relation has no cycle. Every item has a rank and a position, rank <= position; they
differ only for a PUT that is not ordered, whose rank is its first FLUSH. Each wait leads to a lower
rank:

* cover, larger file, negative name, content of a directory that is removed or reopened, commit
  name's unlink: the rule asks for a rank below the waiting item's rank;
* same name or object, MKDIR of the parent: the item waited for has a lower position, so a lower
  rank too; and a floating PUT that waits for something above its first FLUSH gives that place up
  (it is *lifted*: rank = position).

Two things change a place after the fact, and keep this true. Removals are moved behind the unlink
of a commit name only if nothing later shares a key with them; what waited for them by its cover
waits no longer (retract.py). A file that was open when a commit name was issued ranks before that
name once it is flushed, unless it waits for something above that place itself.

Checkpoints add three kinds of op and one kind of op that goes nowhere:

* REOPEN, TRASH (*rebuilders*): what lies inside their directory waits for those of a lower
  position, in the same way as for its MKDIR; a floating PUT is lifted above them. Removals issued
  before are moved behind them, on the same terms as behind a commit name.
* REOPEN waits for what was issued before in its checkpoint, by rank: what is in it then goes into
  the next generation, or, where dead writers left it, counts no more.
* SEAL is ordered, but stands just before the oldest pointer to its directory: that pointer waits
  for the SEAL, by its cover. It only stands there if everything that it waits for by name, object
  or parent stands before that pointer too. Else it keeps its number, and the pointers before it are
  held as if there were no SEAL; both are looked at again when what is in the way is gone.
* A pointer to an unsealed checkpoint with no SEAL before it is held: it waits for nobody in the
  order, and only what shares its name or object waits for it. So is a change of such a pointer by
  an op of its own (its rename). Both are reported as blocked. A held removal is waited for by
  nobody at all.
* A SEAL passes the removal of what it replaces (passing.py); that only takes waits away. So does
  a removal that makes room on a full shared tier: it does not wait for the saves in its cover.

While a SEAL is being published, the removal of the old checkpoint and ops inside the new one wait
for it whatever its rank, and so does a SEAL for such a removal. What is being published waits for
nobody, and ends or is given back.

That a held pointer ends with a seal is no wait of this relation, and could close a circle if the
checkpoint, to be whole, needed something that is behind the pointer. By cover nothing is. By name
it is what takes or replaces the pointer, and what waits for that by its cover: so such a pointer
must be dropped (`obsolete_pointers`). What is left is a pointer that is moved, by an op of its own,
into the checkpoint that it leads to: it stays held, and is reported.

An open file that holds a commit name is waited for whatever its rank, but it waits for nobody and
ends with its close; time holds end by themselves, or when something waits for what they hold; what
a mark holds is reported, not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tierfs.model import Mark, Name, ObjectId, Op, OpKind, Phase
from tierfs.order.blocked import Reason
from tierfs.order.classify import Klass, Placement
from tierfs.order.indexes import Indexes
from tierfs.order.item import (
    Facts,
    Item,
    Key,
    Position,
    directories_of,
    floats,
    is_guarded,
    is_marker,
    is_open,
    keys_of,
    watched_by,
)
from tierfs.order.passing import excludes, inside_replaced, moves_out, passes, ways_to


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason to wait, and the item waited for."""

    reason: Reason
    item: Item


_OF_OBJECT = frozenset({OpKind.RENAME, OpKind.LINK, OpKind.SETATTR})


class Unsealed(NamedTuple):
    """A checkpoint that is not sealed: its name, and the number of the op that began it."""

    name: Name
    since: int


class Rules:
    """The rules over the indexes. Changes nothing but `Item.lifted`.

    Attributes:
        unsealed: the checkpoints known to be unsealed.
    """

    def __init__(self, indexes: Indexes, small_bytes: int) -> None:
        self._in = indexes
        self._small_bytes = small_bytes
        self.unsealed: dict[ObjectId, Unsealed] = {}

    # What an item is

    def facts(self, item: Item, op: Op, placement: Placement) -> Facts:
        """What `item` is to be indexed by, from the op as it is now."""
        keys = keys_of(op)
        position = self._position(item, op, placement, keys)
        # by position: a keyword takes as long as many a field
        facts = Facts(
            placement,
            op.object,
            op.parent,
            keys,
            directories_of(op),
            position,
            self._rank(item, op, placement, position, keys),  # rank
            op.mark,
            _is_counted(item, op, placement),
            is_open(op),
            op.kind is OpKind.PUT and op.size > self._small_bytes,  # is_large
            is_guarded(op, placement),
            watched_by(op, placement),
            op.targets if placement.is_pointer else (),
        )
        if item.held is not None:
            return facts._replace(out=True, aside=True)
        if self._is_out(item, facts):
            return facts._replace(out=True)
        aside = self.unsealed_target(facts) is not None or self._follows_held(item, op, position)
        return facts._replace(out=True, aside=True) if aside else facts

    def unsealed_target(self, facts: Facts) -> ObjectId | None:
        """An unsealed checkpoint that a pointer leads to, and that no SEAL before it publishes.

        None if it lies in an unsealed one itself: that is not sealed before everything in it is
        committed.
        """
        if not facts.targets or any(d in self.unsealed for d in facts.directories):
            return None
        for target in facts.targets:
            unsealed = self.unsealed.get(target)
            if unsealed is None or facts.position[0] < unsealed.since:
                continue
            seals = self._in.seals.items((target, b""))
            if not any(s.facts.object == target and s.facts.rank < facts.rank for s in seals):
                return target
        return None

    def _follows_held(self, item: Item, op: Op, position: Position) -> bool:
        """Whether it gives a held pointer another name or other attributes."""
        if op.kind not in _OF_OBJECT:
            return False
        found = self._in.same.before((op.object, b""), position, but=item)
        return found is not None and found.facts.aside and not found.is_removal

    def _position(
        self, item: Item, op: Op, placement: Placement, keys: tuple[Key, ...]
    ) -> Position:
        number, place = item.moved or (op.number, 0)
        position = (number, place, op.row)
        if op.kind is OpKind.SEAL:
            return self._seal_position(item, op, position, keys)
        if item.floor is None or not op.first or floats(op, placement) or is_marker(op, placement):
            return position
        before = min((item.floor, 0, op.row), position)
        return position if self._waits_above(item, op, before, position, keys) else before

    def _seal_position(
        self, item: Item, op: Op, position: Position, keys: tuple[Key, ...]
    ) -> Position:
        """Just before the oldest pointer that stands behind all that the SEAL is bound to."""
        bound = (*(self._same_before(item, key, position) for key in keys),
                 self._in.makers.first(op.parent))  # fmt: skip
        above = max((found.facts.position for found in bound if found), default=(0, 0, 0))
        unsealed = self.unsealed.get(op.object)
        if unsealed is not None:
            above = max(above, (unsealed.since, 0, 0))
        pointer = self._in.pointers.next_after(op.object, above)
        if pointer is None or pointer.facts.position > position:
            return position
        return (pointer.facts.position[0], -1, op.row)

    def _waits_above(
        self, item: Item, op: Op, rank: Position, position: Position, keys: tuple[Key, ...]
    ) -> bool:
        """Whether at `position` it waits for something of its keys or parent above `rank`."""
        waits_for = [self._in.same.before(key, position, but=item) for key in keys]
        waits_for.append(self._in.makers.first(op.parent))
        waits_for += [self._in.rebuilders.before(d, position, but=item) for d in op.scope]
        return any(found is not None and found.facts.position > rank for found in waits_for)

    def _rank(
        self, item: Item, op: Op, placement: Placement, position: Position, keys: tuple[Key, ...]
    ) -> Position:
        if not floats(op, placement) or not op.first:
            return position
        first = op.first if item.floor is None else min(op.first, item.floor)
        rank = min((first, 0, op.row), position)
        if rank == position:
            return position  # flushed once, as nearly all are
        item.lifted = item.lifted or self._waits_above(item, op, rank, position, keys)
        return position if item.lifted else rank

    def _is_out(self, item: Item, facts: Facts) -> bool:
        """Marked, withdrawn or held: others go on without it."""
        if facts.mark is not None:
            return True
        if facts.watched and any(self._in.marked.first(d, but=item) for d in facts.watched):
            return True
        # A held rename stays in the order: it makes something too.
        if not (facts.guarded and item.is_removal):
            return False
        cover, position = facts.placement.cover, facts.position
        if self._in.dead_saves and any(self._in.dead_saves.before(d, position) for d in cover):
            return True
        return self._stuck_unlink(item, facts) is not None

    def _stuck_unlink(self, item: Item, facts: Facts) -> Item | None:
        if not self._in.stuck_unlinks:
            return None
        if item.op.kind is OpKind.UNLINK and facts.placement.is_commit_name:
            return None
        found = (self._in.stuck_unlinks.before(d, facts.position) for d in facts.directories)
        return next(filter(None, found), None)

    def affects_others(self, item: Item) -> bool:
        """Whether `affected` may name any; cheap."""
        facts = item.facts
        is_odd = facts.out or facts.mark is not None or item.op.kind is OpKind.SEAL
        return is_odd or bool(self._in.seals)

    def affected(self, item: Item) -> Iterator[Item]:
        """Those whose place depends on `item`, as it is placed now."""
        facts = item.facts
        if self._in.seals or facts.aside or item.op.kind is OpKind.SEAL:
            yield from self._affected_by_seals(item)
        if facts.mark is not None and not facts.placement.is_log:
            for directory in facts.directories:
                yield from self._in.watchers.items(directory)
        if item.is_commit_unlink and facts.mark is not None:
            yield from self._in.removals.items(facts.parent)
            yield from self._in.dead_removals.items(facts.parent)
        if not facts.out or item.is_removal or facts.mark is Mark.TORN:
            return
        for directory in facts.directories:
            if self._in.dead_saves.first(directory) is item:
                following = self._in.dead_saves.next_after(directory, facts.rank)
                end = None if following is None else following.facts.rank
                yield from self._in.guarded.after(directory, facts.rank, end)

    def _affected_by_seals(self, item: Item) -> Iterator[Item]:
        facts = item.facts
        if item.op.kind is OpKind.SEAL:
            yield from self._in.pointers.items(facts.object)
        if facts.aside and not item.is_removal:
            later = self._in.same.next_after((facts.object, b""), facts.position)
            yield from (later,) if later is not None else ()
        for key in (*facts.keys, *((target, b"") for target in facts.targets)):
            yield from (seal for seal in self._in.seals.items(key) if seal is not item)

    # What an item waits for

    def wait(self, item: Item, *, latest: bool) -> Wait | None:
        """Something that `item` waits for, or None: its turn has come.

        Of many, the latest (which will probably be the last to go) or the earliest.
        """
        return (
            self._watched(item)
            or self._same_key(item)
            or self._parent(item)
            or self._moved_out(item)
            or self._rebuilt(item)
            or self._negative(item)
            or self._by_class(item, latest)
        )

    def _same_key(self, item: Item) -> Wait | None:
        for key in item.facts.keys:
            found = self._same_before(item, key, item.facts.position)
            if found is not None:
                return Wait(Reason.SAME_NAME, found)
        if item.op.kind in (OpKind.TRASH, OpKind.RMDIR):
            for seal in self._in.seals.items((item.facts.parent, item.op.name)):
                if excludes(item, seal):
                    return Wait(Reason.SAME_NAME, seal)
        return None

    def _same_before(self, item: Item, key: Key, position: Position) -> Item | None:
        """The last op of `key` below `position` that `item` waits for."""
        earlier = self._in.same.below(key, position)
        return next((one for one in earlier if one is not item and not passes(item, one)), None)

    def _parent(self, item: Item) -> Wait | None:
        for directory in (item.op.parent, item.op.parent2):
            found = None if directory is None else self._in.makers.first(directory, but=item)
            if found is not None:
                return Wait(Reason.PARENT, found)
        return None

    def _moved_out(self, item: Item) -> Wait | None:
        """The rename by which a directory on the way to the new name left the one that moves.

        Until it is applied, that lies within what is to be moved below it.
        """
        if item.op.kind is not OpKind.RENAME:
            return None
        for directory in ways_to(item.op):
            for found in self._in.same.below((directory, b""), item.facts.position):
                if moves_out(found, item):
                    return Wait(Reason.PARENT, found)
        return None

    def _rebuilt(self, item: Item) -> Wait | None:
        """The REOPEN or TRASH before it, or the SEAL in the middle, of a checkpoint around it."""
        for directory in item.facts.directories:
            for found in self._in.rebuilders.below(directory, item.facts.position):
                if found is not item and not found.facts.aside:
                    return Wait(Reason.REBUILT, found)
            for seal in self._in.seals.items((directory, b"")):
                mine = seal is not item and seal.facts.object == directory
                if mine and seal.op.phase is Phase.PUBLISHING:
                    return Wait(Reason.REBUILT, seal)
        return None

    def _negative(self, item: Item) -> Wait | None:
        for key in negative_keys(item.op):
            found = self._in.negatives.before(key, item.facts.rank)
            if found is not None:
                return Wait(Reason.NEGATIVE, found)
        return None

    def _by_class(self, item: Item, latest: bool) -> Wait | None:
        if item.op.kind in (OpKind.RMDIR, OpKind.REOPEN):
            found = self._content(item, latest)
            if found is not None:
                return found
        klass = item.facts.placement.klass
        if klass is Klass.SMALL:
            large = self._in.large.before(item.facts.parent, item.facts.rank, latest=latest)
            return None if large is None else Wait(Reason.LARGER, large)
        if klass is Klass.ORDERED:
            return self._ordered(item, latest)
        return None

    def _content(self, item: Item, latest: bool) -> Wait | None:
        """What lies in the directory that `item` removes, or makes anew from what is in it.

        The new generation is written in spite of what is marked in the one before.
        """
        inside, position = item.facts.object, item.facts.position
        indexes = [self._in.removals, self._in.saves]
        if item.op.kind is OpKind.RMDIR:
            indexes += [self._in.dead_removals, self._in.dead_saves]
        for index in indexes:
            found = index.before(inside, position, latest=latest)
            if found is not None:
                return Wait(Reason.EARLIER, found)
        return None

    def _ordered(self, item: Item, latest: bool) -> Wait | None:
        if item.is_removal:
            return self._removal(item, latest)
        return self._open_files(item) or self._cover(item, latest)

    def _watched(self, item: Item) -> Wait | None:
        for directory in item.facts.watched:
            found = self._in.marked.first(directory, but=item)
            if found is not None:
                own = directory == item.facts.parent and item.facts.placement.is_commit_name
                return Wait(Reason.WITHDRAWN if own else Reason.HELD, found)
        return None

    def _open_files(self, item: Item) -> Wait | None:
        if not item.facts.placement.is_commit_name:
            return None
        name = (item.op.parent, item.op.name)
        others = self._in.opened.items(item.facts.parent)
        found = next((one for one in others if (one.op.parent, one.op.name) != name), None)
        return None if found is None else Wait(Reason.OPEN_FILE, found)

    def _cover(self, item: Item, latest: bool) -> Wait | None:
        position = item.facts.position
        for directory in item.facts.placement.cover:
            found = self._in.saves.before(directory, position, latest=latest)
            if found is None:
                earlier = self._in.removals.below(directory, position, latest=latest)
                found = next((one for one in earlier if not inside_replaced(item, one)), None)
            if found is not None:
                return Wait(Reason.EARLIER, found)
            dead = self._in.dead_saves.before(directory, position) if item.facts.guarded else None
            if dead is not None:
                return Wait(Reason.HELD, dead)
        return None

    def _removal(self, item: Item, latest: bool) -> Wait | None:
        facts = item.facts
        for directory in facts.placement.cover:
            found = None
            if not item.makes_room:
                found = self._in.saves.before(directory, facts.position, latest=latest)
            if found is not None:
                return Wait(Reason.EARLIER, found)
            if facts.guarded:
                found = self._in.dead_saves.before(directory, facts.position, latest=latest)
            if found is not None:
                return Wait(Reason.HELD, found)
        if item.is_commit_unlink:
            return None
        for directory in facts.directories:
            found = self._in.commit_unlinks.before(directory, facts.position)
            if found is not None:
                return Wait(Reason.COMMIT_NAME, found)
        return None


def negative_keys(op: Op) -> Iterator[tuple[ObjectId, Name]]:
    """The keys of the negative files that would cover `op`."""
    for directory, name in zip(op.scope, op.path, strict=True):
        yield directory, name
        if name.endswith(b".ckpt"):
            yield directory, name[: -len(b".ckpt")]
        yield directory, b""


def _is_counted(item: Item, op: Op, placement: Placement) -> bool:
    if placement.is_log:
        return False
    return not is_open(op) or (bool(op.first) and not item.lingering)
