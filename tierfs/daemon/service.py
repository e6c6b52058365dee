"""The life of one mount: from building the rooms to taking them down in reverse order."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pyfuse3
import trio

import tierfs
from tierfs.config import Settings
from tierfs.control.discovery import (
    Session,
    remove_session,
    session_directory,
    write_lost,
    write_session,
)
from tierfs.control.server import ControlServer
from tierfs.daemon import live
from tierfs.daemon.collector import none_while_loading
from tierfs.daemon.handlers import Handlers
from tierfs.daemon.mounting import read_ahead, type_mounted_at, umount
from tierfs.daemon.rooms import Rooms, build
from tierfs.daemon.succession import DEVICE, Succession
from tierfs.errors import TierError
from tierfs.kernel import Earlier, FilteredMount, Operations
from tierfs.model import Name
from tierfs.namespace.direct import NoDirect
from tierfs.supervisor.link import LEFT, Link
from tierfs.threads import Pool, forget

log = logging.getLogger(__name__)

DETACH_SECONDS = 25.0
"""SIGTERM ends the daemon within 30 s whatever a tier does (DESIGN 8)."""

ANSWER_SECONDS = 2.0
"""How long requests have to be answered, that of `tierfs umount` among them, before the end."""


END_SECONDS = 5.0
"""How long what is under way may go on once the mount is gone: a call of a tier is not called off,
and on a busy machine the threads that copy come last."""

NOTE_SECONDS = 0.5
"""How long the local tier may take to note that it will be free soon."""

LEAVE_SECONDS = 3.0
"""How long requests that were taken may go on when the next worker is to come."""


async def serve(
    mountpoint: str, settings: Settings, ready: Callable[[], None], link: Link | None
) -> None:
    """Mounts and serves until unmounted or told to end. TierfsError for what is refused.

    `link` leads to the supervisor, if there is one: then the mount may outlive this process, and
    may be there already.
    """
    runtime = session_directory(mountpoint)
    with none_while_loading():
        succession = Succession.of(link, runtime) if link is not None else None
    async with AsyncExitStack() as stack:
        if succession is not None and succession.device is not None:
            settings = live.remembered(mountpoint, settings)
        else:
            live.forget(mountpoint)
        with none_while_loading():
            rooms = await build(mountpoint, settings, stack, runtime, succession)
        live.spread(rooms, settings)
        mount = Mount(rooms, succession)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            await mount.run(signals, ready)


GC_THRESHOLDS = (10_000, 20, 50)
"""See gc.set_threshold. The usual ones have a full collection stop all requests again and again
while many files are pending, for 70 ms with some thousands of them."""


def _collect_rarely() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class Mount:
    """A mounted file system and the tasks that serve it."""

    def __init__(self, rooms: Rooms, succession: Succession | None) -> None:
        self._rooms = rooms
        self._succession = succession
        self._runtime = session_directory(rooms.mountpoint)
        self._filtered: FilteredMount | None = None
        self._forgotten = False
        link = None if succession is None else succession.link
        rooms.fs.drive.on_failed = self._leave_lost
        rooms.fs.drive.on_returned = self._ask_for_next
        self._handlers = Handlers(rooms, link)
        self._control = ControlServer(self._runtime, self._handlers.table())

    def _leave_lost(self, names: list[tuple[Name, ...]]) -> None:
        paths = [os.path.join(self._rooms.mountpoint, *map(os.fsdecode, name)) for name in names]
        try:
            write_lost(self._runtime, paths)
        except OSError as error:
            log.warning("the names of what the drive had cannot be kept: %s", error)

    def _ask_for_next(self) -> None:
        """Has the supervisor start another worker, as `tierfs reload` does."""
        if self._succession is not None and self._filtered is not None:
            os.kill(os.getppid(), signal.SIGHUP)

    async def run(self, signals: object, ready: Callable[[], None]) -> None:
        """Mounts, says that it is ready, serves."""
        rooms = self._rooms
        self._control.listen()
        self._open_device()
        write_session(self._runtime, self._session())
        log.info("%s: mounted (local %s, shared %s)", rooms.mountpoint,
                 rooms.settings.local, rooms.settings.shared)  # fmt: skip
        if rooms.salvaged is not None:
            log.warning("%s: its journal was lost: %s", rooms.settings.local, rooms.salvaged)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rooms.writeback.run)
                nursery.start_soon(rooms.fs.run)
                nursery.start_soon(self._control.run)
                nursery.start_soon(self._on_signal, signals)
                if self._filtered is not None:
                    nursery.start_soon(self._filtered.run)
                    nursery.start_soon(self._read_ahead, self._filtered)
                if self._succession is not None:
                    nursery.start_soon(self._succession.run, rooms.fs)
                nursery.start_soon(self._fuse, nursery.cancel_scope)
                _collect_rarely()
                ready()
        except BaseException:
            if self._succession is None:
                with trio.CancelScope(shield=True):
                    await self._take_down()
            raise  # else the mount is left to the next worker
        with trio.CancelScope(shield=True):
            await self._take_down()

    def _open_device(self) -> None:
        rooms = self._rooms
        source = f"tierfs:{rooms.settings.node}:{rooms.mountpoint}"
        try:
            self._filtered = self._open_filtered(source)
        except PermissionError as error:
            rooms.fs.core.direct = NoDirect(f"/dev/fuse cannot be mounted directly: {error}")
        except OSError as error:
            raise TierError(f"mount point {rooms.mountpoint}: cannot mount: {error}") from None
        options = set(pyfuse3.default_options) | {
            "allow_other",
            "subtype=tierfs",
            f"fsname={source}",
        }
        place, requests = rooms.mountpoint, None
        if self._filtered is not None:
            place, requests = self._filtered.path, self._filtered.requests
        try:
            pyfuse3.init(Operations(rooms.fs, requests), place, options)
        except RuntimeError as error:
            raise TierError(
                f"mount point {rooms.mountpoint}: cannot mount: {error}; see the log"
            ) from None

    def _open_filtered(self, source: str) -> FilteredMount:
        rooms, succession = self._rooms, self._succession
        if succession is not None and succession.device is not None:
            done = frozenset(rooms.journal.requests())
            earlier = Earlier(succession.device, succession.remembered, done)
            return FilteredMount.take_over(earlier, rooms.fs, rooms.settings)
        made = FilteredMount.open(rooms.mountpoint, source, rooms.fs, rooms.settings)
        if succession is not None:
            succession.link.keep(DEVICE, made.device.fd)
        return made

    def _session(self) -> Session:
        rooms = self._rooms
        return Session(
            mountpoint=rooms.mountpoint, local=str(rooms.settings.local),
            shared=str(rooms.settings.shared), pid=self._pid(), node=rooms.settings.node,
            member=rooms.store.member, started=rooms.started, version=tierfs.__version__,
        )  # fmt: skip

    def _pid(self) -> int:
        """Of the process that lives as long as the mount."""
        return os.getpid() if self._succession is None else os.getppid()

    async def _read_ahead(self, mount: FilteredMount) -> None:
        await mount.filter.agreed.wait()  # before that the kernel would undo it
        core = self._rooms.fs.core
        await core.local(read_ahead, self._rooms.mountpoint)

    async def _fuse(self, scope: trio.CancelScope) -> None:
        await pyfuse3.main()
        # The mount point is gone before the handler of `tierfs umount` hears of it, the longer
        # before the more names the kernel has to forget.
        async with self._handlers.unmounting:
            pass
        with trio.move_on_after(ANSWER_SECONDS):
            await self._control.idle()
        log.info("%s: unmounted", self._rooms.mountpoint)
        await self._end_in_time()
        scope.cancel()

    async def _end_in_time(self) -> None:
        """The mount is gone: nobody takes it over, and the next one of the local tier can come."""
        self._forget()
        _at_the_latest(END_SECONDS, logging.INFO, "what is under way does not end")
        with trio.move_on_after(NOTE_SECONDS), suppress(OSError):
            await Pool("note", 1).run(self._rooms.store.note_end, late=forget)

    def _forget(self) -> None:
        """Nothing says any more that there is a mount; once, as the next one may be there soon."""
        if self._forgotten:
            return
        self._forgotten = True
        if self._succession is not None:
            self._succession.end()
        remove_session(self._runtime)

    async def _on_signal(self, signals: object) -> None:
        async for number in signals:  # type: ignore[attr-defined]
            if number == signal.SIGHUP:
                await self._leave()
                continue
            log.info("%s: detaching", signal.Signals(number).name)
            _at_the_latest(DETACH_SECONDS, logging.ERROR, "a tier does not answer")
            await self._sync()
            if type_mounted_at(self._rooms.mountpoint) == "fuse.tierfs":
                umount(self._rooms.mountpoint, detach=True)
            pyfuse3.terminate()
            return

    async def _leave(self) -> None:
        """Makes room for the next worker: it goes on where this one stops."""
        if self._succession is None or self._filtered is None:
            log.warning("SIGHUP: there is no supervisor; the mount goes on as it is")
            return
        log.info("%s: making room for the next worker", self._rooms.mountpoint)
        with trio.move_on_after(LEAVE_SECONDS):
            await self._filtered.filter.drain()
            await self._rooms.journal.written()
        logging.shutdown()
        # Not by way of the end of a mount. What is under way, a crash would leave as well.
        os._exit(LEFT)

    async def _sync(self) -> None:
        """What was closed is made to survive a power cut, as far as the local drive lets us."""
        core = self._rooms.fs.core
        pending = [obj for obj in list(core.tree.objects.values()) if obj.put is not None]
        limit = time.monotonic() + DETACH_SECONDS / 2
        for obj in pending:
            if time.monotonic() > limit:
                break
            if obj.put is None:
                continue  # committed or taken back meanwhile
            try:
                await core.local(core.store.sync, obj.id)
            except OSError as error:
                if obj.put is not None:
                    log.error("sync of object %x: %s", obj.id, error)
        try:
            await core.journal.sync()
        except Exception as error:
            log.error("sync of the journal: %s", error)

    async def _take_down(self) -> None:
        pyfuse3.close(unmount=False)
        await self._control.aclose()
        if type_mounted_at(self._rooms.mountpoint) == "fuse.tierfs":
            try:
                umount(self._rooms.mountpoint, detach=True)
            except OSError as error:
                log.error("unmount: %s", error)
        if self._filtered is not None:
            self._filtered.close()
        self._forget()


def _at_the_latest(seconds: float, level: int, reason: str) -> None:
    """Ends the process in `seconds`, if it has not ended by then, as a crash would."""

    def give_up() -> None:
        log.log(level, "%s; ending without it (the backlog is in the journal)", reason)
        logging.shutdown()
        os._exit(0)

    watchdog = threading.Timer(seconds, give_up)
    watchdog.daemon = True
    watchdog.start()
