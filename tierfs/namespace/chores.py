"""What is done behind: disposing, clean copies signed again or given up, orphans."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable

import trio

from tierfs.journal import DropObject, SaveClean
from tierfs.model import CleanRecord, Signature
from tierfs.namespace.clock import SETTLE_SECONDS
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import LocalObject

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5

SWEEP_SECONDS = 3600.0
"""How often trash and quarantine are looked through."""


class Chores:
    """A queue of small jobs, and a clock that ticks.

    Attributes:
        forgetting: shared inodes whose local copy is about to go.
        tidy: called now and then.
    """

    def __init__(self, core: Core, drop: Callable[[list[CleanRecord]], Awaitable[None]]) -> None:
        """`drop`: lets go of clean copies."""
        self._core = core
        self._drop = drop
        self._send, self._receive = trio.open_memory_channel[Callable[[], Awaitable[None]]](
            float("inf")
        )
        self.clock = time.monotonic
        self.forgetting: set[int] = set()
        self.tidy: Callable[[], object] = lambda: None

    def _soon(self, job: Callable[[], Awaitable[None]]) -> None:
        self._send.send_nowait(job)

    # -- what others leave to be done ------------------------------------------------------------

    def dispose_if_unused(self, obj: LocalObject) -> None:
        """Removes `obj`'s files if nothing needs it."""
        node = self._core.tree.by_object.get(obj.id)
        if self._core.unused(obj):
            self._soon(lambda: self._core.dispose(obj))
        if node is not None and obj.pending == 0:
            left = self._core.tree.discard_if_unused(node)
            if left is not None and left is not obj:
                self._soon(lambda: self._core.dispose(left))

    def dispose(self, obj: LocalObject) -> None:
        """Removes the files of an object that is out of the tree already."""
        self._soon(lambda: self._core.dispose(obj))

    def forget_clean(self, inode: int) -> None:
        """The shared file `inode` is gone: its local copy goes too."""

        async def job() -> None:
            try:
                record = await self._core.journal.clean_copy(inode)
                if record is not None:
                    await self._drop([record])
            finally:
                self.forgetting.discard(inode)

        self.forgetting.add(inode)
        self._soon(job)

    def sign_again(self, st: os.stat_result, *, times: bool) -> None:
        """We changed attributes of a shared file: its local copy is still good (G10)."""
        fresh = Signature.of(st)

        async def job() -> None:
            record = await self._core.journal.clean_copy(fresh.inode)
            if record is None:
                return
            old = record.signature
            if old.size == fresh.size and (times or old.mtime_ns == fresh.mtime_ns):
                self._core.journal.post(SaveClean(dataclasses.replace(record, signature=fresh)))

        self._soon(job)

    # -- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._jobs)
            nursery.start_soon(self._ticks)
            nursery.start_soon(self._core.journal.run)
            nursery.start_soon(self._core.closing.run)
            nursery.start_soon(self._core.closing_shared.run)
            nursery.start_soon(self._sweep_orphans)
            nursery.start_soon(self._sweep_put_away)

    async def _jobs(self) -> None:
        async for job in self._receive:
            try:
                await job()
            except OSError as error:
                log.warning("cleaning up: %s", error)

    async def _ticks(self) -> None:
        while True:
            await trio.sleep(TICK_SECONDS)
            self._settle_times()
            self._dispose_spare()
            self.tidy()

    def _dispose_spare(self) -> None:
        spare, self._core.spare = self._core.spare, []
        for obj in spare:
            # a directory that is changed again has a new object of the same id by now
            if not obj.pending and self._core.tree.objects.get(obj.id) is obj:
                self._core.journal.post(DropObject(obj.id))
                self.dispose_if_unused(obj)

    def _settle_times(self) -> None:
        now = self.clock()
        for directory in list(self._core.touched):
            state = self._core.tree.directories.get(directory)
            if state is None:
                self._core.touched.discard(directory)
            elif state.is_pending() or not self._core.backlog.nothing_but(None, directory):
                state.settled = now + SETTLE_SECONDS
            elif state.settled <= now:
                state.changed_ns = 0
                self._core.touched.discard(directory)

    async def _sweep_put_away(self) -> None:
        """Deletes on the shared tier what has been in quarantine for long enough, now and then."""
        shared, keep = self._core.shared, self._core.settings.incomplete_keep
        while True:
            for sweep in (shared.sweep_trash, shared.sweep_quarantine):
                try:
                    await self._core.on_shared(sweep, keep)
                except OSError as error:
                    log.info("sweeping trash and quarantine: %s", error)
            await trio.sleep(SWEEP_SECONDS)

    async def _sweep_orphans(self) -> None:
        """Removes objects that a killed daemon left and no row names."""
        core = self._core
        known = set(core.tree.objects)
        ids = await core.local(lambda: list(core.store.ids()))
        known |= core.tree.objects.keys()
        orphans = [id_ for id_ in ids if id_ not in known]
        if not orphans:
            return
        kept = await core.journal.clean_objects(orphans)
        for id_ in orphans:
            if id_ in kept:
                continue
            try:
                await core.remove_orphan(id_)
            except OSError as error:
                log.info("an object that nothing names stays until the next start: %s", error)
