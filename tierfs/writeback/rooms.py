"""The lower rooms that write-back works with, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple, Unpack

from tierfs.journal import Journal
from tierfs.local import ObjectStore
from tierfs.model import ObjectId, Op
from tierfs.order import Backlog
from tierfs.shared import Places, SharedTier
from tierfs.threads import Pool
from tierfs.writeback.records import Statistics

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LocalFailure(Exception):
    """The local tier failed to give the object of an op; the cause is the OSError."""


@dataclass(slots=True)
class Rooms:
    """What every part of write-back needs.

    Attributes:
        clock: monotonic seconds, the same clock that all users of `backlog` read.
        live: ops submitted and not over, by row.
    """

    backlog: Backlog
    places: Places
    journal: Journal
    store: ObjectStore
    shared: SharedTier
    local_threads: Pool
    clock: Callable[[], float]
    statistics: Statistics = field(default_factory=Statistics)
    live: dict[int, Op] = field(default_factory=dict)

    def alive(self, op: Op) -> bool:
        """Whether `op` is submitted and neither committed nor dropped."""
        return self.live.get(op.row) is op

    async def local(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a blocking call on the local tier in a thread; LocalFailure for its OSError."""
        try:
            return await self.local_threads.run(call, *args)
        except OSError as error:
            raise LocalFailure from error

    async def of_object(
        self, object_id: ObjectId, call: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Run a blocking call on one object in a thread of the tier on which it lies.

        LocalFailure if that is the local one; else OSError, as of any call on the shared tier.
        """
        if self.store.spread.is_spilled(object_id):
            return await self.on_shared(call, *args)
        return await self.local(call, *args)

    async def on_shared(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a blocking call on names of the shared tier in a thread."""
        return await self.shared.shared_threads.run(call, *args)
