"""Says to other nodes in which unsealed checkpoints somebody of this node still writes.

What is left in one by a node that is gone does not become a part of what another one writes there
(docs/decisions/0025-who-takes-part-in-a-checkpoint.md).
"""

from __future__ import annotations

import logging

import trio

from tierfs.model import ObjectId
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group
from tierfs.shared import BEATS

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often it is looked at other nodes that something waits for."""


class TakingPart:
    """Takes part as long as the processes that write live, or ended well."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._left: set[ObjectId] = set()

    async def run(self) -> None:
        """Say it again and again, and look for what others say, until cancelled."""
        core = self._core
        while True:
            self._left &= {group.id for group in core.groups}
            try:
                for group in core.groups:
                    if core.places.exists(group.id):
                        await self._say(group)
                # a call that asks nothing would pass for an answer of a tier that hangs
                if core.shared.is_watching and await core.on_shared(core.shared.look_again):
                    core.writeback.hurry()
            except OSError as error:
                log.debug("cannot tell other nodes what is written here: %s", error)
            pause = core.shared.settings.lease / BEATS
            await trio.sleep(min(pause, LOOK_SECONDS) if core.shared.is_watching else pause)

    async def _say(self, group: Group) -> None:
        core, shared = self._core, self._core.shared
        if not core.groups.is_abandoned(group):
            self._left.discard(group.id)
            await core.on_shared(shared.say_alive, group.id)
        elif group.id not in self._left:
            await core.on_shared(shared.leave_off, group.id)
            self._left.add(group.id)
