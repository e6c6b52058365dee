"""Held removals of checkpoints (G4): out of the order as one."""

from __future__ import annotations

from collections.abc import Iterator

from tierfs.model import STAGED, Op, OpKind
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item
from tierfs.order.retract import removal_of

_NEED_NO_NAME = frozenset({OpKind.SEAL, OpKind.REOPEN, OpKind.SETATTR})


class HeldRemovals:
    """The TRASHes that are held; iterated in the order in which they came to be."""

    def __init__(self, indexes: Indexes) -> None:
        self._in = indexes
        self._parts: dict[Item, list[Item]] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._parts)

    def hold(self, trash: Item, reason: str) -> list[Item]:
        """All parts of the removal, now held; none when a directory above it goes too."""
        above = (self._in.removers.first(directory) for directory in trash.facts.directories)
        if any(above):
            return []
        parts = removal_of(self._in, trash)
        for item in parts:
            item.held = reason
        self._parts[trash] = parts
        return parts

    def ended(self, trash: Item) -> list[Item]:
        """The parts of the removal, which is not held from now on; none when it was not."""
        return [item for item in self._parts.pop(trash, []) if item.held is not None]

    def ended_by(self, op: Op) -> list[Item]:
        """The same of all removals that `op`, which is being issued, needs done.

        It needs the name, or takes away a directory above it. A SEAL does not, and an unsealed
        checkpoint has another name.
        """
        staged = STAGED in op.fields and op.kind in (OpKind.MKDIR, OpKind.RMDIR)
        if staged or op.kind in _NEED_NO_NAME:
            return []
        found = [*self._in.held.items((op.parent, op.name))]
        return [item for trash in found for item in self.ended(trash)]
