"""Which time a directory of the shared tier must end with. Pure.

A commit gives its directory the time of the commit; applications (rotation by mtime) rely on the
order in which they made their changes. So when the last pending op below a directory is committed,
the directory gets the time of the latest change in it: of ours as the application made it, or of
somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        changed_ns: latest change by an application here.
        seen_ns: mtime that the last of our commits left there.
        others_ns: latest mtime found there that none of our commits made: it is no older than
            somebody else's change.
        asked: (when it was asked for, mtime) of an explicit utimens.
    """

    changed_ns: int = 0
    seen_ns: int = 0
    others_ns: int = 0
    asked: tuple[int, int] | None = None

    def wanted_ns(self) -> int:
        if self.asked is not None and self.asked[0] >= max(self.changed_ns, self.others_ns):
            return self.asked[1]
        return max(self.changed_ns, self.others_ns)


@dataclass(slots=True)
class _Calls:
    """Our final calls in one directory: how many are under way, how many were begun."""

    running: int = 0
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """A directory that must get `mtime_ns` if its mtime still is `expected_ns`.

    None: no commit of ours gave it one; then only if it is older.
    """

    directory: ObjectId
    mtime_ns: int
    expected_ns: int | None


class DirectoryTimes:
    """The directories that commits have changed and whose time is still to be put right."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._touched: dict[ObjectId, _Touched] = {}
        self._calls: dict[ObjectId, _Calls] = {}

    def begin(self, directories: tuple[ObjectId, ...]) -> dict[ObjectId, int]:
        """A call that changes `directories` begins; returns what `end` needs.

        The value is 0 where another call is under way.
        """
        tokens = {}
        for directory in directories:
            calls = self._calls.setdefault(directory, _Calls())
            calls.running += 1
            calls.begun += 1
            tokens[directory] = calls.begun if calls.running == 1 else 0
        return tokens

    def end(self, tokens: dict[ObjectId, int]) -> set[ObjectId]:
        """The call ended; returns the directories in which it was the only one all the time."""
        alone = set()
        for directory, token in tokens.items():
            calls = self._calls[directory]
            calls.running -= 1
            if token == calls.begun:
                alone.add(directory)
            if calls.running == 0:
                del self._calls[directory]
        return alone

    def committed(self, op: Op, before: dict[ObjectId, int], after: dict[ObjectId, int]) -> None:
        """`op` was applied. `before` and `after` are mtimes of the directories that it changed;
        `before` only of those in which nothing else of ours happened meanwhile.
        """
        for directory, mtime_ns in after.items():
            touched = self._touched.setdefault(directory, _Touched())
            found = before.get(directory, touched.seen_ns)
            if found != touched.seen_ns:
                touched.others_ns = max(touched.others_ns, found)
            touched.changed_ns = max(touched.changed_ns, op.changed_ns)
            touched.seen_ns = max(touched.seen_ns, mtime_ns)

    def asked(self, op: Op, when_ns: int, mtime_ns: int) -> None:
        """`op` gave a directory an mtime that an application asked for at `when_ns`."""
        self.asked_of(op.object, when_ns, mtime_ns, op)

    def asked_of(
        self, directory: ObjectId, when_ns: int, mtime_ns: int, op: Op | None = None
    ) -> None:
        """`directory` was given an mtime for which an application asked at `when_ns`."""
        if directory in self._touched or not self._backlog.nothing_but(op, directory):
            self._touched.setdefault(directory, _Touched()).asked = (when_ns, mtime_ns)

    def left(self, op: Op) -> None:
        """`op` is over and changed nothing on the shared tier; in the mount it did."""
        for directory in changed_directories(op):
            self.changed(directory, op.changed_ns)

    def changed(self, directory: ObjectId, changed_ns: int) -> None:
        """An application changed a name in `directory`, in the mount alone."""
        touched = self._touched.setdefault(directory, _Touched())
        touched.changed_ns = max(touched.changed_ns, changed_ns)

    def due(self, op: Op) -> list[Due]:
        """The directories that nothing but `op` is pending below; the deepest first."""
        # itself too: a utimens may end after the last commit in the directory that it was for
        return self.due_in((op.object, *reversed(op.scope), *reversed(op.scope2)), op)

    def due_in(self, directories: Iterable[ObjectId], op: Op | None = None) -> list[Due]:
        """Those of `directories` that nothing but `op` is pending below, in their order."""
        dues = []
        for directory in dict.fromkeys(directories):
            touched = self._touched.get(directory)
            if touched is None or not self._backlog.nothing_but(op, directory):
                continue
            if self._backlog.of_object(directory) not in (None, op):
                continue  # a utimens may be among what is pending for the directory itself
            del self._touched[directory]
            wanted = touched.wanted_ns()
            if wanted and wanted != touched.seen_ns:
                dues.append(Due(directory, wanted, touched.seen_ns or None))
        return dues

    def forget(self, directory: ObjectId) -> None:
        """`directory` was removed."""
        self._touched.pop(directory, None)
