"""What a pointer or a symbolic link leads to, which has to be there before it (DESIGN 5, R2).

A pointer is held while a checkpoint that it names is not whole. `latest`,
`latest_checkpointed_iteration.txt` and their like hold the name, or (Megatron) the number, of a
directory beside them.
"""

from __future__ import annotations

import os

from tierfs.health import is_failure
from tierfs.model import Name, ObjectId, Op
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import NAME_BYTES, Lookup
from tierfs.namespace.outage.asking import on_behalf_of
from tierfs.namespace.overlay.nodes import DirectoryState, LocalObject, Node
from tierfs.order import names
from tierfs.order.spellings import spellings_in

MAX_BYTES = 64 << 10


async def targets_of(
    core: Core, lookup: Lookup, state: DirectoryState, op: Op, obj: LocalObject
) -> tuple[ObjectId, ...]:
    """The directories beside a pointer that its content names; none for any other file."""
    if not is_pointer(op):
        return ()
    found = []
    for spellings in spellings_in(await core.of_object(obj.id, content_of, core, obj.id)):
        for name in spellings:
            try:
                node = await _at_hand(lookup, state, name)
            except OSError:
                # The tier does not answer: what is pending beside the pointer is in its cover.
                continue
            if node is not None and node.directory is not None:
                found.append(node.directory)
                break
    return tuple(found)


async def cover_of_link(
    core: Core, lookup: Lookup, state: DirectoryState, target: Name
) -> tuple[ObjectId, ...]:
    """The deepest directory that `target`, seen from `state`, leads through (its cover)."""
    start, rest = core.start_of(state.id, target)
    at = core.tree.directories[start]
    for name in rest.split(b"/"):
        if name == b"..":
            at = core.tree.directories[at.parent or at.id]
        elif name not in (b"", b"."):
            try:
                node = await _at_hand(lookup, at, name) if len(name) <= NAME_BYTES else None
            except OSError as error:
                if not is_failure(error):
                    raise
                break  # the tier does not answer: what is pending below is in this cover, too
            if node is None or node.directory is None:
                break
            at = core.tree.directories[node.directory]
    return core.groups.around(at.id)


async def _at_hand(lookup: Lookup, state: DirectoryState, name: Name) -> Node | None:
    """What has `name`, if anything; Unanswered while the tier is silent and it is not known.

    Also where no application waits: a close has been answered, and the next open waits for this.
    Nobody is asked whether he makes the name: he is in another call, and if that is an exec, which
    closes files, /proc tells nothing of him until we have answered.
    """
    with on_behalf_of(0):
        return await lookup.find(state, name, hasty=True)


def is_pointer(op: Op) -> bool:
    """Whether the file of `op` is one whose content names checkpoints."""
    return names.role(op.name) is names.Role.POINTER and 0 < op.size <= MAX_BYTES


def content_of(core: Core, object_id: ObjectId) -> bytes:
    """The content of a small object. Blocking."""
    fd = core.store.open_object(object_id, os.O_RDONLY)
    try:
        return core.os.pread("pointer.read", fd, MAX_BYTES, 0)
    finally:
        core.os.close("pointer.close", fd)
