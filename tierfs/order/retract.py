"""The unlink of a commit name goes before the unlinks of what it vouched for.

rmtree removes in the order of the directory, so the shards may go first and the name that calls
the checkpoint whole last. When that last unlink comes, the pending removals of its directory are
moved behind it; what waited for them waits no longer, so no wait turns round.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierfs.model import ObjectId
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item


def behind(indexes: Indexes, unlink: Item) -> list[Item]:
    """The removals to be moved behind `unlink` (of a commit name), in their order.

    All in its directory that no worker has, except those that something later needs where they
    are: a later op of the same name or object, the RMDIR of a directory above them, or a rename
    that replaces something above them, perhaps the directory that they empty.
    """
    top = unlink.facts.parent
    candidates = [*indexes.removals.items(top), *indexes.dead_removals.items(top)]
    candidates.sort(key=lambda item: item.facts.position, reverse=True)
    movable: dict[Item, None] = {}
    for item in candidates:
        fixed = item is unlink or item.taken or item.is_commit_unlink
        if not fixed and all(later in movable for later in _later(indexes, item, top)):
            movable[item] = None
    return [*movable][::-1]


def _later(indexes: Indexes, item: Item, top: ObjectId) -> Iterator[Item]:
    """What comes after `item`, from `top` downwards, and needs it where it is; of each the next."""
    facts = item.facts
    found = [indexes.same.next_after(key, facts.position) for key in facts.keys]
    for directory in facts.directories[facts.directories.index(top) :]:
        found.append(indexes.removers.next_after(directory, facts.position))
        found.append(indexes.replacers.next_after(directory, facts.position))
    return filter(None, found)
