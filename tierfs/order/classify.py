"""From an op's own path, kind and flags to its place in the order (R1, R2 of DESIGN 5)."""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple

from tierfs.model import REMOVALS, ROOT, STAGED, Name, ObjectId, Op, OpKind
from tierfs.order import names
from tierfs.order.names import Role

SMALL_BYTES = 64 * 1024
"""Largest pointer, flag and small file (DESIGN 5, R2)."""

_MAKERS = frozenset({OpKind.PUT, OpKind.LINK, OpKind.RENAME, OpKind.SYMLINK})
_DIRECTORY_OPS = frozenset({OpKind.MKDIR, OpKind.RMDIR})
_NEVER_ORDERED = frozenset({OpKind.MKDIR, OpKind.SETATTR, OpKind.REOPEN})
_ALWAYS_ORDERED = frozenset({OpKind.SEAL, OpKind.TRASH})

_ALIKE = frozenset({OpKind.PUT, OpKind.UNLINK})
"""What is issued for every file. Their object and `fields` say nothing of their place."""

_PLAIN_NAMES = {Role.NONE: b"data", Role.TEMPORARY: b"data.tmp"}
"""Names of the roles in which nothing else in the name counts."""

TAKING = REMOVALS | {OpKind.TRASH}
"""What takes names away."""


class Klass(enum.Enum):
    """How an op is ordered."""

    __hash__ = object.__hash__  # that of Enum is a function of Python

    PLAIN = "plain"  # as soon as its directory is there
    SMALL = "small"  # behind larger files closed before it in its directory
    ORDERED = "ordered"  # behind everything earlier in its cover


class Placement(NamedTuple):
    """An op's place in the order.

    Attributes:
        cover: directories whose whole subtrees it waits for; empty unless ORDERED.
        is_commit_name: ORDERED, and it makes or takes a name that makes its directory whole.
        is_pointer: ORDERED, and what it makes leads to a checkpoint; every symlink.
        is_temporary: makes a temporary name, which is not sent for a while.
        is_log: nothing waits for it but what has its name or object; it waits for nothing else.
        checkpoint: the topmost checkpoint directory that it lies in, or is.
        negative: PUT of a negative file: (directory, name of the sibling, or b"" for the whole
            directory) that it must be on the shared tier before.
    """

    klass: Klass
    cover: tuple[ObjectId, ...] = ()
    is_commit_name: bool = False
    is_pointer: bool = False
    is_temporary: bool = False
    is_log: bool = False
    checkpoint: ObjectId | None = None
    negative: tuple[ObjectId, Name] | None = None


class _End(NamedTuple):
    """One of the names that an op concerns, with the directory ids that lead to it.

    `hidden`: R1 applies, it lies in an unsealed checkpoint or below a temporary or negative
    directory and is not negative itself. `top`: index in the path of the topmost checkpoint, its
    own name included.
    """

    scope: tuple[ObjectId, ...]
    name: Name
    role: Role
    hidden: bool
    top: int | None

    @classmethod
    def of(cls, scope: tuple[ObjectId, ...], path: tuple[Name, ...], unsealed: bool) -> _End:
        """The end of an op that `path` leads to through `scope`."""
        if not path:
            return cls(scope, b"", Role.NONE, False, None)
        role = names.role(path[-1])
        hidden, top = _above(path[:-1])
        if top is None and names.is_checkpoint(path[-1]):
            top = len(path) - 1
        hidden = (hidden or unsealed) and role is not Role.NEGATIVE
        return cls(scope, path[-1], role, hidden, top)

    @property
    def checkpoint(self) -> ObjectId | None:
        """The topmost checkpoint directory above it."""
        return None if self.top is None or self.is_top else self.scope[self.top + 1]

    @property
    def is_top(self) -> bool:
        """Whether it is the topmost checkpoint itself, by its name."""
        return self.top is not None and self.top == len(self.scope) - 1

    @property
    def holder(self) -> ObjectId:
        """The directory that holds the topmost checkpoint, else the one that holds the name."""
        return self.scope[-1] if self.top is None else self.scope[self.top]


@functools.lru_cache(maxsize=8192)
def _above(directories: tuple[Name, ...]) -> tuple[bool, int | None]:
    """Whether one of `directories` is temporary or negative; the index of the first checkpoint."""
    hidden = any(names.role(name) in (Role.TEMPORARY, Role.NEGATIVE) for name in directories)
    tops = (index for index, name in enumerate(directories) if names.is_checkpoint(name))
    return hidden, next(tops, None)


def classify(op: Op, small_bytes: int = SMALL_BYTES) -> Placement:
    """The place of `op` in the order; pure, from the op alone.

    Commit names count whatever their size, since `.metadata` and indexes grow with the model and
    only the rename of a large file waits, not its transfer; flags without content (`*.done`) and
    pointers count up to `small_bytes`.
    """
    if op.kind in _ALIKE and op.path and not op.scope2:
        role = names.role(op.path[-1])
        if (role is Role.NONE or role is Role.TEMPORARY) and not names.is_checkpoint(op.path[-1]):
            return _like_others(
                op.kind, op.scope, op.path[:-1], role, op.size <= small_bytes, op.overwrites,
                op.unsealed, op.log,
            )  # fmt: skip
    return _classify(op, small_bytes)


@functools.lru_cache(maxsize=1024)
def _like_others(
    kind: OpKind, scope: tuple[ObjectId, ...], above: tuple[Name, ...], role: Role,
    is_small: bool, overwrites: bool, unsealed: bool, log: bool,
) -> Placement:  # fmt: skip
    """The place of each op of a directory that differs from others in a name that says nothing."""
    name = _PLAIN_NAMES[role]
    alike = Op(
        row=0, number=0, kind=kind, object=ROOT, parent=scope[-1], name=name, timestamp_ns=0,
        scope=scope, path=(*above, name), size=0 if is_small else 1, overwrites=overwrites,
        unsealed=unsealed, log=log,
    )  # fmt: skip
    return _classify(alike, 0)


def _classify(op: Op, small_bytes: int) -> Placement:
    end = _End.of(op.scope, op.path, op.unsealed)
    ends = (end, _End.of(op.scope2, op.path2, op.unsealed)) if op.scope2 else (end,)
    is_small = op.kind is not OpKind.PUT or op.size <= small_bytes
    is_commit = _is_commit(op, end, is_small)
    is_pointer = op.kind is OpKind.SYMLINK or (
        op.kind in _MAKERS and end.role is Role.POINTER and is_small
    )
    ordered = _is_ordered(op, ends, is_commit or is_pointer)
    return Placement(
        klass=_klass(op, end, ordered, is_small),
        cover=_cover(op, ends, is_commit, is_pointer) if ordered else (),
        is_commit_name=ordered and is_commit,
        is_pointer=ordered and is_pointer,
        is_temporary=_is_temporary(op, end),
        is_log=op.log,
        checkpoint=_checkpoint(op, end),
        negative=_negative(op),
    )


def _is_commit(op: Op, end: _End, is_small: bool) -> bool:
    if end.role is not Role.COMMIT:
        return False
    if op.kind is OpKind.UNLINK:
        return True
    return op.kind in _MAKERS and (is_small or not names.is_flag(op.name))


def _is_ordered(op: Op, ends: tuple[_End, ...], is_marker: bool) -> bool:
    if op.kind in _NEVER_ORDERED or _takes_unsealed(op):
        return False
    if op.log:
        return False
    if op.kind in _ALWAYS_ORDERED:
        return True
    # A rename onto an empty directory needs the removals inside that one, hidden or not.
    if all(end.hidden for end in ends) and not (op.kind is OpKind.RENAME and op.overwrites):
        return False
    if op.kind is OpKind.RENAME or op.kind in REMOVALS:
        return True
    return op.overwrites or is_marker


def _takes_unsealed(op: Op) -> bool:
    """Whether it removes an unsealed checkpoint, which nobody but this node has seen."""
    return op.kind is OpKind.RMDIR and STAGED in op.fields


def _klass(op: Op, end: _End, ordered: bool, is_small: bool) -> Klass:
    if ordered:
        return Klass.ORDERED
    # A negative file is small but must be there before anything else: it waits for nobody.
    small = op.kind is OpKind.PUT and is_small and not op.log
    if small and not end.hidden and end.role is not Role.NEGATIVE:
        return Klass.SMALL
    return Klass.PLAIN


def _cover(
    op: Op, ends: tuple[_End, ...], is_commit: bool, is_pointer: bool
) -> tuple[ObjectId, ...]:
    cover = [_cover_of_end(op, end, is_commit and end is ends[0]) for end in ends]
    if is_pointer:
        cover += op.targets
    return tuple(dict.fromkeys(cover))


def _cover_of_end(op: Op, end: _End, is_commit: bool) -> ObjectId:
    if op.unsealed or op.kind is OpKind.SEAL:
        return end.scope[-1]
    if op.kind in TAKING:
        return end.holder
    if op.kind is OpKind.RENAME and names.is_checkpoint(end.name) and not is_commit:
        return end.holder
    return end.scope[-1]


def _is_temporary(op: Op, end: _End) -> bool:
    if op.kind not in (OpKind.PUT, OpKind.SYMLINK):
        return False
    in_scratch = len(op.path) > 1 and names.is_scratch_directory(op.path[-2])
    return in_scratch or end.role is Role.TEMPORARY


def _checkpoint(op: Op, end: _End) -> ObjectId | None:
    return op.object if op.kind in _DIRECTORY_OPS and end.is_top else end.checkpoint


def _negative(op: Op) -> tuple[ObjectId, Name] | None:
    if op.kind is not OpKind.PUT or not names.is_negative_file(op.name):
        return None
    return op.parent, names.negative_stem(op.name) or b""
