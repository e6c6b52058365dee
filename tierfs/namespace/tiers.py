"""Calls on the two tiers: in threads of their own, on directories wherever they stand by then."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

import trio

from tierfs.errors import DirectoryGone
from tierfs.local import ObjectStore
from tierfs.model import ROOT, ObjectId, Op, OpKind, Phase
from tierfs.namespace.closing import Closing
from tierfs.namespace.outage.calls import Late, SharedCalls, Unanswered
from tierfs.namespace.overlay.nodes import Handle
from tierfs.order import Backlog
from tierfs.shared import Place, Places
from tierfs.threads import Pool, forget
from tierfs.writeback import WriteBack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of the local tier after which the shared one is tried."""

MOVES = (OpKind.RENAME, OpKind.SEAL, OpKind.REOPEN, OpKind.TRASH)
"""Ops that give a directory another place, or another one its place."""


NAME_BYTES = 64 << 10
"""What making a name takes at the most, with the blocks of its inode."""


class WithRoom(Protocol):
    """Answers what `attempt` does, a call of the local tier that takes `size` bytes.

    Tried again when it found the tier full and there may be room now. `small`: it may have what
    is kept for small files.
    """

    async def __call__(self, size: int, small: bool, attempt: Callable[[], Awaitable[T]]) -> T:
        """See above."""


async def without_room(size: int, small: bool, attempt: Callable[[], Awaitable[T]]) -> T:
    """Nobody makes room."""
    return await attempt()


async def never_lost(error: OSError) -> bool:
    """Nobody looks after the drive."""
    return False


class Tiers:
    """The part of `Core` that makes blocking calls."""

    store: ObjectStore
    places: Places
    backlog: Backlog
    writeback: WriteBack
    closing_shared: Closing
    calls: SharedCalls
    with_room: WithRoom
    is_drive_lost: Callable[[OSError], Awaitable[bool]]
    _local_threads: Pool

    async def local(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Runs a blocking call on the local tier in one of its threads.

        What is missing there was lost: that is an error of the tier, never a missing name (G10).
        """
        with found("local"):
            return await self._local_threads.run(call, *args)

    async def needs_spill(self, error: OSError) -> bool:
        """Whether what met `error` on the local tier can only go on on the shared one."""
        return error.errno in FULL or await self.is_drive_lost(error)

    async def making(self, object_id: ObjectId, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """As `of_object`, for what makes a name or an attribute: it gets of the reserve if it must.

        `call` leaves nothing behind when it fails, or can be made again.
        """
        if self.store.spread.is_spilled(object_id):
            return await self.of_object(object_id, call, *args)
        return await self.with_room(NAME_BYTES, True, lambda: self.local(call, *args))

    async def of_object(
        self, object_id: ObjectId, call: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Runs a blocking call on one object, in a thread of the tier on which it lies."""
        if not self.store.spread.is_spilled(object_id):
            return await self.local(call, *args)
        with found("shared"):
            return await self.calls.content(call, *args)

    async def on_shared(
        self, call: Callable[[Unpack[Ts]], T], *args: *Ts,
        hasty: bool = False, late: Late[T] = forget,
    ) -> T:  # fmt: skip
        """Runs a blocking call on names of the shared tier, see `SharedCalls.run`."""
        return await self.calls.run(call, *args, hasty=hasty, late=late)

    async def make(self, object_id: ObjectId, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """As `making`, of a new object: on the shared tier if the local one cannot have it."""
        spread = self.store.spread
        if not spread.only_far:
            try:
                return await self.making(object_id, call, *args)
            except OSError as error:
                if spread.is_spilled(object_id) or not await self.needs_spill(error):
                    raise
        spread.place_far(object_id)
        try:
            return await self.of_object(object_id, call, *args)
        except BaseException:
            spread.forget(object_id)
            raise

    async def on_shared_file(
        self, handle: Handle, call: Callable[[int], T], *, hasty: bool = False
    ) -> T:
        """Runs a blocking call on the shared file that `handle` has open.

        The descriptor stays open as long as the call lasts, also when nobody waits for it.
        """
        handle.uses += 1

        def over(_: object = None) -> None:
            handle.uses -= 1
            self.close_shared_file(handle)

        try:
            result = await self.calls.content(call, handle.shared_fd, hasty=hasty, late=over)
        except (Unanswered, trio.Cancelled):
            raise
        except BaseException:
            over()
            raise
        over()
        return result

    def close_shared_file(self, handle: Handle) -> None:
        """Closes the shared file of a released handle, once nothing uses it any more."""
        if handle.closed and not handle.uses and handle.shared_fd >= 0:
            fd, handle.shared_fd = handle.shared_fd, -1
            self.closing_shared.add(fd)

    def place(self, directory: ObjectId) -> Place:
        """Where `directory` stands on the shared tier now, to be checked when it is opened."""
        record = self.places.record(directory)
        if record is None or record.inode is None:
            raise OSError(errno.ESTALE, "directory is not on the shared tier", str(directory))
        return self.places.place(directory)

    async def at(
        self, directory: ObjectId, call: Callable[[Place, *Ts], T], *args: *Ts,
        hasty: bool = False, late: Late[T] = forget,
    ) -> T:  # fmt: skip
        """Runs a blocking call on a directory of the shared tier, wherever it stands by then.

        OSError(ESTALE) when somebody else moved or removed it.
        """
        while True:
            place = self.place(directory)
            try:
                return await self.on_shared(call, place, *args, hasty=hasty, late=late)
            except DirectoryGone:
                if not await self._moved_by_us(directory, place):
                    raise

    async def _moved_by_us(self, directory: ObjectId, place: Place) -> bool:
        """Whether our own rename explains that `directory` is not at `place` any more."""
        at = directory
        while at != ROOT:
            if await self.rename_under_way(at):
                return True
            record = self.places.record(at)
            if record is None:
                return False
            at = record.parent
        return self.places.exists(directory) and place != self.place(directory)

    async def rename_under_way(self, object_id: ObjectId) -> bool:
        """Waits for what moves `object_id` on the shared tier just now; False: nothing does."""
        op = self.publishing(object_id, *MOVES)
        if op is not None:
            await self.calls.wait(self.writeback.decided, op)
        return op is not None

    def publishing(self, object_id: ObjectId, *kinds: OpKind) -> Op | None:
        """An op of `object_id` that may have happened on the shared tier, or may not have yet."""
        for op in self.backlog.ops_of_object(object_id):
            if op.kind in kinds and op.phase is Phase.PUBLISHING:
                return op
        return None


@contextmanager
def found(tier: str) -> Iterator[None]:
    """What is missing on `tier` inside was lost: EIO, never a missing name (G10)."""
    try:
        yield
    except FileNotFoundError as error:
        raise OSError(
            errno.EIO, f"the {tier} tier lost a file that it needs", error.filename
        ) from error
