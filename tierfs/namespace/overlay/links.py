"""How many names a file has, and how many directories one has, while ops on them are pending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from tierfs.model import OLDER, REMOVALS, ObjectId, Op, OpKind
from tierfs.namespace.overlay.nodes import LocalObject

LINKS = {OpKind.LINK: 1, OpKind.UNLINK: -1}
"""What the end of an op adds to the names of its own object."""

COUNTED = frozenset({OpKind.MKDIR, OpKind.RMDIR, OpKind.RENAME, OpKind.TRASH})
"""Ops that make, move or take directories."""


class Links:
    """The files that lose a name because a pending op puts something else under it."""

    def __init__(self) -> None:
        self._replaced: dict[int, LocalObject] = {}

    def replaces(self, op: Op, obj: LocalObject | None) -> None:
        """`op` will take a name from `obj`, which is needed until then."""
        if obj is not None:
            obj.pending += 1
            obj.links -= 1
            obj.losing.add(op)
            self._replaced[op.row] = obj

    def replaced_by(self, op: Op) -> LocalObject | None:
        """What loses a name by `op`."""
        return self._replaced.get(op.row)

    def committed(self, op: Op) -> None:
        """`op` has happened on the shared tier; to be called before `over`."""
        obj = self._replaced.get(op.row)
        if obj is not None:
            obj.version += 1  # who is asking the shared tier may have got an old answer
            if obj.committed_links is not None:
                obj.committed_links -= 1

    def over(self, op: Op) -> LocalObject | None:
        """`op` is over or taken back; returns what was to lose a name by it."""
        obj = self._replaced.pop(op.row, None)
        if obj is not None:
            obj.pending -= 1
            obj.links += 1
            obj.losing.discard(op)
        return obj


def changing(obj: LocalObject, ops: list[Op]) -> Iterator[Op]:
    """Those of its own `ops`, and of others, whose end changes how many names `obj` has."""
    yield from (op for op in ops if op.kind in LINKS)
    yield from obj.losing


def subdirectories(
    op: Op, directories: Container[ObjectId], of_name: Op | None, of_object: Op | None
) -> tuple[tuple[ObjectId, int], ...]:
    """What the end of `op` adds to the directories in a directory of the shared tier.

    `of_name`, `of_object`: the last ops that concern its name and its object, before itself. A
    checkpoint that is removed goes with its TRASH; the RMDIR behind that finds nothing.
    """
    match op.kind:
        case OpKind.MKDIR:
            return ((op.parent, 1),)
        case OpKind.TRASH if OLDER not in op.fields:
            return ((op.parent, -1),)
        case OpKind.RMDIR if of_object is None or of_object.kind is not OpKind.TRASH:
            return ((op.parent, -1),)
        case OpKind.RENAME if op.parent2 is not None:
            return _moved(op, op.parent2, directories, of_name)
    return ()


def _moved(
    op: Op, source: ObjectId, directories: Container[ObjectId], of_name: Op | None
) -> tuple[tuple[ObjectId, int], ...]:
    count: Counter[ObjectId] = Counter()
    there, back = op.object in directories, op.other in directories
    if there:
        count[op.parent] += 1
        count[source] -= 1
    if back:
        count[source] += 1
        count[op.parent] -= 1
    if there and op.other is None and op.overwrites and not _takes(of_name, op):
        count[op.parent] -= 1  # it replaces an empty one
    return tuple((directory, change) for directory, change in count.items() if change)


def _takes(before: Op | None, op: Op) -> bool:
    """Whether `before` leaves nothing under the name of `op`."""
    if before is None:
        return False
    if before.kind is OpKind.RENAME:
        return before.other is None and (before.parent2, before.name2) == (op.parent, op.name)
    return before.kind in REMOVALS
