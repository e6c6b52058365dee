"""The file system object driven without a kernel: what the kernel would ask, in its order.

All rooms are the real ones, put together as a mount does it; only FUSE is missing. A trio loop in
a thread of its own serves calls from any other thread, as it serves requests of the kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat as stat_module
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from tests.behaviour.calls import Calls
from tests.behaviour.ending import close_all
from tests.faults import FaultyOS
from tests.harness import wait_until
from tierfs.config import Settings
from tierfs.daemon.rooms import Rooms, build
from tierfs.daemon.succession import Succession
from tierfs.model import ROOT, Attributes, Kind, OpState
from tierfs.namespace.callers import Caller
from tierfs.namespace.changing.attributes import Changes
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.finding.listing import DOTS
from tierfs.namespace.overlay.nodes import DirectoryState, Handle, Node
from tierfs.namespace.overlay.tree import ROOT_INO

T = TypeVar("T")
CALLER = Caller(0, 0, 0, 0o022)
LINKS = 40
SECONDS = 30


@dataclass
class Opened:
    """A descriptor of this driver."""

    node: Node
    handle: Handle
    flags: int
    at: int = 0


class Direct(Calls):
    """A file system on two directories below `root`.

    Attributes:
        system: goes under the rooms; its hook may fail or stall any call.
        counts: lookups by nodeid, as the kernel would count them.
        caller: who calls.
        dead: nothing is written down any more.
    """

    def __init__(self, root: Path, shared: Path, **settings: float) -> None:
        self.shared = shared
        self.system = FaultyOS()
        self.counts: Counter[int] = Counter()
        self.caller = CALLER
        self._fds: dict[int, Opened] = {}
        self._next = 3
        self.dead = False
        self._settings = Settings(
            local=root / "local", shared=shared, node="direct",
            **({"unlink_settle": 0.02} | settings),  # type: ignore[arg-type]
        )  # fmt: skip
        self._mountpoint, self._run_directory = root / "mnt", root / "run"
        for path in (self._settings.local, self._mountpoint, self._run_directory, shared):
            path.mkdir(parents=True, exist_ok=True)
        self._ready, self._go, self._stop = threading.Event(), trio.Event(), trio.Event()
        self._error: BaseException | None = None
        self.rooms: Rooms

    # -- life ----------------------------------------------------------------------------------

    def start(self, *, held: bool = False) -> None:
        """Builds the rooms and serves; with `held` nothing is sent before `go`.

        But for what was being published when it died: lookups wait until that is settled.
        """
        self._ready.clear()
        self.dead = False
        self._go, self._stop = trio.Event(), trio.Event()
        self._thread = threading.Thread(target=self._run, args=(held,))
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends at once, with the backlog, as a daemon that is killed."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()
        self.counts.clear()
        self._fds.clear()
        if self._error is not None:
            raise self._error

    def restart(self, *, held: bool = False) -> None:
        """Dies and takes up again what the journal holds."""
        self.stop()
        self.start(held=held)

    def kill(self, *, held: bool = False) -> None:
        """Dies with what is not written yet, and takes up again what is."""
        self.run_sync(self.die)
        self.restart(held=held)

    def die(self) -> None:
        """From this step on nothing is written down."""
        journal = self.rooms.journal
        self.dead = True
        journal._writer.fail(ConnectionAbortedError("killed"))
        ahead, journal._ahead = journal._ahead, None
        if ahead is not None:
            ahead.close(keep=True)

    def go(self) -> None:
        """Lets the write-back work."""
        self._token.run_sync_soon(self._go.set)

    def _run(self, held: bool) -> None:
        try:
            trio.run(self._serve, held)
        except BaseException as error:
            self._error = None if self.dead else error  # nothing could be journaled any more
        finally:
            self._ready.set()

    async def _serve(self, held: bool) -> None:
        async with AsyncExitStack() as stack:
            self.rooms = await build(
                str(self._mountpoint), self._settings, stack, self._run_directory,
                self._place(), self.system,
            )  # fmt: skip
            core = self.rooms.fs.core
            core.settings = dataclasses.replace(core.settings, mkdir_wait=0.0 if held else 0.2)
            async with trio.open_nursery() as nursery:
                self._token = trio.lowlevel.current_trio_token()
                nursery.start_soon(self.rooms.fs.run)
                nursery.start_soon(self._write_back)
                if not held or self._is_in_doubt():
                    self._go.set()
                self._ready.set()
                await self._stop.wait()
                nursery.cancel_scope.cancel()
            close_all(self.fs)

    def _place(self) -> Succession | None:
        """The place among the workers of the mount: it has none, the mount ends with it."""
        return None

    def _is_in_doubt(self) -> bool:
        return any(op.state is OpState.PUBLISHING for op in self.rooms.backlog.under(ROOT))

    async def _write_back(self) -> None:
        await self._go.wait()
        await self.rooms.writeback.run()

    def run(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Runs an async call in the loop, from any other thread."""

        async def limited() -> T:
            with trio.fail_after(SECONDS):
                return await call(*arguments)

        return trio.from_thread.run(limited, trio_token=self._token)

    def run_sync(self, call: Callable[[], T]) -> T:
        """Runs one step in the loop."""
        return trio.from_thread.run_sync(call, trio_token=self._token)

    @property
    def fs(self) -> FileSystem:
        """The file system object."""
        return self.rooms.fs

    def settle(self) -> None:
        self.go()
        self.run(self._settle)

    async def _settle(self) -> None:
        while ops := [op for op in self.rooms.backlog.under(ROOT) if op.state is not OpState.OPEN]:
            result = await self.rooms.writeback.wait(ops)
            unexpected = [*result.stuck, *result.dropped, *result.held]
            assert not unexpected

    def settle_but_held(self) -> None:
        """Until nothing is pending but removals that are held."""
        self.go()
        backlog = self.rooms.backlog
        wait_until(
            lambda: self.run_sync(lambda: all(map(backlog.is_held, backlog.under(ROOT)))),
            "all that is pending to be held",
        )

    def drop_caches(self) -> None:
        self.run_sync(self._forget_unused)

    def _forget_unused(self) -> None:
        kept = {opened.node.ino for opened in self._fds.values()}
        for ino in [ino for ino in self.counts if ino not in kept]:
            self.fs.forget(ino, self.counts.pop(ino))

    def _forget_unlinked(self, node: Node) -> None:
        """What nobody can reach any more, the kernel forgets at once."""
        used = any(opened.node is node for opened in self._fds.values())
        gone = node.unlinked or node.directory is not None
        if gone and not used and node.ino in self.counts:
            self.fs.forget(node.ino, self.counts.pop(node.ino))

    # -- as the kernel walks a path --------------------------------------------------------------

    async def _look(self, state: DirectoryState, name: bytes) -> tuple[Node, Attributes]:
        node, st = await self.fs.lookup.resolve_with_stat(state, name)
        node.lookups += 1
        return node, await self._reply(node, st)

    async def _reply(self, node: Node, st: os.stat_result | None = None) -> Attributes:
        """The attributes in a reply that gives the kernel `node`, with the lookup in it."""
        try:
            attributes = await self.fs.lookup.attributes(node, st)
        except BaseException:
            self.fs.forget(node.ino, 1)
            raise
        self.counts[node.ino] += 1
        return attributes

    def _state(self, node: Node) -> DirectoryState:
        return self.fs.tree.directory(node.ino)

    async def _parent(self, path: str) -> tuple[DirectoryState, bytes]:
        directory, _, name = path.rpartition("/")
        if not directory:
            return self.fs.tree.directory(ROOT_INO), os.fsencode(name)
        node, _ = await self._walk(directory, follow=True)
        return self._state(node), os.fsencode(name)

    async def _walk(
        self, path: str, *, follow: bool, limit: int = LINKS
    ) -> tuple[Node, Attributes]:
        node = self.fs.tree.node(ROOT_INO)
        parts = [part for part in path.split("/") if part]
        if not parts:
            return node, await self.fs.lookup.attributes(node)
        for index, part in enumerate(parts):
            node, attributes = await self._look(self._state(node), os.fsencode(part))
            last = index == len(parts) - 1
            if node.kind is Kind.SYMLINK and (follow or not last):
                if not limit:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.fsdecode(await self.fs.lookup.target(node))
                whole = "/".join([*parts[:index], target, *parts[index + 1 :]])
                return await self._walk(whole, follow=follow, limit=limit - 1)
        return node, attributes

    def _again(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """The kernel walks a path once more when it was told ESTALE (path_lookupat)."""
        try:
            return self.run(call, *arguments)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return self.run(call, *arguments)

    async def _refuse_existing(self, state: DirectoryState, name: bytes) -> None:
        try:
            await self._look(state, name)
        except FileNotFoundError:
            return
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))

    # -- open files ----------------------------------------------------------------------------

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        return self._again(self._open, path, flags, mode)

    async def _open(self, path: str, flags: int, mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            directory, _ = await self._walk(path, follow=True)
            handle = await self.fs.files.create_nameless(self._state(directory), mode, CALLER)
            await self._reply(handle.node)
            return self._descriptor(handle, flags)
        try:
            node, _ = await self._walk(path, follow=True)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            state, name = await self._parent(path)
            handle = await self.fs.files.create(state, name, mode, self.caller)
            await self._reply(handle.node)
            return self._descriptor(handle, flags)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        handle = await self.fs.files.open(node, flags & ~os.O_CREAT, self.caller)
        return self._descriptor(handle, flags)

    def _descriptor(self, handle: Handle, flags: int) -> int:
        self._next += 1
        self._fds[self._next] = Opened(handle.node, handle, flags)
        return self._next

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self.run(self.fs.ranges.read, self._fds[fd].handle, offset, size)

    def write(self, fd: int, data: bytes) -> int:
        opened = self._fds[fd]
        if opened.flags & os.O_APPEND:
            opened.at = self.fstat(fd).size
        self.pwrite(fd, data, opened.at)
        opened.at += len(data)
        return len(data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return self.run(self.fs.ranges.write, self._fds[fd].handle, offset, data)

    def close(self, fd: int) -> None:
        self.run(self._close, fd)

    async def _close(self, fd: int) -> None:
        opened = self._fds.pop(fd)
        try:
            await self.fs.files.flush(opened.handle)
        finally:
            await self.fs.files.release(opened.handle)
            self._forget_unlinked(opened.node)

    def fsync(self, fd: int) -> None:
        self.run(self.fs.files.fsync, self._fds[fd].handle)

    def fstat(self, fd: int) -> Attributes:
        return self.run(self.fs.lookup.attributes, self._fds[fd].node)

    def ftruncate(self, fd: int, size: int) -> None:
        opened = self._fds[fd]
        changes = Changes(size=size)
        self.run(self.fs.attributes.setattr, opened.node, changes, opened.handle, self.caller)

    # -- names ---------------------------------------------------------------------------------

    def stat(self, path: str) -> Attributes:
        return self._again(self._stat, path)[1]

    def inode(self, path: str) -> int:
        return self._again(self._stat, path)[0].ino

    async def _stat(self, path: str) -> tuple[Node, Attributes]:
        return await self._walk(path, follow=False)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        async def call() -> None:
            state, name = await self._parent(path)
            await self._refuse_existing(state, name)
            await self._reply(await self.fs.names.mkdir(state, name, mode, self.caller))

        self._again(call)

    def symlink(self, target: str, path: str) -> None:
        async def call() -> None:
            state, name = await self._parent(path)
            await self._refuse_existing(state, name)
            made = await self.fs.names.symlink(state, name, os.fsencode(target), self.caller)
            await self._reply(made)

        self._again(call)

    def readlink(self, path: str) -> str:
        async def call() -> bytes:
            node, _ = await self._walk(path, follow=False)
            if node.kind is not Kind.SYMLINK:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return await self.fs.lookup.target(node)

        return os.fsdecode(self._again(call))

    def link(self, old: str, new: str) -> None:
        async def call() -> None:
            node, _ = await self._walk(old, follow=False)
            state, name = await self._parent(new)
            await self._refuse_existing(state, name)
            await self.fs.names.link(node, state, name)
            await self._reply(node)

        self._again(call)

    def link_open(self, fd: int, path: str) -> None:
        async def call() -> None:
            state, name = await self._parent(path)
            await self._refuse_existing(state, name)
            await self.fs.names.link(self._fds[fd].node, state, name)
            await self._reply(self._fds[fd].node)

        self._again(call)

    def unlink(self, path: str, process: int | None = None) -> None:
        """unlink(2), of the process with that id, or of the caller."""
        by = self.caller.process if process is None else process

        async def call() -> None:
            state, name = await self._parent(path)
            node, _ = await self._look(state, name)
            await self.fs.finishing.before_removal(state, by)
            await self.fs.names.unlink(state, name)
            self._forget_unlinked(node)

        self._again(call)

    def rmdir(self, path: str) -> None:
        async def call() -> None:
            state, name = await self._parent(path)
            node, _ = await self._look(state, name)
            await self.fs.names.rmdir(state, name)
            self._forget_unlinked(node)

        self._again(call)

    def rename(self, old: str, new: str) -> None:
        async def call() -> None:
            state, name = await self._parent(old)
            await self._look(state, name)
            state2, name2 = await self._parent(new)
            try:
                target, _ = await self._look(state2, name2)
            except FileNotFoundError:
                await self.fs.names.rename(state, name, state2, name2, 0)
                return
            moved = self.fs.lookup.in_overlay(state, name)
            await self.fs.names.rename(state, name, state2, name2, 0)
            if target is not moved:
                self._forget_unlinked(target)

        self._again(call)

    def listdir(self, path: str = "") -> list[str]:
        return self._again(self._listdir, path)

    async def _listdir(self, path: str) -> list[str]:
        node, _ = await self._walk(path, follow=True)
        listing = self.fs.listings.open(self._state(node))
        names = []
        try:
            position = 0
            while batch := await self.fs.listings.batch(listing, position):
                for position, name in batch:
                    found = listing.ahead.pop(position, None)
                    if found is not None and name not in DOTS:
                        self.counts[found.ino] += 1
                        names.append(os.fsdecode(name))
                position += 1
        finally:
            self.fs.listings.release(listing.number)
        return names

    # -- attributes ----------------------------------------------------------------------------

    def _change(self, path: str, changes: Changes, *, follow: bool = False) -> None:
        async def call() -> None:
            node, _ = await self._walk(path, follow=follow)
            await self.fs.attributes.setattr(node, changes, None, self.caller)

        self._again(call)

    def chmod(self, path: str, mode: int) -> None:
        self._change(path, Changes(mode=stat_module.S_IMODE(mode)), follow=True)

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._change(path, Changes(uid=uid, gid=gid))

    def utime(self, path: str, atime_ns: int, mtime_ns: int) -> None:
        self._change(path, Changes(atime_ns=atime_ns, mtime_ns=mtime_ns))

    def truncate(self, path: str, size: int) -> None:
        self._change(path, Changes(size=size), follow=True)

    def getxattr(self, path: str, name: str) -> bytes:
        async def call() -> bytes:
            node, _ = await self._walk(path, follow=False)
            if os.fsencode(name) in self.fs.virtual.names:
                return await self.fs.virtual.value(node, os.fsencode(name))
            return await self.fs.attributes.getxattr(node, os.fsencode(name))

        return self._again(call)

    def setxattr(self, path: str, name: str, value: bytes) -> None:
        async def call() -> None:
            node, _ = await self._walk(path, follow=False)
            await self.fs.attributes.setxattr(node, os.fsencode(name), value)

        self._again(call)

    def removexattr(self, path: str, name: str) -> None:
        async def call() -> None:
            node, _ = await self._walk(path, follow=False)
            await self.fs.attributes.removexattr(node, os.fsencode(name))

        self._again(call)

    def listxattr(self, path: str) -> list[str]:
        async def call() -> list[bytes]:
            node, _ = await self._walk(path, follow=False)
            return await self.fs.attributes.listxattr(node)

        return [os.fsdecode(name) for name in self._again(call)]
