"""Says to other nodes in which unsealed checkpoints somebody of this node still writes.

What is left in one by a node that is gone does not become a part of what another one writes there,
and none is published while a node has not sent all that it has for it
(docs/decisions/0025-who-takes-part-in-a-checkpoint.md).
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass

import trio

from tierfs.model import ObjectId, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group
from tierfs.shared import BEATS

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often it is looked at other nodes that something waits for, and at what is still to be sent.
"""

STOP_SECONDS = 1.0
"""How long the end waits until it is said that all is sent."""


@dataclass(frozen=True, slots=True)
class _Said:
    busy: bool
    at: float


class TakingPart:
    """Takes part as long as the processes that write live, or ended well."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._left: set[ObjectId] = set()
        self._said: dict[ObjectId, _Said] = {}
        self._wakeup = trio.Event()

    def changed(self, group: Group) -> None:
        """Something was done in `group`: if it was said that all is sent, that is no longer so."""
        said = self._said.get(group.id)
        if said is None or not said.busy:
            self._wakeup.set()

    async def run(self) -> None:
        """Say it again and again, and look for what others say, until cancelled."""
        try:
            while True:
                self._wakeup = trio.Event()
                await self.say_all()
                with trio.move_on_after(min(self._beat(), LOOK_SECONDS)):
                    await self._wakeup.wait()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_SECONDS):
                await self.say_all(quiet=0.0)

    async def say_all(self, quiet: float | None = None) -> None:
        """Say it once, of each that is there; `quiet`: how long one that is not busy has been."""
        core = self._core
        if quiet is None:
            quiet = min(core.groups.settle, self._beat())
        here = {group.id for group in core.groups}
        self._left &= here
        self._said = {each: said for each, said in self._said.items() if each in here}
        for group in core.groups:
            if core.places.exists(group.id):
                try:
                    await self._say(group, quiet)
                except OSError as error:  # it is of this one, and says nothing of the others
                    name = os.fsdecode(group.name)
                    log.debug("checkpoint %s: others cannot be told of it: %s", name, error)
        try:
            # a call that asks nothing would pass for an answer of a tier that hangs
            if core.shared.is_watching and await core.on_shared(core.shared.look_again):
                core.writeback.hurry()
        except OSError as error:
            log.debug("cannot look at what other nodes write: %s", error)

    async def _say(self, group: Group, quiet: float) -> None:
        core, shared = self._core, self._core.shared
        if core.groups.is_abandoned(group):
            if group.id not in self._left:
                await core.on_shared(shared.leave_off, core.places.group(group.id))
                self._left.add(group.id)
            return
        self._left.discard(group.id)
        now, said = time.monotonic(), self._said.get(group.id)
        busy = self._is_busy(group, quiet)
        if said is None or said.busy != busy or now - said.at >= self._beat():
            await core.on_shared(shared.say_alive, core.places.group(group.id), busy)
            self._said[group.id] = _Said(busy, now)

    def _is_busy(self, group: Group, quiet: float) -> bool:
        """Whether files of `group` are open or not sent, or were until `quiet` seconds ago.

        What cannot be sent does not count: that is said in another way (broken.py).
        """
        backlog = self._core.backlog
        return (
            time.monotonic() - group.touched < quiet
            or bool(backlog.open_files(group.id))
            or any(
                op.kind is not OpKind.SEAL and op.mark is None and not op.log
                for op in backlog.under(group.id)
            )
        )

    def _beat(self) -> float:
        return self._core.shared.settings.lease / BEATS
