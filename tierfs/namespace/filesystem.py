"""The file system without FUSE: its parts, put together."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from tierfs.capacity import Usage
from tierfs.model import JournalSnapshot, Name, Op, OpKind, OpState
from tierfs.namespace.changing.decisions import Decisions
from tierfs.namespace.changing.policing import PolicedAttributes, PolicedFiles, PolicedNames
from tierfs.namespace.changing.scratch import Scratch
from tierfs.namespace.chores import Chores
from tierfs.namespace.content.data import Data
from tierfs.namespace.content.longopen import LongOpen
from tierfs.namespace.content.opening import Opening
from tierfs.namespace.content.ranges import Ranges
from tierfs.namespace.content.settling import Settling
from tierfs.namespace.content.snapshots import Snapshots
from tierfs.namespace.core import Core
from tierfs.namespace.finding.inheritance import Inheritance
from tierfs.namespace.finding.listing import Listings
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.finding.virtual import Virtual
from tierfs.namespace.grouping.finishing import Finishing
from tierfs.namespace.grouping.retention import Retention
from tierfs.namespace.grouping.sealing import Sealing
from tierfs.namespace.grouping.survey import Survey
from tierfs.namespace.outage.keeper import Keeper
from tierfs.namespace.outage.watch import Watch
from tierfs.namespace.outcome import Outcomes
from tierfs.namespace.overlay.nodes import DirectoryState, Handle
from tierfs.namespace.restart.begun import Begun
from tierfs.namespace.restart.known import Known
from tierfs.namespace.restart.recovery import restore
from tierfs.namespace.restart.remembered import Remembered
from tierfs.namespace.room.backpressure import Backpressure
from tierfs.namespace.room.drive import Drive
from tierfs.namespace.room.eviction import Eviction
from tierfs.namespace.room.promotion import Promotions
from tierfs.namespace.room.space import Space
from tierfs.namespace.room.spilling import Spilling
from tierfs.namespace.room.waiting import Room
from tierfs.namespace.room.warming import Warming
from tierfs.namespace.watchdog import Watchdog
from tierfs.writeback import WriteBack


class FileSystem:
    """What a mount offers, for `kernel` to serve and `control` to report on.

    Attributes:
        lookup, files, names, listings, attributes: the calls of a file system by concern.
        virtual: what tierfs itself says of a file.
        outcomes: what the write-back calls at the end of an op.
        watch: how the shared tier is.
    """

    def __init__(self, core: Core, local: Path) -> None:
        self.core = core
        self.virtual = Virtual(core, local)
        self.tree = core.tree
        self.eviction = Eviction(core, lambda numbers: self.files.written_of(numbers))
        self.chores = Chores(core, self.eviction.drop)
        self.lookup = Lookup(core)
        self.inheritance = Inheritance(core, self.lookup)
        self.data = Data(core, self.lookup)
        self.spilling = Spilling(core)
        self.drive = Drive(core)
        core.is_drive_lost = self.drive.is_lost
        self.room = Room(core, self.eviction)
        core.with_room = self.room.with_room
        self.backpressure = Backpressure(core)
        self.ranges = Ranges(core, self.data, self.spilling, self.room, self.drive)
        self.settling = Settling()
        opening = Opening(core, self.lookup, self.data, self.spilling)
        self.promotions = Promotions(
            core, self.lookup, self.data, self.eviction, lambda ino, count: self.forget(ino, count)
        )
        self.warming = Warming(core, self.lookup, self.data, self.eviction, self.promotions)
        opening.promote, opening.promise = self.promotions.want, self.eviction.promise
        self.files = PolicedFiles(
            core, self.lookup, self.data, opening, self.inheritance, self.drive, self.settling.add
        )
        self.snapshots = Snapshots(core, self.lookup, self.data, opening, self.files.ending.number)
        self.files.commit = self.drive.and_commit(self.snapshots.commit)
        self.watchdog = Watchdog(core.tree, self.snapshots.waits_its_turn)
        self.long_open = LongOpen(core, self.data, self.snapshots)
        self.begun = Begun(core)
        self.listings = Listings(core, self.lookup, self.forget)
        self.chores.tidy = self.listings.scans.tidy
        self.decisions = Decisions(core)
        self.names = PolicedNames(
            core, self.lookup, self.files, self.listings, self.inheritance, self.decisions
        )
        self.scratch = self.names.scratch = Scratch(core, self.data, opening, self.files)
        self.attributes = PolicedAttributes(core, self.lookup, self.files, self.inheritance)
        self.outcomes = Outcomes(core, self.chores)
        core.calls.on_answer = lambda: core.writeback.hurry()
        self.watch = Watch(core.shared, core.calls)
        self.keeper = Keeper(core, self.lookup, self.forget)
        self.space = Space(core, self.watch)
        self.sealing = Sealing(core, self.lookup, self.decisions)
        self.finishing = Finishing(core, self.lookup, self.listings, self.sealing)
        self.retention = Retention(core, self.lookup, self.listings, self.names, self.forget)
        self.survey = Survey(core, self.lookup, self.listings, self.forget)

    def start(self, writeback: WriteBack, snapshot: JournalSnapshot) -> None:
        """Takes up what the journal holds. Blocking, O(pending)."""
        self.core.writeback = writeback
        self._take_stock()
        restore(self.core, snapshot)

    def _take_stock(self) -> None:
        core = self.core
        core.pins.load()
        # before the first file is opened
        usage, now = Usage(*core.store.usage()), time.monotonic()
        core.promises.looked(usage, {}, core.settings.reserve, now)

    def go_on(
        self, writeback: WriteBack, snapshot: JournalSnapshot, remembered: Remembered,
        fds: dict[int, int],
    ) -> None:  # fmt: skip
        """Takes up the journal and what the kernel knows of an earlier worker. Blocking.

        `fds`: descriptors that were kept, by the number of their open file.
        """
        self.core.writeback = writeback
        self._take_stock()
        known = Known(self.core, remembered, fds)
        restore(self.core, snapshot, known)
        self.files.restore(known.handles, remembered.highest_handle)
        self.listings.restore(remembered.listings.values(), remembered.highest_listing)
        puts = {op.object: op.state for op in snapshot.ops if op.kind is OpKind.PUT}
        opened = {id_ for id_, state in puts.items() if state in (OpState.OPEN, OpState.CLOSED)}
        begun = {id_ for id_ in remembered.begun & opened if puts[id_] is OpState.OPEN}
        self.begun.take_up(begun)
        for node, obj in known.unsettled(opened - begun):
            self.settling.add(node, obj)

    def submit_restored(self, ops: list[Op]) -> None:
        """Hands the restored ops to the write-back."""
        self.core.writeback.submit_restored(op for op in ops if not op.is_open)
        closed = [(op.path, op.size) for op in ops if op.kind is OpKind.PUT and not op.is_open]
        self.core.expected.restore(closed)
        self.core.groups.take_up_removals()
        self.retention.resume()

    async def run(self) -> None:
        """Does what is done behind; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.chores.run)
            nursery.start_soon(self.eviction.run)
            nursery.start_soon(self.room.run)
            nursery.start_soon(self.backpressure.run)
            nursery.start_soon(self.drive.run)
            nursery.start_soon(self.watchdog.run)
            nursery.start_soon(self.watch.run)
            nursery.start_soon(self.keeper.run)
            nursery.start_soon(self.sealing.run)
            nursery.start_soon(self.retention.run)
            nursery.start_soon(self.promotions.run)
            nursery.start_soon(self.scratch.sweep)
            nursery.start_soon(self.settling.run, self.files)
            nursery.start_soon(self.begun.run)
            nursery.start_soon(self.long_open.run, self.files.handles)

    async def flush(self, handle: Handle, thread: int) -> None:
        """Answers a close of `thread`: what was written is safe, and not too much is pending."""
        await self.files.flush(handle, thread)
        op = handle.object.put if handle.writable and handle.object is not None else None
        if op is not None and op.state is OpState.CLOSED and self.backpressure.limited:
            await self.backpressure.wait(op, thread)

    async def unlink(self, state: DirectoryState, name: Name, process: int) -> None:
        """Removes a name, for the process or thread `process`; open handles go on."""
        await self.finishing.before_removal(state, process)
        await self.names.unlink(state, name)

    def forget(self, ino: int, count: int) -> None:
        """The kernel forgot a node."""
        unused = self.tree.forget(ino, count)
        if unused is not None:
            self.chores.dispose(unused)
