"""One pending op as the backlog keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tierfs.model import (
    OLDER,
    STAGED,
    Mark,
    Name,
    ObjectId,
    Op,
    OpKind,
    OpState,
    Phase,
    staging_name,
)
from tierfs.order.classify import TAKING, Klass, Placement

Position = tuple[int, int, int]
"""Place in the order: number, place behind the op of that number (-1: before it), row."""

Key = tuple[ObjectId, Name]
"""What ops that share it are applied in order for: (object, b"") or (directory, name)."""

REBUILDERS = frozenset({OpKind.REOPEN, OpKind.TRASH})
"""What has a checkpoint stand elsewhere: what is issued inside later must find it there."""

_OF_ONE_NAME = frozenset({OpKind.PUT, OpKind.UNLINK})
_MAKES_DIRECTORY = frozenset({OpKind.MKDIR, OpKind.SEAL, OpKind.REOPEN})


class Facts(NamedTuple):
    """What an item is indexed by: a snapshot, since the op itself changes under the backlog.

    Attributes:
        position: where it stands; an ordered op waits for what ranks below its position.
        rank: the same, except that a PUT that is not ordered ranks where its first FLUSH was.
        counted: others wait for it. A file that was never flushed does not count.
        is_open: a writer still has the file open.
        guarded: it takes content away that earlier saves, held ones too, must replace (G4).
        watched: directories in which a mark takes it out of the order.
        targets: of a pointer, the directories that it leads to.
        out: out of the order: only removals wait for it.
        aside: and not even they: a held removal, or a pointer to an unsealed checkpoint.
    """

    placement: Placement
    object: ObjectId
    parent: ObjectId
    keys: tuple[Key, ...]
    directories: tuple[ObjectId, ...]
    position: Position
    rank: Position
    mark: Mark | None
    counted: bool
    is_open: bool
    is_large: bool
    guarded: bool
    watched: tuple[ObjectId, ...]
    targets: tuple[ObjectId, ...] = ()
    out: bool = False
    aside: bool = False


class Lead(NamedTuple):
    """A name on the way to what a TRASH takes, and since which place in the order it leads there.

    `since` is None: since before the TRASH was issued.
    """

    directory: ObjectId
    name: Name
    since: Position | None


Seen = tuple[tuple[object, ...], tuple[object, ...]]
"""Fields of an op: those that its placement depends on, and those that only its facts do."""


@dataclass(slots=True, eq=False)
class Item:
    """A pending op, what it is indexed by, and what the backlog remembers of it.

    Attributes:
        seen: the fields of the op that its place, and the facts, were last computed from.
        moved: (number, place) behind the unlink of a commit name, a TRASH or a REOPEN, if it was
            moved there.
        held: why it is held, as a removal or part of one (G4).
        makes_room: a removal that does not wait for the saves before it: they need its room.
        floor: number that it ranks before once it is flushed, since a commit name that was issued
            while it was open must wait for it.
        lifted: gave up the place of its first FLUSH, since it waits for something later itself.
        lingering: flushed so long ago without a RELEASE that it counts as open.
        taken: a worker has it.
        not_before: end of the back-off (monotonic seconds).
        since: when its time holds began (monotonic seconds); None: not looked at yet.
        flushed: when it was flushed without a RELEASE.
        blocker: the item that it is parked under; `waiters`: those parked under it.
        places: where it stands in the indexes: (index, key) each.
        leads: of a TRASH, the way from the root to what it takes, whatever was renamed since.
    """

    op: Op
    seen: Seen
    facts: Facts = field(init=False)
    moved: tuple[int, int] | None = None
    held: str | None = None
    makes_room: bool = False
    floor: int | None = None
    lifted: bool = False
    lingering: bool = False
    taken: bool = False
    not_before: float = 0.0
    since: float | None = None
    flushed: float | None = None
    blocker: Item | None = None
    waiters: dict[Item, None] = field(default_factory=dict)
    places: list[tuple[Any, Any]] = field(default_factory=list)
    leads: tuple[Lead, ...] = ()

    @property
    def is_removal(self) -> bool:
        """Whether it takes a name away."""
        return self.op.kind in TAKING

    @property
    def is_commit_unlink(self) -> bool:
        """Whether it takes the commit name of a directory away."""
        return self.op.kind is OpKind.UNLINK and self.facts.placement.is_commit_name

    @property
    def to_stage(self) -> bool:
        """Whether the next thing to do is staging, which needs no turn."""
        return self.op.kind is OpKind.PUT and self.op.phase < Phase.STAGED


def rebuilds(op: Op) -> bool:
    """Whether `op` gives its directory another place, or others in its stead.

    Not the TRASH of an older generation: the directory that it is about stays where it is.
    """
    return op.kind in REBUILDERS and OLDER not in op.fields


def floats(op: Op, placement: Placement) -> bool:
    """Whether `op` ranks where its first FLUSH was."""
    return op.kind is OpKind.PUT and placement.klass is not Klass.ORDERED


def fields_of(op: Op, small_bytes: int) -> Seen:
    """The fields of `op` that matter to the order, to see whether one has changed."""
    placing = (
        op.path, op.scope, op.path2, op.scope2, op.object, op.size <= small_bytes, op.overwrites,
        op.targets, op.unsealed, op.log,
    )  # fmt: skip
    return placing, (op.number, op.first, op.state, op.mark)


def is_marker(op: Op, placement: Placement) -> bool:
    """Whether `op` makes a checkpoint whole or leads to one."""
    return op.kind not in TAKING and (placement.is_commit_name or placement.is_pointer)


def keys_of(op: Op) -> tuple[Key, ...]:
    """What `op` shares with others that must be applied in order with it."""
    if op.kind in _OF_ONE_NAME and not op.fields:
        return (op.object, b""), (op.parent, op.name)
    keys: list[Key] = [(op.object, b""), (op.parent, op.name)]
    checkpoint = keys[1]
    if op.parent2 is not None and op.name2 is not None:
        keys.append((op.parent2, op.name2))
        checkpoint = keys[2]
    if STAGED in op.fields or op.kind in (OpKind.SEAL, OpKind.REOPEN):
        keys.append((checkpoint[0], staging_name(checkpoint[1])))
        if op.kind is OpKind.MKDIR:
            keys.remove(checkpoint)
    if (other := op.other) is not None:
        keys.append((other, b""))
    return tuple(dict.fromkeys(keys))


def directories_of(op: Op) -> tuple[ObjectId, ...]:
    """The directories in whose subtrees `op` lies."""
    if op.kind in _OF_ONE_NAME:
        return op.scope
    made = (op.object,) if op.kind in _MAKES_DIRECTORY else ()
    return tuple(dict.fromkeys(op.scope + op.scope2 + made))


def is_open(op: Op) -> bool:
    """Whether a writer still has the file of `op` open."""
    return op.kind is OpKind.PUT and op.state in (OpState.OPEN, OpState.CLOSED)


def is_guarded(op: Op, placement: Placement) -> bool:
    """Whether `op` must not be applied before earlier saves, held ones included."""
    return not op.decided and takes_content(op, placement)


def takes_content(op: Op, placement: Placement) -> bool:
    """Whether `op` takes a name, in its turn, from what has it."""
    replaces = op.kind is OpKind.RENAME and op.overwrites
    return placement.klass is Klass.ORDERED and (op.kind in TAKING or replaces)


def watched_by(op: Op, placement: Placement) -> tuple[ObjectId, ...]:
    """The directories in which a mark takes `op` out of the order (R3, *stuck*)."""
    if op.kind in TAKING:
        return ()
    if op.kind is OpKind.SEAL:
        return (op.object,)
    own = (op.parent,) if placement.is_commit_name else ()
    return tuple(dict.fromkeys(own + (op.targets if placement.is_pointer else ())))
