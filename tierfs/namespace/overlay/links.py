"""How many names a file has while ops that give or take one are pending."""

from __future__ import annotations

from collections.abc import Iterator

from tierfs.model import Op, OpKind
from tierfs.namespace.overlay.nodes import LocalObject

LINKS = {OpKind.LINK: 1, OpKind.UNLINK: -1}
"""What the end of an op adds to the names of its own object."""


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
