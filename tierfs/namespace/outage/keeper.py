"""Keeps what is known of the directories in use fresh, in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from tierfs.model import ROOT, Attributes, Name, ObjectId
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import FRESH_SECONDS, Lookup, watching
from tierfs.namespace.outage.announced import look_at
from tierfs.namespace.outage.spelling import spell
from tierfs.namespace.overlay.nodes import DirectoryState, Node

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0

WRITE_SECONDS = 3.0
"""Not more often it is written down."""

FIRST_LOOKS = 5
"""So often a directory in which names change all the time is looked at for the first time."""


class Keeper:
    """Looks at the directories of `Core.announced`, one after the other.

    A lookup of its node keeps each of them known, whatever the kernel forgets.

    Attributes:
        write_down: keeps a text for the next worker of the mount.
    """

    def __init__(self, core: Core, lookup: Lookup, forget: Callable[[int, int], None]) -> None:
        self._core = core
        self._lookup = lookup
        self._forget = forget
        self._held: dict[ObjectId, Node] = {}
        self._written = 0
        self.write_down: Callable[[str], None] = lambda text: None

    async def run(self) -> None:
        """Until cancelled."""
        core, announced, pause_until = self._core, self._core.announced, 0.0
        while True:
            if not core.calls.silent:
                try:
                    await self._round()
                except OSError as error:
                    log.debug("directories in use: %s", error)
            now = time.monotonic()
            if announced.changes != self._written and now >= pause_until:
                self._written, pause_until = announced.changes, now + WRITE_SECONDS
                self.write_down(spell(announced))
            await trio.sleep(ROUND_SECONDS)

    async def _round(self) -> None:
        core, announced = self._core, self._core.announced
        announced.used(ROOT)
        for path in core.settings.components:
            await self._announce(path)
        for directory in announced.due(time.monotonic()):
            for above in core.tree.scope(directory) if directory in core.tree.directories else ():
                if announced.get(above) is None:
                    announced.used(above)
        for directory in announced.surplus():
            self._let_go(directory)
        for directory in announced.due(time.monotonic()):
            if core.calls.silent:
                return
            await self._look(directory)

    async def _announce(self, path: tuple[Name, ...]) -> None:
        """A directory of the configuration; one that is not there yet is made in those above."""
        state = self._core.tree.directories[ROOT]
        for name in path:
            node = await self._lookup.find(state, name)
            if node is None or node.directory is None:
                return
            state = self._core.tree.directories[node.directory]
            self._core.announced.used(state.id)
            self._hold(state.id)

    async def _look(self, directory: ObjectId) -> None:
        core, announced = self._core, self._core.announced
        state, started = core.tree.directories.get(directory), time.monotonic()
        if state is None or state.removed:
            announced.forget(directory)
            self._let_go(directory)
            return
        self._hold(directory)
        try:
            if core.places.exists(directory):
                await self._ask(state)
        except OSError as error:
            log.debug("directory %x: %s", directory, error)
        now = time.monotonic()
        announced.later(directory, now, now - started)

    async def _ask(self, state: DirectoryState) -> None:
        core, announced = self._core, self._core.announced
        for _ in range(FIRST_LOOKS):
            with watching(state) as changed:
                before = announced.begin_look(state.id)
                found = await core.at(state.id, look_at, core.shared, before)
            if before is not None or not changed:
                break  # else what was committed meanwhile is in neither
        announced.looked(state.id, found, changed)
        state.known = Attributes.of(found.here.st)
        state.known_until = time.monotonic() + FRESH_SECONDS

    def _hold(self, directory: ObjectId) -> None:
        node = self._core.tree.by_object.get(directory)
        if directory not in self._held and node is not None and node.directory == directory:
            node.lookups += 1
            self._held[directory] = node

    def _let_go(self, directory: ObjectId) -> None:
        node = self._held.pop(directory, None)
        if node is not None:
            self._forget(node.ino, 1)
