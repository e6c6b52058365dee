"""A published checkpoint that is written over: when its last writer was killed, who looks waits.

Else who looks at once, as a job that is started again does, would see files of two saves, before it
is found out that they are to be given up, and done.
"""

from __future__ import annotations

import math
import time

import trio

from tierfs.groups import State
from tierfs.model import BEGINS, ObjectId, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group

WAIT_SECONDS = 2.0
"""So long from the first look; then what is there is shown: the tier is slow."""

LOOK_SECONDS = 0.005


async def until_published(core: Core, *directories: ObjectId) -> None:
    """Returns when it is decided what becomes of the checkpoints that `directories` lie in, and
    what is given up is; at once while a process lives that writes them, or all ended well.
    """
    for directory in list(core.written_over):
        group = core.groups.get(directory)
        if group is None or group.record.older is None:
            core.written_over.pop(directory, None)
        elif any(_is_within(core, each, directory) for each in directories):
            await _until_decided(core, group)


async def _until_decided(core: Core, group: Group) -> None:
    while core.groups.get(group.id) is group and not group.stays and not core.calls.silent:
        now = time.monotonic()
        if not _is_left(core, group):
            core.written_over[group.id] = math.inf
            return
        until = min(core.written_over.get(group.id, math.inf), now + WAIT_SECONDS)
        core.written_over[group.id] = until
        if now >= until or (group.seal is not None and not group.is_given_up):
            return
        if group.seal is not None:
            await core.writeback.wait([group.seal], until - now, directory=group.id)
        else:
            with core.writeback.pace.rush():
                await trio.sleep(LOOK_SECONDS)


def _is_left(core: Core, group: Group) -> bool:
    """Whether nobody lives who writes `group`, as it is now, and perhaps one was killed."""
    writers, ended = group.writers, core.groups.processes.has_ended
    if writers.processes(State.UNKNOWN):
        return False
    living = writers.processes(State.LIVING)
    if not all(ended(each.pid, each.start) for each in living):
        return False
    return bool(living or writers.processes(State.KILLED))


def is_to_begin(core: Core, directory: ObjectId) -> bool:
    """Whether the next generation of the checkpoint `directory` is still to be made."""
    ops = core.backlog.ops_of_object(directory)
    return any(op.kind is OpKind.REOPEN and op.flags in BEGINS for op in ops)


def _is_within(core: Core, directory: ObjectId, group: ObjectId) -> bool:
    tree = core.tree
    return directory in tree.directories and tree.is_within(directory, group)
