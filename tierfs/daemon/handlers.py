"""The requests of the control socket, served."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from typing import TypeVar

import trio

import tierfs
from tierfs.control import requests
from tierfs.control.access import may_list, may_reach, only_visible
from tierfs.control.results import (
    OPEN,
    Decided,
    FlushResult,
    Held,
    ListEntry,
    ListResult,
    LocateResult,
    Problem,
    Removal,
    Retrying,
    StatusResult,
    Stuck,
    Tier,
)
from tierfs.control.server import Handler, Peer, Send
from tierfs.daemon.checkpoints import CheckpointReport
from tierfs.daemon.committing import CheckpointHandlers
from tierfs.daemon.flushing import Flushing
from tierfs.daemon.keeping import Keeping
from tierfs.daemon.live import Live
from tierfs.daemon.mounting import umount
from tierfs.daemon.policy import PolicyHandler
from tierfs.daemon.profiling import Profiling
from tierfs.daemon.report import Report, oldest_seconds
from tierfs.daemon.rooms import Rooms
from tierfs.errors import TierfsError
from tierfs.kernel.answers import NAME_SECONDS
from tierfs.model import Op, OpKind
from tierfs.namespace.overlay.nodes import Node
from tierfs.supervisor.link import Link

ACCESS_THREADS = 4
TIER_SECONDS = 2.0
"""How long status waits for the shared tier before it says that it does not answer."""
FORGOTTEN_SECONDS = NAME_SECONDS + 0.05
"""After that the kernel believes nothing more of what it was told (and a tick of its clock).

To tell it to forget a name takes the lock of the directory, whose holder may wait for us.
"""
T = TypeVar("T")


class Handlers:
    """One method for each command.

    Attributes:
        unmounting: held while `tierfs umount` waits for the kernel.
    """

    def __init__(self, rooms: Rooms, link: Link | None) -> None:
        self.unmounting = trio.Lock()
        self._rooms = rooms
        self._link = link
        self._report = Report(rooms)
        self._virtual = rooms.fs.virtual
        self._access = trio.CapacityLimiter(ACCESS_THREADS)
        self._flushing = Flushing(rooms, self._report, self._access)
        self._checkpoints = CheckpointReport(rooms, self._report, self._access)
        self._groups = CheckpointHandlers(rooms, self._report, self._checkpoints, self._access)
        self._profiling = Profiling(rooms, self._report, self._access)
        self._keeping = Keeping(rooms, self._report, self._access)
        self._live = Live(rooms)
        self._policy = PolicyHandler(rooms, self._report)

    def table(self) -> Mapping[str, Handler]:
        """The handlers by command."""
        return {
            "flush": self.flush, "umount": self.umount, "status": self.status, "ls": self.ls,
            "locate": self.locate, "accept": self.accept, "discard": self.discard,
            "profile": self._profiling.profile, "set": self._live.set,
            "policy": self._policy.policy, **self._groups.table(), **self._keeping.table(),
        }  # fmt: skip

    # -- flush and umount ------------------------------------------------------------------------

    async def flush(
        self, request: requests.Flush, peer: Peer, send: Send
    ) -> tuple[FlushResult, int]:
        for path in request.paths:
            await self._check_reach(path, peer)
        if not request.wait:
            return await self._flushing.start(request.paths, peer), 0
        result = await self._flushing.wait(request.paths, request.timeout, peer, send)
        return result, result.exit_code

    async def umount(
        self, request: requests.Umount, peer: Peer, send: Send
    ) -> tuple[FlushResult, int]:
        if not peer.is_root and peer.uid != os.geteuid():
            raise TierfsError("umount: only root may unmount")
        result = FlushResult()
        mountpoint = self._rooms.mountpoint
        if not request.force:
            result = await self._flushing.wait((), request.timeout, peer, send)
            if result.exit_code:
                return result, result.exit_code
        try:
            async with self.unmounting:
                await trio.to_thread.run_sync(
                    lambda: umount(mountpoint, detach=request.force), limiter=self._access
                )
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            busy = Problem(path=mountpoint, reason="files or directories in it are in use")
            result = FlushResult(
                exit_code=OPEN, committed_files=result.committed_files,
                committed_bytes=result.committed_bytes, open=(busy,),
            )  # fmt: skip
            return result, OPEN
        return result, 0

    # -- reports -------------------------------------------------------------------------------

    async def status(
        self, request: requests.Status, peer: Peer, send: Send
    ) -> tuple[StatusResult, int]:
        rooms, report = self._rooms, self._report
        pending, opened = report.pending(), report.open_files()
        puts = [op for op in pending if op.kind is OpKind.PUT]
        now = rooms.writeback.status()
        retrying, hidden = await only_visible(
            [
                Retrying(path=report.path_of(item.op), error=item.error, attempts=item.attempts,
                         next_retry_seconds=round(item.next_retry_seconds, 3))
                for item in now.retrying
            ],
            peer, self._access,
        )  # fmt: skip
        stuck, more = await only_visible(
            [
                Stuck(path=report.path_of(op), error=op.error or "", state=str(op.mark))
                for op in pending if op.mark is not None
            ],
            peer, self._access,
        )  # fmt: skip
        removals = await self._checkpoints.removals(rooms.backlog.held())
        held, others = await only_visible(
            [*self._held(pending), *self._held_removals(removals)], peer, self._access
        )
        unsettled, further = await only_visible(self._checkpoints.unsettled(), peer, self._access)
        direct = rooms.fs.core.direct
        limit = time.time_ns() - int(rooms.settings.open_hold * 1e9)
        long_open = tuple(
            report.path_of(op) for op in opened if op.timestamp_ns < limit and peer.is_root
        )
        local, foreign = await self._local_tier(listed=peer.is_root)
        return StatusResult(
            node=rooms.settings.node, member=rooms.store.member, mountpoint=rooms.mountpoint,
            version=tierfs.__version__, worker_pid=os.getpid(),
            supervisor_pid=None if self._link is None else os.getppid(),
            restarts=0 if self._link is None else self._link.restarts,
            uptime_seconds=round(time.time() - rooms.started, 3), passthrough=direct.enabled,
            passthrough_reason=direct.reason, fallbacks=dict(direct.fallbacks),
            pending_files=len(puts), pending_bytes=sum(op.size for op in puts),
            pending_ops=len(pending), open_for_write=len(opened),
            oldest_pending_seconds=round(oldest_seconds(pending), 3),
            oldest_unsynced_seconds=round(
                oldest_seconds(op for op in pending if not op.durable), 3
            ),
            committed_files=now.committed_files, committed_bytes=now.committed_bytes,
            write_rate_bytes=round(now.write_rate_bytes, 1),
            bwlimit_bytes=rooms.settings.bwlimit,
            local=local, shared=await self._shared_tier(),
            capacity=await report.capacity(),
            retrying=retrying, stuck=stuck, unsettled=unsettled, held=held,
            held_bytes=sum(each.bytes or 0 for each in removals), open_long=long_open,
            # whether another may see the path of what hangs could not be found out: it hangs
            hanging=report.hanging() if peer.is_root else (),
            foreign=await self._foreign(foreign) if peer.is_root else (),
            announced=report.announced() if peer.is_root else (),
            salvaged=rooms.salvaged,
            members=(rooms.store.member,), hidden=hidden + more + others + further,
        ), 0  # fmt: skip

    def _held(self, pending: list[Op]) -> list[Held]:
        rooms, now = self._rooms, time.monotonic()
        found = []
        marked = any(op.mark is not None for op in pending)
        for op in pending if marked else rooms.backlog.held_pointers():
            if op.mark is None and self._is_held(op, now):
                found.append(
                    Held(
                        path=self._report.path_of(op), reason=rooms.backlog.explain(op, now),
                        member=rooms.store.member,
                    )
                )  # fmt: skip
        return found

    def _held_removals(self, removals: list[Removal]) -> list[Held]:
        member = self._rooms.store.member
        return [Held(path=each.path, reason=each.reason, member=member) for each in removals]

    def _is_held(self, op: Op, now: float) -> bool:
        blocked = self._rooms.backlog.may_publish(op, now)
        return blocked is not None and blocked.held

    async def _foreign(self, local: list[str]) -> tuple[str, ...]:
        rooms, found = self._rooms, local
        # `shared` in the same answer says it if that tier does not answer
        with trio.move_on_after(TIER_SECONDS), contextlib.suppress(OSError):
            found = found + await trio.to_thread.run_sync(
                rooms.shared.foreign, limiter=self._access, abandon_on_cancel=True
            )
        return tuple(found)

    async def _local_tier(self, *, listed: bool) -> tuple[Tier, list[str]]:
        """How it is and, if `listed`, what in it is not ours."""
        rooms = self._rooms
        core, drive = rooms.fs.core, rooms.fs.drive
        state, total, free, foreign = "ok", 0, 0, list[str]()
        if not drive.look():
            try:
                total, free = await core.local(rooms.store.usage)
                foreign = await core.local(rooms.store.foreign) if listed else []
            except OSError as error:
                state, total, free = str(error), 0, 0
                # the drive may have failed just now, and nobody met it before
                await core.is_drive_lost(error)
        if drive.look():
            state, total, free = f"failed, write-through: {drive.failed}", 0, 0
        elif state == "ok" and rooms.journal.failed is not None:
            state = str(rooms.journal.failed)
        tier = Tier(path=str(rooms.settings.local), state=state, total_bytes=total, free_bytes=free)
        return tier, foreign

    async def _shared_tier(self) -> Tier:
        rooms = self._rooms
        watch, path = rooms.fs.watch, str(rooms.settings.shared)
        with trio.move_on_after(TIER_SECONDS):
            await watch.asked.wait()
        found, st = watch.read(), watch.space
        total, free = (
            (0, 0) if st is None else (st.f_blocks * st.f_frsize, st.f_bavail * st.f_frsize)
        )
        return Tier(
            path=path, state=found.state.label, reason=found.reason, total_bytes=total,
            free_bytes=free,
        )  # fmt: skip

    async def ls(self, request: requests.List, peer: Peer, send: Send) -> tuple[ListResult, int]:
        node = await self._node(request.path, peer)
        fs = self._rooms.fs
        if node.directory is None:
            name = os.path.basename(request.path)
            return ListResult(path=request.path, entries=(await self._list_entry(name, node),)), 0
        if not await may_list(request.path, peer, self._access):
            raise TierfsError(f"{request.path}: permission denied")
        state = fs.tree.directories[node.directory]
        entries = []
        for each in sorted(await fs.listings.names(state)):
            found = await fs.lookup.find(state, each)
            if found is not None:
                entries.append(await self._list_entry(os.fsdecode(each), found))
        return ListResult(path=request.path, entries=tuple(entries)), 0

    async def _list_entry(self, name: str, node: Node) -> ListEntry:
        attributes = await self._rooms.fs.lookup.attributes(node)
        return ListEntry(
            name=name, kind=str(node.kind), size=attributes.size,
            state=self._virtual.state(node), tier=await self._virtual.tier(node),
        )  # fmt: skip

    async def locate(
        self, request: requests.Locate, peer: Peer, send: Send
    ) -> tuple[LocateResult, int]:
        rooms = self._rooms
        node = await self._node(request.path, peer)
        attributes = await rooms.fs.lookup.attributes(node)
        virtual = self._virtual
        op = virtual.op_of(node)
        explanation = (
            rooms.backlog.explain(op, time.monotonic()) if op is not None
            else "stays on this node" if node.stays
            else "committed: the shared tier has it"
        )  # fmt: skip
        return LocateResult(
            path=request.path, kind=str(node.kind), size=attributes.size,
            state=self._virtual.state(node), tier=await self._virtual.tier(node),
            local_path=await virtual.local_path(node), shared_path=self._shared_path(node),
            digest=await virtual.digest(node),
            explanation=explanation,
        ), 0  # fmt: skip

    def _shared_path(self, node: Node) -> str | None:
        places = self._rooms.fs.core.places
        if node.directory is not None and not places.exists(node.directory):
            return None
        if node.directory is None and node.shared is None:
            return None
        directory, name, _ = self._rooms.fs.lookup.shared_location(node)
        below = os.path.join(places.path(directory), name).rstrip(b"/")
        return os.path.join(str(self._rooms.settings.shared), os.fsdecode(below))

    async def _node(self, path: str, peer: Peer) -> Node:
        await self._check_reach(path, peer)
        node = await self._report.find(path)
        if node is None:
            raise TierfsError(f"{path}: no such file or directory")
        return node

    async def _check_reach(self, path: str, peer: Peer) -> None:
        if not await may_reach(path, peer, self._access):
            raise TierfsError(f"{path}: permission denied")

    # -- decisions on suspect, torn and stuck files ------------------------------------------------

    async def accept(self, request: requests.Accept, peer: Peer, send: Send) -> tuple[Decided, int]:
        op = await self._marked(request.path, peer)
        self._rooms.fs.decisions.accept(op)
        return Decided(path=request.path, state="pending"), 0

    async def discard(
        self, request: requests.Discard, peer: Peer, send: Send
    ) -> tuple[Decided, int]:
        op = await self._marked(request.path, peer)
        await self._rooms.fs.decisions.discard(op)
        await trio.sleep(FORGOTTEN_SECONDS)
        node = await self._report.find(request.path)
        state = "absent" if node is None else self._virtual.state(node)
        return Decided(path=request.path, state=state), 0

    async def _marked(self, path: str, peer: Peer) -> Op:
        node = await self._node(path, peer)
        # root is not asked for: of a file that the local tier lost nobody knows the owner
        if not peer.is_root and (await self._rooms.fs.lookup.attributes(node)).uid != peer.uid:
            raise TierfsError(f"{path}: only root and the owner may decide this")
        op = node.object.put if node.object is not None else None
        if op is None or op.mark is None:
            raise TierfsError(f"{path}: is {self._virtual.state(node)}; nothing to decide")
        return op
