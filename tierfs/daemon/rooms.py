"""Opening the tiers and the journal, in the order in which a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from tierfs.capacity import Limits
from tierfs.config import Settings
from tierfs.daemon.joining import Joining, Pools, try_shared
from tierfs.daemon.mounting import check_mountpoint, check_overlap, is_dead_mount, umount
from tierfs.daemon.succession import Succession
from tierfs.errors import TierInUse
from tierfs.groups import Patterns
from tierfs.journal import DropOp, Journal, SaveRequest
from tierfs.local import ObjectStore, noted_salvage
from tierfs.model import JournalSnapshot, Kind, ObjectId, OpKind, OpState
from tierfs.namespace.core import Core
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.settings import NamespaceSettings
from tierfs.order import Backlog, OrderSettings
from tierfs.osio import OS, idle_io, make_os
from tierfs.policies import Policies
from tierfs.shared import Places, SharedTier
from tierfs.threads import Pool
from tierfs.writeback import WriteBack, WritebackSettings

JOURNAL = "journal.db"
LOCAL_THREADS = 16
SHARED_THREADS = 16
TRANSFER_THREADS = 8
SMALL_THREADS = 4
SPARE_THREADS = 48
"""How many more of each kind in the place of those whose calls hang."""

MISSED = (
    "pending when the local drive failed, and the mount went on without it: see which version is "
    "right, then run tierfs accept or tierfs discard"
)
ENDING_SECONDS = 15.0
"""How long a daemon that is ending is waited for: it takes `service.END_SECONDS` at the most, and
then its process has to go, which on a busy machine takes a while."""

ENDING_POLL_SECONDS = 0.05

TRANSFER_NICE = 20
"""Above that of the daemon: copying and hashing give way to applications."""


@dataclass(slots=True)
class Rooms:
    """All rooms of one mount.

    Attributes:
        salvaged: what was salvaged when the journal of the local tier was lost, if it ever was.
    """

    settings: Settings
    mountpoint: str
    store: ObjectStore
    journal: Journal
    shared: SharedTier
    fs: FileSystem
    writeback: WriteBack
    backlog: Backlog
    started: float
    salvaged: dict[str, object] | None = None


async def build(
    mountpoint: str,
    settings: Settings,
    stack: AsyncExitStack,
    runtime: Path,
    succession: Succession | None = None,
    system: OS | None = None,
) -> Rooms:
    """Checks and opens everything. TierfsError, and then nothing was made, for what is refused.

    `runtime` is the runtime directory of the mount, in memory.
    """
    goes_on = succession is not None and succession.device is not None
    pools = Pools(
        Pool("local", LOCAL_THREADS),
        Pool("shared", SHARED_THREADS, spare=SPARE_THREADS),
        Pool("read", SHARED_THREADS, spare=SPARE_THREADS),
        Pool("publish", SHARED_THREADS, spare=SPARE_THREADS),
        Pool(
            "transfer", TRANSFER_THREADS, nice=TRANSFER_NICE, spare=SPARE_THREADS, prepare=idle_io
        ),
        Pool(
            "transfer-small",
            SMALL_THREADS,
            nice=TRANSFER_NICE,
            spare=SPARE_THREADS,
            prepare=idle_io,
        ),
    )
    system = system or make_os()
    check_overlap(mountpoint, settings.local, settings.shared)
    if not goes_on:
        check_mountpoint(mountpoint)
    dead = not goes_on and is_dead_mount(mountpoint)
    if not (settings.local / "VERSION").exists():
        try_shared(settings, system, pools)
    store = await _free_store(settings, system)
    stack.callback(store.close)
    if dead:
        umount(mountpoint, detach=True)
    # a journal that was lost beside objects must not be taken for a fresh start
    journal = Journal.open(settings.local / JOURNAL, system, create=store.is_empty(), stand_in=True)
    stack.callback(journal.close)
    journal.write_ahead(system, runtime, take_up=not store.boot_changed)
    joining = Joining(settings, store, journal, system, pools)
    shared = await joining.in_time() if goes_on else joining.now()
    stack.callback(joining.leave, shared)
    rooms = _assemble(mountpoint, settings, system, store, journal, shared, pools, succession)
    noted = noted_salvage(system, settings.local)
    rooms.salvaged = json.loads(noted) if noted is not None else None
    return rooms


async def _free_store(settings: Settings, system: OS) -> ObjectStore:
    """The local tier; one whose last mount is just ending is waited for. TierError."""
    limit = trio.current_time() + ENDING_SECONDS
    while True:
        try:
            return ObjectStore.open(settings.local, system)
        except TierInUse as error:
            if not error.ending or trio.current_time() > limit:
                raise
        await trio.sleep(ENDING_POLL_SECONDS)


def namespace_settings(mountpoint: str, settings: Settings) -> NamespaceSettings:
    """What the namespace has to know of `settings`."""
    return NamespaceSettings(
        mountpoint=os.fsencode(mountpoint),
        open_hold=settings.open_hold,
        tier_wait=settings.tier_wait,
        components=tuple(
            tuple(os.fsencode(part) for part in path.split("/") if part)
            for path in settings.components
        ),
        outage_reads=settings.outage_reads,
        watermark=settings.watermark,
        watermark_low=settings.watermark_low,
        reserve=settings.passthrough_reserve,
        small_file=settings.small_file,
        small_reserve=settings.small_reserve,
        expect_bytes=settings.expect_bytes,
        full_wait=settings.full_wait,
        limits=Limits(settings.max_pending_bytes, settings.max_pending_age),
        group_settle=settings.group_settle,
        incomplete_keep=settings.incomplete_keep,
        log_interval=settings.log_interval,
        keep_last=settings.keep_last,
        keep_every=settings.keep_every,
    )


def writeback_settings(settings: Settings) -> WritebackSettings:
    """What write-back has to know of `settings`."""
    return WritebackSettings(
        transfer_files=settings.transfer_files,
        delete_hold=settings.delete_hold,
        full_hold=settings.full_hold,
    )


def _start(
    fs: FileSystem, writeback: WriteBack, snapshot: JournalSnapshot, succession: Succession | None
) -> None:
    """Takes up what is pending, and what the kernel knows of an earlier worker."""
    if succession is None:
        fs.start(writeback, snapshot)
        return
    succession.begin(fs)
    succession.note_directories(fs)
    if succession.device is None:
        fs.start(writeback, snapshot)
    else:
        # in the journal they stay until they are answered, however often the worker dies
        fs.core.journal.apply(*map(SaveRequest, succession.remembered.answered))
        fs.go_on(writeback, snapshot, succession.remembered, succession.descriptors())
    succession.begun(fs)


def _take_stock(
    store: ObjectStore, journal: Journal, shared: SharedTier, *, goes_on: bool
) -> JournalSnapshot:
    """Marks what the last mount left in doubt, and loads what is pending (G6).

    `goes_on`: the mount is still there, and so is who has its files open.
    """
    # while the shared tier is not there nobody knows; the note stays for the next start
    snapshot, missed = journal.load(), shared.lost is None and shared.drive_had_failed()
    left_open = [op for op in snapshot.ops if op.state is OpState.OPEN]
    files = {record.id for record in snapshot.objects if record.kind is Kind.FILE}
    scratch = [op for op in snapshot.ops if op.kind is OpKind.MKNOD and op.object in files]
    # a power cut may have taken what nobody has synced
    lost = [op for op in (*left_open, *scratch) if not _has_object(store, op.object)]
    journal.apply(*(DropOp(op.row) for op in lost))
    if not goes_on:
        journal.mark_torn(op.row for op in left_open if op not in lost)
        journal.forget_requests()
    marked = store.boot_changed or missed
    if missed:
        journal.mark_all_suspect(MISSED)
        shared.forget_failed_drive()
    if store.boot_changed:
        journal.mark_undurable_suspect()
        store.remember_boot()
    return journal.load() if left_open or lost or marked else snapshot


def _has_object(store: ObjectStore, object_id: ObjectId) -> bool:
    try:
        store.attributes(object_id, Kind.FILE)
    except FileNotFoundError:
        return False
    return True


def _assemble(
    mountpoint: str, settings: Settings, system: OS, store: ObjectStore, journal: Journal,
    shared: SharedTier, pools: Pools, succession: Succession | None,
) -> Rooms:  # fmt: skip
    patterns = Patterns(settings.groups)
    places = Places(shared.inode)
    backlog = Backlog(
        OrderSettings(
            unlink_settle=settings.unlink_settle,
            temporary_hold=settings.temporary_hold,
            linger=settings.linger,
            group_settle=settings.group_settle,
        )
    )
    core = Core(
        system, store, journal, backlog, places, shared, pools.local, pools.shared,
        pools.reading, namespace_settings(mountpoint, settings), patterns,
        Policies(settings.policies),
    )  # fmt: skip
    fs = FileSystem(core, settings.local)
    writeback = WriteBack(
        backlog, places, journal, store, shared,
        writeback_settings(settings), fs.outcomes,
        is_group=lambda name: patterns.profile_of(name) is not None,
        edit=core.groups.edit,
        on_published=fs.outcomes.published_elsewhere,
        local_threads=pools.local,
    )  # fmt: skip
    goes_on = succession is not None and succession.device is not None
    snapshot = _take_stock(store, journal, shared, goes_on=goes_on)
    _start(fs, writeback, snapshot, succession)
    fs.submit_restored(snapshot.ops)
    return Rooms(settings, mountpoint, store, journal, shared, fs, writeback, backlog, time.time())
