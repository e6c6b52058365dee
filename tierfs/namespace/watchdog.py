"""Requests of the kernel that are not answered yet, so that one that hangs is named.

A handler may wait for as long as a tier takes; nothing is done about it here. What it waits for is
told to whoever looks into the log or asks for the status.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from tierfs.model import Name
from tierfs.namespace.overlay.nodes import Node
from tierfs.namespace.overlay.tree import Tree

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
HANGS_SECONDS = 5.0
"""From here on the status names a request."""

LOGGED_SECONDS = 30.0
"""From here on the log does, too."""


@dataclass(frozen=True, slots=True)
class Hanging:
    """A request that is not answered yet.

    Attributes:
        operation: the kernel's word for it, in lower case.
        path: below the root of the mount, as far as it is known.
        seconds: since it came.
    """

    operation: str
    path: bytes
    seconds: float


class Watchdog:
    """All requests that wait for their answer, by number.

    `waits_its_turn`: whether those on a node wait for a commit, while files are being sent.
    """

    def __init__(self, tree: Tree, waits_its_turn: Callable[[Node], bool]) -> None:
        self._tree = tree
        self._waits_its_turn = waits_its_turn
        self._told: set[int] = set()
        self._waiting: dict[int, tuple[str, int, Name, float]] = {}
        self._logged: set[int] = set()

    def begun(self, unique: int, operation: str, nodeid: int, name: Name = b"") -> None:
        """A request came; `name` is one in the directory `nodeid`, if it is about one."""
        self._waiting[unique] = (operation, nodeid, name, time.monotonic())

    def ended(self, unique: int) -> None:
        """It was answered."""
        known = self._waiting.pop(unique, None)
        self._told.discard(unique)
        if known is not None and unique in self._logged:
            self._logged.discard(unique)
            log.info("request %d (%s) was answered after all", unique, known[0])

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether none waits."""
        return not self._waiting

    def hanging(self, now: float) -> list[Hanging]:
        """Those that have waited for more than HANGS_SECONDS at `now` (time.monotonic)."""
        return [self._describe(unique, now) for unique in self._older(now, HANGS_SECONDS)]

    def look(self, now: float) -> None:
        """Names in the log, once each, those that have waited for more than LOGGED_SECONDS."""
        for unique in self._older(now, LOGGED_SECONDS):
            node = self._tree.nodes.get(self._waiting[unique][1])
            waits = node is not None and self._waits_its_turn(node)
            told = self._told if waits else self._logged
            if unique in told:
                continue
            told.add(unique)
            found = self._describe(unique, now)
            said = (unique, found.operation, os.fsdecode(found.path), found.seconds)
            if waits:
                log.info(
                    "request %d: %s of /%s waits for its commit; what is sent is slow: "
                    "%.0f s so far",
                    *said,
                )
            else:
                log.warning(
                    "request %d hangs: %s of /%s for %.0f s; see the tiers in tierfs status", *said
                )

    async def run(self) -> None:
        """Looks now and then; until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.look(time.monotonic())

    def _older(self, now: float, seconds: float) -> list[int]:
        return [unique for unique, it in self._waiting.items() if now - it[3] > seconds]

    def _describe(self, unique: int, now: float) -> Hanging:
        operation, nodeid, name, since = self._waiting[unique]
        return Hanging(operation, self._path(nodeid, name), now - since)

    def _path(self, nodeid: int, name: Name) -> bytes:
        node = self._tree.nodes.get(nodeid)
        if node is None:
            return b"?"
        if node.directory is not None:
            names = (*self._tree.path(node.directory), *([name] if name else []))
        elif (place := node.a_name()) is not None and place[0] in self._tree.directories:
            names = (*self._tree.path(place[0]), place[1])
        else:
            return b"?"
        return b"/".join(names)
