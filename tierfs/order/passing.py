"""What an op may overtake, though it shares a name or lies in its cover.

A SEAL puts the new checkpoint in the place of the old one in one exchange, so it waits neither for
the removal of the old one nor for what is done inside that. The exchange itself excludes the
removal, and the other way round, by what is being published at the moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierfs.model import STAGED, ObjectId, Op, OpKind, Phase
from tierfs.order.classify import TAKING
from tierfs.order.item import Item

_TAKES_DIRECTORY = frozenset({OpKind.TRASH, OpKind.RMDIR})


def passes(item: Item, earlier: Item) -> bool:
    """Whether `item` does not wait for `earlier`, with which it shares a name or an object."""
    if earlier.facts.aside and earlier.is_removal:
        return True
    return takes_replaced(item, earlier) and earlier.op.phase is not Phase.PUBLISHING


def takes_replaced(seal: Item, removal: Item) -> bool:
    """Whether `removal` takes away the published checkpoint that `seal` replaces."""
    if seal.op.kind is not OpKind.SEAL or removal.op.kind not in _TAKES_DIRECTORY:
        return False
    same_name = (removal.op.parent, removal.op.name) == (seal.op.parent, seal.op.name)
    published = STAGED not in removal.op.fields
    return same_name and published and removal.op.object != seal.op.object


def inside_replaced(seal: Item, removal: Item) -> bool:
    """Whether `removal` takes something in, or is the removal of, what `seal` replaces."""
    if seal.op.kind is not OpKind.SEAL or removal.op.kind not in TAKING:
        return False
    if takes_replaced(seal, removal):
        return True
    name = (seal.op.parent, seal.op.name)
    below = name in zip(removal.op.scope[:-1], removal.op.path[:-1], strict=True)
    return below and seal.op.object not in removal.op.scope


def excludes(item: Item, seal: Item) -> bool:
    """Whether `item` must wait for `seal` while that is being published, though it came before."""
    return takes_replaced(seal, item) and seal.op.phase is Phase.PUBLISHING


def moved_by(op: Op) -> Iterator[ObjectId]:
    """What the RENAME `op` gives another place, the one or both."""
    yield op.object
    if op.flags and op.other is not None:
        yield op.other


def ways_to(op: Op) -> Iterator[ObjectId]:
    """The directories on the way to where the RENAME `op` puts it, or both."""
    yield from op.scope
    if op.flags:
        yield from op.scope2


def moves_out(earlier: Item, rename: Item) -> bool:
    """Whether `earlier` takes a directory out of what `rename` moves."""
    op = earlier.op
    if op.kind is not OpKind.RENAME or earlier is rename:
        return False
    left = {*op.scope2, *(op.scope if op.flags else ())}
    return not left.isdisjoint(moved_by(rename.op))
