"""Removals that are moved behind an op that was issued after them.

rmtree removes in the order of the directory, so the shards may go first and the name that calls
the checkpoint whole last. When that last unlink comes, the pending removals of its directory are
moved behind it. In a sealed checkpoint all removals are collected; they are moved behind the TRASH
that takes it away whole, or the REOPEN that makes it a new generation, and are made there. Where a
commit name is written anew instead (save_pretrained into the same directory), the old one still
names what is unlinked: that goes behind the new one. What waited for them waits no longer, so no
wait turns round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tierfs.model import OLDER, ObjectId, OpKind, Phase, Reopen
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item, rebuilds


def behind(indexes: Indexes, item: Item) -> list[Item]:
    """The removals to be moved behind `item`, in their order; none for most ops.

    All in its directory that no worker has (for a TRASH or REOPEN: that are not being published;
    for a save: unlinks), except those that something later needs where they are: a later op of the
    same name or object, the RMDIR of a directory above them, or a rename that replaces something
    above them, perhaps the directory that they empty.
    """
    if item.is_commit_unlink:
        return _behind(indexes, item, item.facts.parent, _stays_before_unlink)
    if _replaces_commit_name(item):
        return _behind(indexes, item, item.facts.parent, _stays_before_save)
    if rebuilds(item.op) and item.op.flags != Reopen.GIVEN_UP:
        return _behind(indexes, item, item.facts.object, _is_being_published)
    return []


def removal_of(indexes: Indexes, trash: Item) -> list[Item]:
    """`trash` and the removals that empty what it took away, its RMDIR included."""
    if OLDER in trash.op.fields:
        return [trash]  # its files go by themselves; what is removed beside them is a newer one
    inside, position = trash.facts.object, trash.facts.position
    found = [one for one in indexes.everything.after(inside, position) if one.is_removal]
    last = indexes.same.after((inside, b""), position)
    return [trash, *found, *(one for one in last if one.op.kind is OpKind.RMDIR)]


def _stays_before_unlink(item: Item) -> bool:
    return item.taken or item.is_commit_unlink


def _stays_before_save(item: Item) -> bool:
    only = item.op.kind is OpKind.UNLINK and item.op.group is None
    return not only or _stays_before_unlink(item)


def _replaces_commit_name(item: Item) -> bool:
    """Whether `item` gives a committed commit name to something newer."""
    op, facts = item.op, item.facts
    there = op.overwrites or (op.kind is OpKind.PUT and op.base_inode is not None)
    makes = facts.placement.is_commit_name and not item.is_removal
    return makes and there and facts.counted and facts.mark is None


def _is_being_published(item: Item) -> bool:
    return item.op.phase is Phase.PUBLISHING


def _behind(
    indexes: Indexes, item: Item, top: ObjectId, stays: Callable[[Item], bool]
) -> list[Item]:
    candidates = [*indexes.removals.items(top), *indexes.dead_removals.items(top)]
    candidates.sort(key=lambda one: one.facts.position, reverse=True)
    movable: dict[Item, None] = {}
    for one in candidates:
        fixed = one is item or stays(one) or one.facts.position > item.facts.position
        if not fixed and all(later in movable for later in _later(indexes, one, top)):
            movable[one] = None
    return [*movable][::-1]


def _later(indexes: Indexes, item: Item, top: ObjectId) -> Iterator[Item]:
    """What comes after `item`, from `top` downwards, and needs it where it is; of each the next."""
    facts = item.facts
    found = [indexes.same.next_after(key, facts.position) for key in facts.keys]
    for directory in facts.directories[facts.directories.index(top) :]:
        found.append(indexes.removers.next_after(directory, facts.position))
        found.append(indexes.replacers.next_after(directory, facts.position))
    return filter(None, found)
