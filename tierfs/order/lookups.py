"""Questions about what is pending where; they ask the indexes and change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierfs.model import REMOVALS, ROOT, Name, ObjectId, Op, OpKind, Phase
from tierfs.order.classify import Placement
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item

_TAKES_OVER = frozenset({OpKind.PUT, OpKind.SYMLINK, OpKind.LINK, OpKind.RENAME, OpKind.UNLINK})
_TAKES = REMOVALS | {OpKind.TRASH}


class Lookups:
    """The part of the backlog that says which ops are pending at a name, object or directory."""

    _indexes: Indexes
    _items: dict[int, Item]

    def under(self, directory: ObjectId) -> Iterator[Op]:
        """The ops pending in the subtree of `directory`, oldest first.

        The backlog must not be changed meanwhile: make a list of it where that can happen.
        """
        return (item.op for item in self._indexes.everything.items(directory))

    def marked(self, directory: ObjectId = ROOT) -> list[Op]:
        """The ops in the subtree of `directory` that nothing sends before somebody decides."""
        return [item.op for item in self._indexes.marked.items(directory)]

    def open_files(self, directory: ObjectId = ROOT) -> list[Op]:
        """The files but logs open for writing in the subtree of `directory`, oldest first."""
        found = [op for op in self.under(directory) if self._items[op.row].facts.is_open]
        return [op for op in found if not op.log]

    def nothing_but(self, op: Op | None, directory: ObjectId) -> bool:
        """Whether no op other than `op` is pending in the subtree of `directory`."""
        item = None if op is None else self._items.get(op.row)
        return self._indexes.everything.first(directory, but=item) is None

    def behind(self, op: Op) -> list[Op]:
        """The ops issued after `op` that concern the same object, oldest first."""
        position = self._items[op.row].facts.position
        return [item.op for item in self._indexes.same.after((op.object, b""), position)]

    def behind_at(self, op: Op) -> list[Op]:
        """The ops issued after `op` that concern the name it makes, oldest first."""
        position = self._items[op.row].facts.position
        return [item.op for item in self._indexes.same.after((op.parent, op.name), position)]

    def behind_at_source(self, op: Op) -> list[Op]:
        """The ops issued after `op` that concern the name it comes from, oldest first."""
        if op.parent2 is None or op.name2 is None:
            return []
        position = self._items[op.row].facts.position
        return [item.op for item in self._indexes.same.after((op.parent2, op.name2), position)]

    def before_at(self, op: Op) -> Op | None:
        """The last op issued before `op` that concerns the name it makes."""
        item = self._items[op.row]
        key = (op.parent, op.name)
        found = self._indexes.same.before(key, item.facts.position, but=item)
        return None if found is None else found.op

    def of_object(self, object_id: ObjectId) -> Op | None:
        """The last op issued that concerns the object."""
        items = self._indexes.same.items((object_id, b""))
        return items[-1].op if items else None

    def ops_of_object(self, object_id: ObjectId) -> list[Op]:
        """All pending ops that concern the object, oldest first."""
        return [item.op for item in self._indexes.same.items((object_id, b""))]

    def of_name(self, parent: ObjectId, name: Name) -> Op | None:
        """The last op issued that makes or takes the name (a link's source is neither)."""
        for item in reversed(self._indexes.same.items((parent, name))):
            op = item.op
            if op.kind is not OpKind.LINK or (op.parent, op.name) == (parent, name):
                return op
        return None

    def going(self, parent: ObjectId, name: Name) -> Op | None:
        """The removal, held or not, that what is pending under the name ends with.

        It needs no other: a second one would not wait for one that is held, and find what that is
        to remove. What is published or begun anew stands beside until then.
        """
        for item in reversed(self._indexes.same.items((parent, name))):
            if item.op.kind not in (OpKind.SEAL, OpKind.REOPEN):
                return item.op if item.op.kind in _TAKES else None
        return None

    def is_only_of(self, object_id: ObjectId, parent: ObjectId, name: Name) -> bool:
        """Whether all that is pending and makes, takes or moves the name is of that object."""
        return all(item.op.object == object_id for item in self._indexes.same.items((parent, name)))

    def alone(self, op: Op) -> bool:
        """Whether no other op concerns a name or the object of `op`."""
        item = self._items[op.row]
        return all(len(self._indexes.same.items(key)) == 1 for key in item.facts.keys)

    def placement(self, op: Op) -> Placement:
        """How `op` is ordered."""
        return self._items[op.row].facts.placement

    def trashes_in(self, parent: ObjectId) -> list[Op]:
        """The pending removals of sealed checkpoints in `parent`, held or not, oldest first."""
        return [item.op for item in self._indexes.trashes.items(parent)]

    def waiting_removals(self) -> list[Op]:
        """The removals that have their place behind the saves issued before them, oldest first."""
        return [item.op for item in self._indexes.removals.items(ROOT) if not item.makes_room]

    def seals_in(self, parent: ObjectId) -> list[Op]:
        """The pending SEALs of checkpoints in `parent`, oldest first."""
        return [item.op for item in self._indexes.seals.items((parent, b""))]

    def seals(self) -> list[Op]:
        """All pending SEALs, oldest first."""
        return [item.op for item in self._indexes.sealing.items(ROOT)]

    def removals_in(self, parent: ObjectId) -> frozenset[Name]:
        """The names in `parent` of the checkpoints whose removal is pending, held or not."""
        return frozenset(op.name for op in self.trashes_in(parent))

    def unlinked_next(self, since: Op, directory: ObjectId) -> list[Op]:
        """The UNLINKs below `directory` that are the next after `since` to concern their name."""
        position = self._items[since.row].facts.position
        found = []
        for item in self._indexes.everything.after(directory, position):
            op = item.op
            if op.kind is OpKind.UNLINK:
                earlier = self._indexes.same.before((op.parent, op.name), item.facts.position)
                if earlier is None or earlier.facts.position < position:
                    found.append(op)
        return found

    def last_published_in(self, directory: ObjectId) -> int:
        """The first number behind all that is being published below `directory`; 0: nothing is."""
        positions = (
            item.facts.position for item in self._indexes.everything.items(directory)
            if item.op.phase is Phase.PUBLISHING
        )  # fmt: skip
        return max((number + (place > 0) for number, place, _ in positions), default=0)

    def obsolete_pointers(self) -> list[Op]:
        """The held pointers whose name something issued later takes or replaces.

        What comes later waits for them, and they for a seal: they must be dropped, which is an
        older state skipped. Pointers come to be held by :meth:`group_unsealed`, when a SEAL is
        dropped and when a mark in what they lead to is gone: ask after these, and now and then.
        """
        held = self._indexes.held_pointers.items(ROOT)
        return [i.op for i in held if i.facts.targets and self._is_obsolete(i)]

    def held_pointers(self) -> list[Op]:
        """The pointers that are held because what they lead to is not sealed, oldest first."""
        return [i.op for i in self._indexes.held_pointers.items(ROOT) if i.facts.targets]

    def _is_obsolete(self, pointer: Item) -> bool:
        facts, op = pointer.facts, pointer.op
        if op.other is not None:
            return False
        later = [self._indexes.same.next_after(key, facts.position) for key in facts.keys]
        bound = [item.op for item in later if item is not None]
        # What comes to be where it was moved or linked from does without it as well.
        names = {(op.parent, op.name), (op.parent2, op.name2)}
        over = all(by.kind in _TAKES_OVER and (by.parent, by.name) in names for by in bound)
        return over and any((by.parent, by.name) == (op.parent, op.name) for by in bound)

    def held_pointer_before(self, op: Op) -> Op | None:
        """A held pointer issued before `op` in its cover: what it replaces may still be needed."""
        facts = self._items[op.row].facts
        for directory in facts.placement.cover:
            found = self._indexes.held_pointers.before(directory, facts.position)
            if found is not None:
                return found.op
        return None

    def removal_of(self, parent: ObjectId, name: Name) -> Op | None:
        """The last pending removal of a checkpoint that is published under `name` in `parent`.

        One whose own SEAL is pending is not there yet.
        """
        coming = {seal.object for seal in self.seals_in(parent)}
        found = [op for op in self.trashes_in(parent) if op.name == name]
        return next((op for op in reversed(found) if op.object not in coming), None)

    def is_going(self, directories: Iterable[ObjectId]) -> bool:
        """Whether the RMDIR of one of `directories` is pending."""
        return any(self._indexes.removers.first(each) is not None for each in directories)

    def pointers_to(self, directory: ObjectId) -> list[Op]:
        """The pointers that lead to `directory`, those that are still open left out."""
        items = self._indexes.pointers.items(directory)
        return [item.op for item in items if not item.facts.is_open]
