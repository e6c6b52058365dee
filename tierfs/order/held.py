"""Held removals of checkpoints (G4): out of the order as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierfs.model import OLDER, STAGED, ObjectId, Op, OpKind
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item, Key, Lead
from tierfs.order.retract import removal_of

_TAKERS = frozenset({OpKind.PUT, OpKind.SYMLINK, OpKind.LINK, OpKind.RENAME, OpKind.MKDIR})


class HeldRemovals:
    """The TRASHes that are held; iterated in the order in which they came to be."""

    def __init__(self, indexes: Indexes) -> None:
        self._in = indexes
        self._parts: dict[Item, list[Item]] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._parts)

    def issued(self, item: Item) -> None:
        """`item` is new: a TRASH is found by the names that lead to what it takes, and where a
        directory on that way is renamed, by those that lead there then.
        """
        op = item.op
        if op.kind is OpKind.TRASH:
            item.leads = tuple(Lead(*key, None) for key in zip(op.scope, op.path, strict=True))
        elif op.kind is OpKind.RENAME:
            self._moved(op.object, zip(op.scope, op.path, strict=True), item)
            if op.other is not None:  # an exchange
                self._moved(op.other, zip(op.scope2, op.path2, strict=True), item)

    def _moved(self, directory: ObjectId, to: Iterable[Key], rename: Item) -> None:
        way = tuple(Lead(*key, rename.facts.position) for key in to)
        for trash in list(self._in.trashes_below.items(directory)):
            inside = [lead.directory for lead in trash.leads].index(directory)
            trash.leads = way + trash.leads[inside:]
            self._in.move(trash, trash.facts)

    def hold(self, trash: Item, reason: str) -> list[Item]:
        """All parts of the removal, now held; none when something issued since needs it done."""
        if self.is_needed(trash):
            return []
        parts = removal_of(self._in, trash)
        for item in parts:
            item.held = reason
        self._parts[trash] = parts
        return parts

    def is_needed(self, trash: Item) -> bool:
        """Whether something issued since needs the removal done; then it cannot be held."""
        return any(self._needing(trash))

    def ended(self, trash: Item) -> list[Item]:
        """The parts of the removal, which is not held from now on; none when it was not."""
        return [item for item in self._parts.pop(trash, []) if item.held is not None]

    def ended_by(self, op: Op) -> list[Item]:
        """The same of all removals that `op`, which is being issued, needs done."""
        if not self._parts:
            return []
        found: list[Item] = []
        if _takes_name(op):
            found += [
                trash for trash in self._in.held.items((op.parent, op.name))
                if op.other not in {lead.directory for lead in trash.leads}  # an exchange moves it
            ]  # fmt: skip
        if op.kind is OpKind.RMDIR and STAGED not in op.fields:
            found += self._in.held.items((op.object, b""))
        return [item for trash in dict.fromkeys(found) for item in self.ended(trash)]

    def _needing(self, trash: Item) -> Iterator[Item]:
        """What was issued after `trash` and needs its name, or takes a directory above it."""
        op, position = trash.op, trash.facts.position
        for lead in trash.leads:
            yield from self._in.removers.after(lead.directory, position)
        for directory, name, since in trash.leads:
            key = (directory, name)
            for later in self._in.same.after(key, max(position, since or position)):
                here = (later.op.parent, later.op.name) == key
                if not here or (later.op.object == op.object and OLDER not in op.fields):
                    continue
                if later.op.kind is OpKind.SEAL and key == (op.parent, op.name):
                    break  # it takes the name from `trash`, and what follows needs that instead
                if _takes_name(later.op):
                    yield later


def _takes_name(op: Op) -> bool:
    """Whether nothing else may stand where `op` makes a name.

    A SEAL exchanges the two, and an unsealed checkpoint has another name on the shared tier. A
    removal takes away what such an op made, or what is not there: it finds the name taken by
    another inode, and that is nothing to it.
    """
    return op.kind in _TAKERS and not (op.kind is OpKind.MKDIR and STAGED in op.fields)
