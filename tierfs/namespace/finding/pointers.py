"""Which checkpoints a pointer file names (DESIGN 5, R2): it is held while one of them is not whole.

`latest`, `latest_checkpointed_iteration.txt` and their like hold the name, or (Megatron) the
number, of a directory beside them.
"""

from __future__ import annotations

import os

from tierfs.model import ObjectId, Op
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import DirectoryState, LocalObject
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
                node = await lookup.find(state, name)
            except OSError:
                # The tier does not answer: what is pending beside the pointer is in its cover.
                continue
            if node is not None and node.directory is not None:
                found.append(node.directory)
                break
    return tuple(found)


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
