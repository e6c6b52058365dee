"""Joining the shared tier: at the start, or later where it does not answer then."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from tierfs.config import Settings
from tierfs.errors import TierError
from tierfs.health import is_failure
from tierfs.journal import Journal
from tierfs.local import ObjectStore
from tierfs.osio import OS
from tierfs.shared import SharedTier
from tierfs.threads import Pool

log = logging.getLogger(__name__)

SHARED_ID = "shared_id"
SHARED_INODE = "shared_inode"

JOIN_SECONDS = 5.0
"""How long the next worker of a mount waits for the shared tier before it goes on without."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The threads for each kind of work: a stalled tier takes its own threads only."""

    local: Pool
    shared: Pool
    reading: Pool
    publish: Pool
    transfer: Pool
    small: Pool


class Joining:
    """Opens the shared tier of one mount."""

    def __init__(
        self, settings: Settings, store: ObjectStore, journal: Journal, system: OS, pools: Pools
    ) -> None:
        self._settings = settings
        self._store = store
        self._journal = journal
        self._system = system
        self._pools = pools
        known, inode = journal.meta(SHARED_ID), journal.meta(SHARED_INODE)
        self._known = None if known is None else known.decode()
        self._inode = None if inode is None else int(inode)

    def now(self) -> SharedTier:
        """Joins. Blocking; TierError, and then nothing was made, for what is refused."""
        return self._joined(self._join())

    async def in_time(self) -> SharedTier:
        """Joins, or leaves that to `SharedTier.beat`: the mount is there and has to go on."""
        if self._known is None or self._inode is None:
            return self.now()
        with trio.move_on_after(JOIN_SECONDS):
            try:
                return self._joined(await self._pools.publish.run(self._join, late=self._too_late))
            except (TierError, OSError) as error:
                failed = isinstance(error, TierError) or is_failure(error)
                if not failed:
                    raise
                log.error("going on without the shared tier: %s", error)
                return self._later()
        log.error("going on without the shared tier: it does not answer")
        return self._later()

    def leave(self, tier: SharedTier) -> None:
        """Lets go of it. Blocking."""
        if tier.spilled_fd >= 0:
            self._system.close("spill.directory", tier.spilled_fd)
        tier.close()

    def _too_late(self, tier: SharedTier | None) -> None:
        if tier is not None:
            self.leave(tier)

    def _join(self) -> SharedTier:
        tier = self._tier(None)
        try:
            tier.probe()
            tier.register(self._settings.node)
            tier.spill_directory()
        except BaseException:
            tier.close()
            raise
        return tier

    def _joined(self, tier: SharedTier) -> SharedTier:
        assert tier.shared_id is not None
        if self._known is None:
            self._journal.set_meta(SHARED_ID, tier.shared_id.encode())
        if self._inode != tier.inode:
            self._journal.set_meta(SHARED_INODE, str(tier.inode).encode())
        self._store.spread.attach(tier.spilled_fd)
        tier.companions.append(lambda there: self._turn(tier, there=there))
        return tier

    def _later(self) -> SharedTier:
        tier = self._tier(self._inode)

        def join() -> None:
            tier.probe()
            tier.register(self._settings.node)
            self._store.spread.attach(tier.spill_directory())
            tier.companions.append(lambda there: self._turn(tier, there=there))

        tier.join = join
        return tier

    def _turn(self, tier: SharedTier, *, there: bool) -> None:
        self._store.spread.far.turn(tier.spilled_fd if there else None)

    def _tier(self, absent: int | None) -> SharedTier:
        pools = self._pools
        return SharedTier(
            self._settings.shared, self._store.member, self._system, self._settings,
            shared_threads=pools.publish, transfer_threads=pools.transfer,
            small_threads=pools.small, expected_id=self._known, absent=absent,
        )  # fmt: skip


def try_shared(settings: Settings, system: OS, pools: Pools) -> None:
    """Asks a shared tier whether it will do, before anything is made in the local one."""
    tier = SharedTier(
        settings.shared, "0" * 32, system, settings,
        shared_threads=pools.publish, transfer_threads=pools.transfer,
    )  # fmt: skip
    try:
        tier.probe()
    finally:
        tier.close()
