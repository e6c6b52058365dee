"""What a pointer or a symbolic link leads to, which has to be there before it (DESIGN 5, R2).

A pointer is held while a checkpoint that it names is not whole. `latest`,
`latest_checkpointed_iteration.txt` and their like hold the name, or (Megatron) the number, of a
directory beside them.
"""

from __future__ import annotations

import contextlib
import os

from tierfs.health import is_failure
from tierfs.model import Kind, Name, ObjectId, Op
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import NAME_BYTES, Lookup
from tierfs.namespace.outage.asking import on_behalf_of
from tierfs.namespace.overlay.nodes import Content, DirectoryState, LocalObject, Node
from tierfs.order import names
from tierfs.order.spellings import spellings_in

MAX_BYTES = 64 << 10


async def targets_of(
    core: Core, lookup: Lookup, state: DirectoryState, op: Op, obj: LocalObject
) -> tuple[ObjectId, ...]:
    """The directories beside a pointer that its content names; none for any other file."""
    if not is_pointer(op):
        return ()
    content = await core.of_object(obj.id, content_of, core, obj.id)
    return await _directories(lookup, state, content)


async def targets_as(
    core: Core, lookup: Lookup, state: DirectoryState, name: Name, node: Node
) -> tuple[ObjectId, ...]:
    """The same for a file that was closed before, once it is called `name` in `state`."""
    if node.kind is not Kind.FILE or names.role(name) is not names.Role.POINTER:
        return ()
    return await _directories(lookup, state, await _content(core, lookup, node))


async def _content(core: Core, lookup: Lookup, node: Node) -> bytes:
    """What `node` holds, wherever that is; nothing where no tier says it."""
    obj, shared = node.object, node.shared
    try:
        if obj is not None and obj.content is Content.DATA:
            with core.holding(obj):
                return await core.of_object(obj.id, content_of, core, obj.id)
        copy = None if shared is None else await core.journal.clean_copy(shared.inode)
        if copy is not None:
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                return await core.local(content_of, core, copy.object)
        with on_behalf_of(0):
            fd, _ = await lookup.open_committed(node, hasty=True)
        try:
            return await core.on_shared(_read, core, fd)
        finally:
            core.closing_shared.add(fd)
    except OSError:
        return b""  # what is pending beside the pointer is in its cover all the same


async def _directories(
    lookup: Lookup, state: DirectoryState, content: bytes
) -> tuple[ObjectId, ...]:
    found = []
    for spellings in spellings_in(content):
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
    """The content of an object; nothing if it is too large for a pointer. Blocking."""
    fd = core.store.open_object(object_id, os.O_RDONLY)
    try:
        return _read(core, fd)
    finally:
        core.os.close("pointer.close", fd)


def _read(core: Core, fd: int) -> bytes:
    content = core.os.pread("pointer.read", fd, MAX_BYTES + 1, 0)
    return content if len(content) <= MAX_BYTES else b""
