"""Which checkpoints a pointer file names (DESIGN 5, R2): it is held while one of them is not whole.

`latest`, `latest_checkpointed_iteration.txt` and their like hold the name, or (Megatron) the
number, of a directory beside them.
"""

from __future__ import annotations

import os
import re

from tierfs.model import ObjectId, Op
from tierfs.namespace.core import Core
from tierfs.namespace.lookup import Lookup
from tierfs.namespace.nodes import DirectoryState, LocalObject
from tierfs.order import names

MAX_BYTES = 64 << 10
MAX_NAMES = 32
_WORD = re.compile(rb"[^\s\0\"',:;{}\[\]()]+")


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


def spellings_in(content: bytes) -> list[list[bytes]]:
    """For each word of a pointer the directory names that it may stand for."""
    return [_spellings(word) for word in list(dict.fromkeys(_WORD.findall(content)))[:MAX_NAMES]]


def content_of(core: Core, object_id: ObjectId) -> bytes:
    """The content of a small object. Blocking."""
    fd = core.store.open_object(object_id, os.O_RDONLY)
    try:
        return core.os.pread("pointer.read", fd, MAX_BYTES, 0)
    finally:
        core.os.close("pointer.close", fd)


def _spellings(word: bytes) -> list[bytes]:
    """The directory names that a word of a pointer may stand for."""
    first = word.strip(b"/").partition(b"/")[0]
    if not 0 < len(first) <= 255 or first in (b".", b".."):
        return []
    if first.isdigit():
        return [first, b"iter_" + first.lstrip(b"0").zfill(7)[:250]]
    return [first]
