"""What users want to have on this node, or not: the requests warm, pin and evict, served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.access import Reached, below
from tierfs.control.results import KeptResult, Problem, Progress
from tierfs.control.server import Handler, Peer, Send
from tierfs.daemon.report import Report
from tierfs.daemon.rooms import Rooms
from tierfs.errors import TierfsError, VerifyMismatch
from tierfs.model import ROOT, CleanRecord
from tierfs.namespace.overlay.nodes import Node
from tierfs.namespace.room.warming import Warming

AT_ONCE = 4
"""How many files are copied at a time."""

PROGRESS_SECONDS = 0.2

NOT_COMMITTED = "is not committed yet: its content is here, and stays until it is"


@dataclass(frozen=True, slots=True)
class _Target:
    path: str
    size: int
    node: Node


@dataclass(slots=True)
class _Found:
    """What a request is about, and what could not be done with some of it.

    Attributes:
        denied: how many of `left` could not be looked at for lack of rights.
    """

    files: list[_Target] = field(default_factory=list)
    directories: list[_Target] = field(default_factory=list)
    left: list[Problem] = field(default_factory=list)
    denied: int = 0

    def leave(self, target: _Target, reason: str) -> None:
        self.left.append(Problem(path=target.path, reason=reason))


@dataclass(slots=True)
class _Copying:
    """How far it is with copies."""

    total_files: int
    total_bytes: int
    files: int = 0
    bytes: int = 0
    nodes: set[Node] = field(default_factory=set)


class Keeping:
    """One method for each command."""

    def __init__(self, rooms: Rooms, report: Report, access: trio.CapacityLimiter) -> None:
        self._rooms = rooms
        self._report = report
        self._access = access

    def table(self) -> Mapping[str, Handler]:
        """The handlers by command."""
        return {"warm": self.warm, "pin": self.pin, "evict": self.evict}

    async def warm(self, request: requests.Warm, peer: Peer, send: Send) -> tuple[KeptResult, int]:
        async with self._reached(request.paths, peer) as found:
            done = await self._copy("warm", found, send)
        already = len(found.files) - done.total_files
        return _result(done.files, done.bytes, already, found), 1 if found.left else 0

    async def pin(self, request: requests.Pin, peer: Peer, send: Send) -> tuple[KeptResult, int]:
        async with self._reached(request.paths, peer) as found:
            if request.remove:
                return self._unpin(found), 1 if found.denied else 0
            await self._copy("pin", found, send)
            return await self._pin(found), 1 if found.left else 0

    async def evict(
        self, request: requests.Evict, peer: Peer, send: Send
    ) -> tuple[KeptResult, int]:
        async with self._reached(request.paths, peer) as found:
            records: dict[int, tuple[_Target, CleanRecord]] = {}
            for target in found.files:
                record = await self._copy_of(target.node)
                if record is not None:
                    records[record.signature.inode] = target, record
                elif await self._rooms.fs.warming.is_here(target.node):
                    found.leave(target, NOT_COMMITTED)
            copies = [record for _, record in records.values()]
            spared = await self._rooms.fs.eviction.drop_idle(copies)
            for record in spared:
                pinned = self._rooms.fs.core.pins.is_pinned(record.signature.inode)
                reason = "is pinned (tierfs pin --remove)" if pinned else "is open"
                found.leave(records[record.signature.inode][0], reason)
        files, bytes_ = len(copies) - len(spared), _sum(copies) - _sum(spared)
        already = len(found.files) - files - len(found.left) + found.denied
        return _result(files, bytes_, already, found), 1 if found.denied else 0

    # -- what they have in common ------------------------------------------------------------------

    @asynccontextmanager
    async def _reached(self, paths: tuple[str, ...], peer: Peer) -> AsyncIterator[_Found]:
        """What the caller may read at and below `paths`; nodes stay known while it is used."""
        reached, denied = await below(paths, peer, self._access)
        problems = [Problem(path=path, reason="permission denied") for path in denied]
        found = _Found(left=problems, denied=len(problems))
        fs = self._rooms.fs
        held: list[Node] = []
        try:
            for each in reached:
                node = await self._node(each)
                if node is None:
                    continue  # removed or replaced since
                node.lookups += 1
                held.append(node)
                target = _Target(each.path, each.size, node)
                (found.directories if each.is_directory else found.files).append(target)
            yield found
        finally:
            for node in held:
                fs.forget(node.ino, 1)

    async def _node(self, each: Reached) -> Node | None:
        known = self._rooms.fs.tree.nodes.get(each.inode)
        node = known or await self._report.find(each.path)
        return node if node is not None and node.ino == each.inode else None

    async def _copy_of(self, node: Node) -> CleanRecord | None:
        if node.shared is None:
            return None
        return await self._rooms.fs.core.journal.clean_copy(node.shared.inode)

    # -- warm ----------------------------------------------------------------------------------

    async def _copy(self, command: str, found: _Found, send: Send) -> _Copying:
        """Copies those of the files that are not here. TierfsError when they do not fit."""
        warming = self._rooms.fs.warming
        todo, here = [], 0
        for target in found.files:
            if await warming.is_here(target.node):
                here += target.size
            else:
                todo.append(target)
        state = _Copying(len(todo), sum(target.size for target in todo))
        if todo and not await warming.fits(state.total_bytes, here):
            raise TierfsError(
                f"{command}: {len(todo)} files, {format_size(state.total_bytes)}, do not fit on "
                "the local tier beside what is pending, pinned or promised: nothing was copied; "
                "name fewer, or free space"
            )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell, state, send, warming)
            waiting = iter(todo)
            async with trio.open_nursery() as copying:
                for _ in range(AT_ONCE):
                    copying.start_soon(self._copy_some, waiting, state, found)
            nursery.cancel_scope.cancel()
        return state

    async def _copy_some(self, waiting: object, state: _Copying, found: _Found) -> None:
        for target in waiting:  # type: ignore[attr-defined]
            try:
                state.nodes.add(target.node)
                if await self._rooms.fs.warming.bring(target.node):
                    state.files += 1
                    state.bytes += target.size
            except VerifyMismatch:
                found.leave(target, "is damaged: it differs from its recorded digest")
            except OSError as error:
                found.leave(target, error.strerror or str(error))
            finally:
                state.nodes.discard(target.node)

    # -- pin -----------------------------------------------------------------------------------

    async def _pin(self, found: _Found) -> KeptResult:
        pins = self._rooms.fs.core.pins
        already = sum(_is_pinned(self._rooms, target) for target in found.files)
        files = bytes_ = 0
        for target in found.files:
            record = await self._copy_of(target.node)
            if record is not None and not pins.is_pinned(record.signature.inode):
                pins.pin_file(record.signature.inode, record.bytes)
                files, bytes_ = files + 1, bytes_ + record.bytes
            elif record is None and target.node.shared is None:
                found.leave(target, "is not committed yet: pin it when it is, or its directory")
        for target in found.directories:
            inode = self._inode_of(target)
            if inode is None:
                found.leave(target, "is not on the shared tier yet: pin it after a flush")
            else:
                pins.pin_directory(inode)
        return _result(files, bytes_, already, found)

    def _unpin(self, found: _Found) -> KeptResult:
        pins = self._rooms.fs.core.pins
        files = 0
        for target in (*found.files, *found.directories):
            inode = self._inode_of(target)
            if inode is not None and pins.remove(inode):
                files += target in found.files
        self._rooms.fs.core.freed.tell()
        return _result(files, 0, 0, found)

    def _inode_of(self, target: _Target) -> int | None:
        """That on the shared tier; the root of the mount has no name there."""
        if target.node.directory == ROOT:
            record = self._rooms.fs.core.places.record(ROOT)
            return None if record is None else record.inode
        return None if target.node.shared is None else target.node.shared.inode


def _is_pinned(rooms: Rooms, target: _Target) -> bool:
    shared = target.node.shared
    return shared is not None and rooms.fs.core.pins.is_pinned(shared.inode)


def _sum(records: list[CleanRecord]) -> int:
    return sum(record.bytes for record in records)


def _result(files: int, bytes_: int, already: int, found: _Found) -> KeptResult:
    return KeptResult(files=files, bytes=bytes_, already=already, left=tuple(found.left))


async def _tell(state: _Copying, send: Send, warming: Warming) -> None:
    began, before = trio.current_time(), 0
    while True:
        await trio.sleep(PROGRESS_SECONDS)
        done = state.bytes + warming.copied(state.nodes)
        rate = done / (trio.current_time() - began)
        if done == before:
            continue
        before = done
        await send(
            Progress(
                total_files=state.total_files, done_files=state.files,
                total_bytes=state.total_bytes, done_bytes=done, rate_bytes=round(rate, 1),
                seconds_left=round((state.total_bytes - done) / rate, 1),
            )
        )  # fmt: skip
