"""What status, ls, locate and flush tell of the namespace."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable

import trio

from tierfs.control.results import Capacity, Hanging
from tierfs.daemon.rooms import Rooms
from tierfs.errors import TierfsError
from tierfs.model import ROOT, Name, ObjectId, Op, OpKind, OpState
from tierfs.namespace.overlay.nodes import Node

RELEASE_POLL_SECONDS = 0.01

OPEN_STATES = (OpState.OPEN, OpState.CLOSED)
"""A file that was flushed but not released has its descriptor still open somewhere."""


class Report:
    """Answers about paths; a path is absolute, as the mount shows it."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._fs = rooms.fs

    def path_of(self, op: Op) -> str:
        """The absolute path of what an op is about, where its directory is now."""
        return os.path.join(self._rooms.mountpoint, os.fsdecode(b"/".join(self.names_of(op))))

    def names_of(self, op: Op) -> tuple[Name, ...]:
        """The names that lead from the root to what an op is about, where its directory is now."""
        tree = self._fs.tree
        return (*tree.path(op.parent), op.name) if op.parent in tree.directories else op.path

    def components(self, path: str) -> tuple[Name, ...]:
        """The names from the root of the mount to `path`. TierfsError when it lies elsewhere."""
        absolute = posixpath.normpath(path)
        top = self._rooms.mountpoint.rstrip("/")
        if absolute != top and not absolute.startswith(top + "/"):
            raise TierfsError(f"{path}: not in the mount {top}")
        return tuple(os.fsencode(part) for part in absolute[len(top) :].split("/") if part)

    async def find(self, path: str) -> Node | None:
        """The node at `path`, None when there is none."""
        state = self._fs.tree.directories[ROOT]
        node = self._fs.tree.by_object[ROOT]
        for name in self.components(path):
            if node.directory is None:
                return None
            state = self._fs.tree.directories[node.directory]
            found = await self._fs.lookup.find(state, name)
            if found is None:
                return None
            node = found
        return node

    async def directory_of(self, path: str) -> ObjectId | None:
        """The directory at `path`, or the one that holds what is there."""
        node = await self.find(path)
        if node is None or node.directory is None:
            parent = posixpath.dirname(posixpath.normpath(path))
            node = await self.find(parent) if self.components(path) else None
        return None if node is None else node.directory

    def path_of_directory(self, directory: ObjectId) -> str:
        """The absolute path of a known directory."""
        names = map(os.fsdecode, self._fs.tree.path(directory))
        return os.path.join(self._rooms.mountpoint, *names)

    async def ops_under(self, path: str) -> list[Op]:
        """All pending ops under `path`, whether they were issued there or moved there since."""
        names = self.components(path)
        node = await self.find(path)
        backlog = self._rooms.backlog
        if not names:
            return list(backlog.under(ROOT))
        found = {
            op.row: op for op in backlog.under(ROOT)
            if _touches(op, names) or self.names_of(op)[: len(names)] == names
        }  # fmt: skip
        if node is not None and node.directory is not None:
            found |= {op.row: op for op in backlog.under(node.directory)}
        elif node is None and not found:
            raise TierfsError(f"{path}: no such file or directory")
        return sorted(found.values(), key=lambda op: op.number)

    async def until_released(self, ops: list[Op], seconds: float) -> None:
        """Waits while files of `ops` are closed but not released; `seconds` at the most."""
        with trio.move_on_after(seconds):
            # RELEASE, a lease and a mark can all end it
            while any(self._is_closing(op) for op in ops):  # noqa: ASYNC110
                await trio.sleep(RELEASE_POLL_SECONDS)

    def _is_closing(self, op: Op) -> bool:
        if not counts_as_open(op) or op not in self._rooms.backlog:
            return False
        obj = self._fs.tree.objects.get(op.object)
        writers = [
            handle for handle in self._fs.files.handles.values()
            if handle.writable and handle.object is obj
        ]  # fmt: skip
        return all(handle.flushed for handle in writers)

    def hanging(self) -> tuple[Hanging, ...]:
        """What the kernel has asked and not been told for a while."""
        return tuple(
            Hanging(
                operation=found.operation, seconds=round(found.seconds, 1),
                path=os.path.join(self._rooms.mountpoint, os.fsdecode(found.path)),
            )
            for found in self._fs.watchdog.hanging(time.monotonic())
        )  # fmt: skip

    async def capacity(self) -> Capacity:
        """How the local tier is used."""
        fs, core = self._fs, self._fs.core
        files, bytes_ = await core.journal.clean_totals()
        return Capacity(
            clean_files=files, clean_bytes=bytes_,
            pinned_files=len(core.pins), pinned_bytes=core.pins.bytes,
            evicted_files=fs.eviction.evicted_files, evicted_bytes=fs.eviction.evicted_bytes,
            reserve_bytes=core.store.reserve.held, promised_bytes=core.promises.rest,
            outgrown_files=core.promises.outgrown, waiting_writes=len(fs.room.waiters),
             waiting_closes=len(fs.backpressure.waiters),
        )  # fmt: skip

    def announced(self) -> tuple[str, ...]:
        """The directories in which saving goes on while the shared tier does not answer."""
        known = self._rooms.fs.core.announced.known()
        there = [each for each in known if each in self._fs.tree.directories]
        return tuple(sorted(map(self.path_of_directory, there)))

    def pending(self) -> list[Op]:
        """All pending ops but those of files that are open, and removals that are held.

        What is marked waits for a decision, whether or not its file is open still.
        """
        backlog = self._rooms.backlog
        return [
            op for op in backlog.under(ROOT)
            if not counts_as_open(op) and not backlog.is_held(op)
        ]  # fmt: skip

    def open_files(self) -> list[Op]:
        """The ops of the files that are open for writing."""
        return [op for op in self._rooms.backlog.under(ROOT) if counts_as_open(op)]


def counts_as_open(op: Op) -> bool:
    """Whether the file of `op` is to be told of as open for writing, and not as marked."""
    return op.kind is OpKind.PUT and op.state in OPEN_STATES and op.mark is None


def oldest_seconds(ops: Iterable[Op]) -> float:
    """Age of the oldest op, 0 if there is none."""
    first = min((op.timestamp_ns for op in ops), default=None)
    return max(0.0, (time.time_ns() - first) / 1e9) if first is not None else 0.0


def _touches(op: Op, names: tuple[Name, ...]) -> bool:
    length = len(names)
    return op.path[:length] == names or (bool(op.path2) and op.path2[:length] == names)
