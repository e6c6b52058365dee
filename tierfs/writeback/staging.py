"""Files on their way into staging, and those that wait there for their turn."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import trio

from tierfs.errors import ObjectChanged
from tierfs.model import Kind, Op, Phase
from tierfs.shared import FileJob, Staged
from tierfs.writeback import steps
from tierfs.writeback.failures import path_of
from tierfs.writeback.rate import Rate
from tierfs.writeback.records import Transfer, TransferStatus
from tierfs.writeback.rooms import LocalFailure, Rooms

log = logging.getLogger(__name__)

LOCAL_STEPS = ("put.read", "put.ranges", "put.source")
"""Steps of staging that read the local object."""


@dataclass(slots=True)
class Ready:
    """A file in staging, verified, and the versions of its object that it shows."""

    staged: Staged
    data_version: int
    attr_version: int


class Stager:
    """Stages the content of PUTs; knows what is under way and what is ready."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._transfers: dict[int, Transfer] = {}
        self._ready: dict[int, Ready] = {}
        self._stale: dict[int, Staged] = {}
        self.rate = Rate(rooms.clock)
        self._discarded_send, self._discarded = trio.open_memory_channel[Staged](math.inf)

    async def stage(self, op: Op) -> None:
        """Bring the content of `op` into staging; its phase is STAGED after that.

        Raises ObjectChanged when it was written, or taken back, meanwhile; LocalFailure when its
        object cannot be read; OSError of the shared tier. Its phase is QUEUED then.
        """
        self._enter(op, Phase.TRANSFER)
        versions = op.data_version, op.attr_version
        transfer = Transfer(op, path_of(op), op.size, self._rooms.clock())
        self._transfers[op.row] = transfer
        try:
            await self.remove_stale(op)
            staged = await self._send(op, transfer, lambda: self._changed(op, versions[0]))
            self._ready[op.row] = Ready(staged, *versions)
            if self._changed(op, versions[0]):
                raise ObjectChanged
        except BaseException:
            self.restage(op)
            raise
        finally:
            del self._transfers[op.row]
        self._enter(op, Phase.STAGED)

    def ready(self, op: Op) -> Ready | None:
        """What is staged for `op`."""
        return self._ready.get(op.row)

    def used(self, op: Op) -> None:
        """What was staged for `op` is published."""
        self._ready.pop(op.row, None)
        self._stale.pop(op.row, None)

    async def remove_stale(self, op: Op) -> None:
        """Remove what was staged for `op` before and is not wanted any more."""
        stale = self._stale.get(op.row)
        if stale is not None:
            await self._rooms.on_shared(self._rooms.shared.discard, stale)
            del self._stale[op.row]

    def abandon(self, op: Op, staged: Staged) -> None:
        """Have `staged` removed when `op` is staged again or over."""
        self._stale[op.row] = staged

    def restage(self, op: Op) -> None:
        """Begin anew with `op`; what was staged for it is removed before that."""
        ready = self._ready.pop(op.row, None)
        if ready is not None:
            self.abandon(op, ready.staged)
        self._enter(op, Phase.QUEUED)
        if not self._rooms.alive(op):
            self.forget(op)

    def forget(self, op: Op) -> None:
        """`op` is over; what is still staged for it is removed in the background."""
        ready = self._ready.pop(op.row, None)
        stale = self._stale.pop(op.row, None)
        for staged in (ready.staged if ready is not None else None, stale):
            if staged is not None:
                self._discarded_send.send_nowait(staged)

    async def sweep(self) -> None:
        """Remove what was discarded, until cancelled."""
        async for staged in self._discarded:
            try:
                await self._rooms.on_shared(self._rooms.shared.discard, staged)
            except OSError as error:
                # it belongs to this generation of staging: the next start removes it
                log.info("staging: could not remove a discarded file: %s", error)

    def transfers(self) -> list[Transfer]:
        """What is under way."""
        return list(self._transfers.values())

    def moves(self, since: float) -> bool:
        """Whether any file on its way began, or was sent or read back a piece of, `since` then."""
        return any(max(each.started, each.moved) >= since for each in self._transfers.values())

    def moved(self, op: Op) -> float:
        """When something of `op` was last sent or read back; 0.0 if it is not in transfer."""
        transfer = self._transfers.get(op.row)
        return 0.0 if transfer is None else transfer.moved

    def report(self) -> tuple[TransferStatus, ...]:
        """What is under way, for people."""
        return tuple(TransferStatus(t.path, t.sent, t.total) for t in self._transfers.values())

    # -- steps ------------------------------------------------------------------------------------

    async def renew_attributes(self, op: Op, ready: Ready) -> None:
        """Give what is staged for `op` the attributes that its object has now.

        Raises FileNotFoundError when it is not there any more.
        """
        rooms = self._rooms
        version = op.attr_version
        found = await rooms.of_object(op.object, steps.look, rooms.store, op.object, Kind.FILE)
        job = self._job(op, found, source_fd=-1)
        await rooms.on_shared(rooms.shared.restore_attributes, ready.staged, job)
        ready.attr_version = version

    async def _send(self, op: Op, transfer: Transfer, changed: Callable[[], bool]) -> Staged:
        rooms = self._rooms
        spilled = rooms.store.spread.is_spilled(op.object)
        fd, found, written = await rooms.of_object(
            op.object, steps.open_source, rooms.store, op.object
        )
        try:
            if written:  # through a mapping or a descriptor that outlived an earlier daemon
                raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))
            transfer.total = found.attributes.size
            job = self._job(op, found, source_fd=fd)
            job = replace(job, changed=changed, progress=partial(self._progress, transfer))
            return await rooms.shared.stage_file(job)
        except OSError as error:
            if not spilled and _is_local(error):
                raise LocalFailure from error
            raise
        finally:
            # in a thread: the object may have lost its name, and this frees all its blocks
            with trio.CancelScope(shield=True), suppress(LocalFailure):
                await rooms.of_object(op.object, rooms.shared.system.close, "put.source_close", fd)

    def _job(self, op: Op, found: steps.Look, *, source_fd: int) -> FileJob:
        return FileJob(
            source_fd=source_fd, spilled=self._rooms.store.spread.place(op.object),
            size=found.attributes.size, row=op.row, name=op.name,
            attributes=found.attributes, xattrs=found.xattrs,
            place=self._rooms.places.place(op.parent), keep_setid="mode" in op.fields,
            plain=op.unsealed and self._rooms.shared.settings.sha256sums,
        )  # fmt: skip

    def _progress(self, transfer: Transfer, count: int) -> None:
        transfer.sent += count
        transfer.moved = self._rooms.clock()
        self.rate.add(count)

    def _changed(self, op: Op, data_version: int) -> bool:
        return op.data_version != data_version or not self._rooms.alive(op)

    def _enter(self, op: Op, phase: Phase) -> None:
        op.phase = phase
        if self._rooms.alive(op):
            self._rooms.backlog.update(op)


def _is_local(error: OSError) -> bool:
    """Whether reading the source failed; a step of the shared tier leaves another label."""
    return any(f"at step {step}" in getattr(error, "__notes__", ()) for step in LOCAL_STEPS)
