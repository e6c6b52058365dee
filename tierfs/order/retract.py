"""The unlink of a commit name goes before the unlinks of what it vouched for.

rmtree removes in the order of the directory, so the shards may go first and the name that calls
the checkpoint whole last. When that last unlink comes, the pending removals of its directory are
moved behind it; what waited for them waits no longer, so no wait turns round.
"""

from __future__ import annotations

from tierfs.model import ObjectId
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item


def behind(indexes: Indexes, unlink: Item) -> list[Item]:
    """The removals to be moved behind `unlink` (of a commit name), in their order.

    All in its directory that no worker has, except those that something later needs where they
    are: a later op of the same name or object, or one that puts something in the place of a
    directory above.
    """
    directory = unlink.facts.parent
    candidates = [*indexes.removals.items(directory), *indexes.dead_removals.items(directory)]
    candidates.sort(key=lambda item: item.facts.position, reverse=True)
    movable: dict[Item, None] = {}
    for item in candidates:
        if not (item is unlink or item.taken or item.is_commit_unlink) and all(
            later in movable for later in _later(indexes, item, directory)
        ):
            movable[item] = None
    return [*movable][::-1]


def _later(indexes: Indexes, item: Item, top: ObjectId) -> list[Item]:
    """Per key of `item`, and of the directories between it and `top`, the next op of that key."""
    op = item.op
    keys = list(item.facts.keys)
    if top in op.scope:
        depth = op.scope.index(top)
        keys += zip(op.scope[depth:-1], op.path[depth:-1], strict=True)
    found = (indexes.same.next_after(key, item.facts.position) for key in keys)
    return [later for later in found if later is not None]
