"""An unsealed checkpoint that the job itself removes: if it was finished, it is sealed first.

Jobs that keep one checkpoint remove it before they save the next. Without this none that has no end
marker would ever be whole on the shared tier (docs/decisions/0022-sealed-to-be-removed.md).

At the first unlink inside it is looked at. If it was finished then, its removals are collected, and
nothing in it is taken back, as in a sealed one. The RMDIR of all of it issues the SEAL, and the
removal behind that is one of a sealed checkpoint. If something else is done in it, or if it is not
all removed, the removals are plain ones.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

from tierfs.groups import PROFILES, Removed, in_force, is_finished, may_be_finished
from tierfs.model import Name
from tierfs.namespace.core import Core
from tierfs.namespace.finding.listing import Listings
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.grouping.leaving import is_in_peace
from tierfs.namespace.grouping.sealing import Sealing
from tierfs.namespace.overlay.nodes import DirectoryState
from tierfs.osio.processes import process_of

log = logging.getLogger(__name__)


class Finishing:
    """Looks at unsealed checkpoints when their removal begins."""

    def __init__(self, core: Core, lookup: Lookup, listings: Listings, sealing: Sealing) -> None:
        self._core = core
        self._lookup = lookup
        self._listings = listings
        self._sealing = sealing

    async def before_removal(self, state: DirectoryState, process: int) -> None:
        """`process`, or its thread of that id, is about to unlink something in `state`."""
        groups, scope = self._core.groups, self._core.tree.scope(state.id)
        if process and (sealed := groups.sealed_in(scope)) is not None:
            groups.unlinkers.unlinks(sealed, groups.follow(process_of(process)))
            return
        if process and groups.unlinkers.are_there:
            groups.unlinkers.goes_on(process_of(process), scope)
        group = groups.written_in(scope) if process else None
        if group is not None:
            groups.removes(group, groups.follow(process_of(process)))
        if group is None or group.seal is not None or group.record.older is not None:
            return
        if group.names is not None:
            return  # its removal has begun
        group.names = frozenset()
        if is_in_peace(self._core, group) and not self._core.calls.silent:
            await self._begin(group, process_of(process))

    async def _begin(self, group: Group, process: int) -> None:
        groups, touched = self._core.groups, group.touched
        try:
            removed = await self._removed(group, process)
        except OSError as error:
            log.info("checkpoint %s: cannot be looked at: %s", os.fsdecode(group.name), error)
            return
        if removed is None or groups.get(group.id) is not group or group.touched != touched:
            return
        group.names = removed.names
        if not self._core.backlog.seals_in(group.parent) and is_finished(removed):
            group.leaving = True
            groups.note_again(group)

    async def _removed(self, group: Group, process: int) -> Removed | None:
        """None: it is not finished."""
        groups = self._core.groups
        names = await self._names(self._core.tree.directories[group.id])
        profile = groups.patterns.profile_of(group.name)
        if profile is None or PROFILES[profile].end_marker or in_force(profile, names).end_marker:
            return None  # a marker says when it is whole
        if await self._sealing.negative(group, names) is not None:
            return None
        removed = Removed(
            profile=profile, names=frozenset(names), writers=group.writers,
            remover=groups.follow(process), settle=groups.settle, before=None,
            quiet_seconds=time.monotonic() - group.touched,
        )  # fmt: skip
        if not may_be_finished(removed):
            return None
        before = await self._sealing.sibling_names(group)
        return replace(removed, before=before or groups.last_removed.get(group.parent))

    async def _names(self, state: DirectoryState, above: Name = b"") -> list[Name]:
        """The paths of all files in `state`, from its checkpoint."""
        directories = set(await self._listings.directories(state))
        found = []
        for name in await self._listings.names(state):
            if name not in directories:
                found.append(above + name)
                continue
            node = await self._lookup.find(state, name)
            if node is not None and node.directory is not None:
                inner = self._core.tree.directories[node.directory]
                found += await self._names(inner, above + name + b"/")
        return found
