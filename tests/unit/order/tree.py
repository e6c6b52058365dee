"""Ops by path, for tests: a tree that gives every directory an id and every op a number."""

from __future__ import annotations

import itertools

from tierfs.model import ROOT, STAGED, ObjectId, Op, OpKind, OpState, Reopen
from tierfs.order import Backlog
from tierfs.policies import Policies, PolicyKind

BIG = 1 << 30
DIRECTORY_KINDS = (OpKind.MKDIR, OpKind.RMDIR, OpKind.SEAL, OpKind.REOPEN, OpKind.TRASH)


_POLICIES = Policies()


def is_log(name: bytes) -> bool:
    """Whether a file of that name is a log where nothing is configured."""
    return _POLICIES.of((name,)).kind is PolicyKind.LOG


class Tree:
    """Makes ops as the namespace would; `backlog` gets each one unless `add` is false."""

    def __init__(self, backlog: Backlog | None = None) -> None:
        self.backlog = backlog
        self.directories: dict[bytes, ObjectId] = {b"": ROOT}
        self.objects: dict[bytes, ObjectId] = {}
        self._ids = itertools.count(1000)
        self._rows = itertools.count(1)
        self.numbers = itertools.count(1)

    def directory(self, path: str) -> ObjectId:
        """The id of the directory `path`."""
        return self.directories.setdefault(path.encode(), ObjectId(next(self._ids)))

    def object(self, path: str) -> ObjectId:
        """The id of the file `path`."""
        return self.objects.setdefault(path.encode(), ObjectId(next(self._ids)))

    def where(self, path: str) -> tuple[tuple[ObjectId, ...], tuple[bytes, ...]]:
        """Scope and path of an op on `path`."""
        parts = path.split("/")
        scope = tuple(self.directory("/".join(parts[:i])) for i in range(len(parts)))
        return scope, tuple(part.encode() for part in parts)

    def op(self, kind: OpKind, path: str, source: str | None = None, **fields: object) -> Op:
        """An op of `kind` on `path`, not added."""
        scope, names = self.where(path)
        is_dir = kind in DIRECTORY_KINDS
        moved = source if source is not None else path
        known = self.directories.get(moved.encode())
        made = self.directory(path) if is_dir else (known or self.object(moved))
        number = next(self.numbers)
        op = Op(
            row=next(self._rows), number=number, kind=kind, object=made, parent=scope[-1],
            name=names[-1], timestamp_ns=0, scope=scope, path=names,
        )  # fmt: skip
        if source is not None:
            op.scope2, op.path2 = self.where(source)
            op.parent2, op.name2 = op.scope2[-1], op.path2[-1]
        if kind is OpKind.PUT:
            op.first, op.size, op.log = number, BIG, is_log(names[-1])
        for name, value in fields.items():
            setattr(op, name, value)
        return op

    def issue(self, kind: OpKind, path: str, source: str | None = None, **fields: object) -> Op:
        """An op of `kind` on `path`, added to the backlog."""
        op = self.op(kind, path, source, **fields)
        assert self.backlog is not None
        self.backlog.add(op)
        return op

    def put(self, path: str, **fields: object) -> Op:
        return self.issue(OpKind.PUT, path, **fields)

    def open(self, path: str, **fields: object) -> Op:
        """A file that is being written and was never flushed."""
        return self.put(path, state=OpState.OPEN, first=0, **fields)

    def flush(self, op: Op) -> None:
        op.state = OpState.CLOSED
        self.backlog.renumber(op, next(self.numbers))

    def release(self, op: Op) -> None:
        op.state = OpState.PENDING
        self.backlog.update(op)

    def retarget(self, op: Op, path: str) -> None:
        scope, names = self.where(path)
        op.log = is_log(names[-1])
        self.backlog.retarget(op, scope[-1], names[-1], scope, names, next(self.numbers))

    def mkdir(self, path: str, **fields: object) -> Op:
        return self.issue(OpKind.MKDIR, path, **fields)

    def unlink(self, path: str, **fields: object) -> Op:
        return self.issue(OpKind.UNLINK, path, **fields)

    def rmdir(self, path: str, **fields: object) -> Op:
        return self.issue(OpKind.RMDIR, path, **fields)

    def symlink(self, path: str, *targets: str, **fields: object) -> Op:
        ids = tuple(self.directory(target) for target in targets)
        return self.issue(OpKind.SYMLINK, path, targets=ids, **fields)

    def rename(self, source: str, path: str, **fields: object) -> Op:
        return self.issue(OpKind.RENAME, path, source, **fields)

    def link(self, source: str, path: str, **fields: object) -> Op:
        return self.issue(OpKind.LINK, path, source, **fields)

    # Checkpoints

    def group(self, path: str) -> Op:
        """The MKDIR of the unsealed checkpoint `path`."""
        made = self.mkdir(path, fields=(STAGED,))
        self.backlog.group_unsealed(made.object, made.name)
        return made

    def seal(self, path: str, **fields: object) -> Op:
        return self.issue(OpKind.SEAL, path, **fields)

    def reopen(self, path: str, how: Reopen = Reopen.LINKED) -> Op:
        return self.issue(OpKind.REOPEN, path, flags=how)

    def trash(self, path: str) -> Op:
        return self.issue(OpKind.TRASH, path)

    def forget(self, path: str) -> ObjectId:
        """The directory `path` is gone for those who look: the next one there is another."""
        return self.directories.pop(path.encode())
