"""Which time a directory of the shared tier must end with. Pure.

A commit gives its directory the time of the commit; applications (rotation by mtime) rely on the
order in which they made their changes. So when the last pending op below a directory is committed,
the directory gets the time of the latest change in it, unless somebody else has changed it since.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.model import ObjectId, Op, OpKind
from tierfs.order import Backlog


def changed_directories(op: Op) -> tuple[ObjectId, ...]:
    """The directories whose content `op` changes."""
    if op.kind is OpKind.SETATTR:
        return ()
    if op.kind is OpKind.RENAME and op.parent2 is not None and op.parent2 != op.parent:
        return op.parent, op.parent2
    return (op.parent,)


@dataclass(slots=True)
class _Touched:
    """A directory that commits have changed.

    Attributes:
        changed_ns: latest change by an application.
        seen_ns: mtime that the last of our commits left there.
        asked: (when it was asked for, mtime) of an explicit utimens.
    """

    changed_ns: int = 0
    seen_ns: int = 0
    asked: tuple[int, int] | None = None

    def wanted_ns(self) -> int:
        if self.asked is not None and self.asked[0] >= self.changed_ns:
            return self.asked[1]
        return self.changed_ns


@dataclass(frozen=True, slots=True)
class Due:
    """A directory that must get `mtime_ns` if its mtime still is `expected_ns`."""

    directory: ObjectId
    mtime_ns: int
    expected_ns: int


class DirectoryTimes:
    """The directories that commits have changed and whose time is still to be put right."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._touched: dict[ObjectId, _Touched] = {}

    def committed(self, op: Op, mtimes: dict[ObjectId, int]) -> None:
        """`op` was applied and left its directories with these mtimes."""
        for directory, mtime_ns in mtimes.items():
            touched = self._touched.setdefault(directory, _Touched())
            touched.changed_ns = max(touched.changed_ns, op.changed_ns)
            touched.seen_ns = max(touched.seen_ns, mtime_ns)

    def asked(self, directory: ObjectId, when_ns: int, mtime_ns: int) -> None:
        """An application gave `directory` this mtime explicitly, at `when_ns`."""
        self._touched.setdefault(directory, _Touched()).asked = (when_ns, mtime_ns)

    def due(self, op: Op) -> list[Due]:
        """The directories that nothing but `op` is pending below; the deepest first."""
        dues = []
        for directory in dict.fromkeys((*reversed(op.scope), *reversed(op.scope2))):
            touched = self._touched.get(directory)
            if touched is None or not self._backlog.nothing_but(op, directory):
                continue
            del self._touched[directory]
            wanted = touched.wanted_ns()
            if touched.seen_ns and wanted and wanted != touched.seen_ns:
                dues.append(Due(directory, wanted, touched.seen_ns))
        return dues

    def forget(self, directory: ObjectId) -> None:
        """`directory` was removed."""
        self._touched.pop(directory, None)
