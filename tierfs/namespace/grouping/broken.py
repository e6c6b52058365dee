"""Unsealed checkpoints of which files cannot be committed: said on the shared tier, to every node.

Whoever looks at such a checkpoint after this member is gone knows that it never was whole, which
files are missing, and why.
"""

from __future__ import annotations

import logging
import os

import trio

from tierfs.model import Name, ObjectId, Op
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often it is looked whether what cannot be committed has changed."""


class Broken:
    """Keeps the records of the checkpoints that this member writes in true."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._said: dict[ObjectId, frozenset[Name] | None] = {}

    async def run(self) -> None:
        """Say what changed, until cancelled."""
        for group in self._core.groups:
            self._said[group.id] = None  # what an earlier daemon said is not known
        while True:
            for group in self._core.groups:
                await self._look(group)
            here = {group.id for group in self._core.groups}
            self._said = {each: files for each, files in self._said.items() if each in here}
            await trio.sleep(LOOK_SECONDS)

    async def _look(self, group: Group) -> None:
        core = self._core
        if core.groups.get(group.id) is not group:
            return  # it ended while another one was noted, and its directory with it
        depth = len(core.tree.path(group.id))
        marked = [op for op in core.backlog.marked(group.id) if not op.log]
        files = frozenset(inside(op, depth) for op in marked)
        said = self._said.get(group.id, frozenset())
        if (files == said and not files) or not core.places.exists(group.id):
            return  # what is broken is said again: another one may have begun to write there
        why = ""
        if marked:
            why = f"{os.fsdecode(inside(marked[0], depth))}: {marked[0].error or marked[0].mark}"
        try:
            await core.on_shared(core.shared.note_broken, core.places.group(group.id), why, files)
        except OSError as error:
            name = os.fsdecode(group.name)
            log.debug("checkpoint %s: its state cannot be noted: %s", name, error)
            return
        self._said[group.id] = files


def inside(op: Op, depth: int) -> Name:
    """The path of `op` from its checkpoint, which is `depth` names below the root."""
    return b"/".join(op.path[depth:]) or op.name
