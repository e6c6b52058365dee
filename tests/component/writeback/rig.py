"""Write-back on real rooms, driven as the namespace drives it, without a kernel.

The rig keeps the logical tree in the simplest form that can issue ops: a path for each directory
id. It has no overlay, so a test looks at the shared tier itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tests.faults import Stall
from tierfs.journal import Change, DropObject, DropOp, Journal, SaveDirectory, SaveObject, SaveOp
from tierfs.local import ObjectStore
from tierfs.model import (
    EXCHANGED,
    ROOT,
    DirectoryRecord,
    Kind,
    ObjectId,
    ObjectRecord,
    Op,
    OpKind,
    OpState,
    new_object_id,
)
from tierfs.order import Backlog, OrderSettings
from tierfs.osio import OS, RENAME_EXCHANGE
from tierfs.shared import Places, SharedTier
from tierfs.threads import Pool
from tierfs.writeback import Outcome, OutcomeKind, WriteBack, WritebackSettings

FAST = WritebackSettings(first_retry_seconds=0.02, last_retry_seconds=0.05, progress_seconds=0.02)
ORDER = OrderSettings(unlink_settle=0.02, temporary_hold=30.0)


@dataclass(frozen=True)
class SharedTierSettings:
    digest: str = "sha256"
    lease: float = 3600.0
    sha256sums: bool = False
    small_file: int = 1 << 20
    small_reserve: int = 0
    transfer_chunks: int = 2


@dataclass
class Rig:
    """One node: open rooms, and what the application has done on it so far."""

    store: ObjectStore
    journal: Journal
    shared: SharedTier
    places: Places
    backlog: Backlog
    writeback: WriteBack = field(init=False)
    paths: dict[ObjectId, bytes] = field(default_factory=lambda: {ROOT: b""})
    names: dict[bytes, tuple[ObjectId, int | None]] = field(default_factory=dict)
    ended: list[Outcome] = field(default_factory=list)

    # -- what an application does ----------------------------------------------------------------

    def put(
        self,
        path: str,
        data: bytes = b"x",
        *,
        mode: int = 0o644,
        size: int = 0,
        state: OpState = OpState.PENDING,
    ) -> Op:
        """Create, write and close a file; or, with state OPEN, leave it open."""
        parent, name = self._split(path)
        obj = new_object_id()
        fd = self.store.create(obj, Kind.FILE, mode=mode, uid=0, gid=0, parent=parent, name=name)
        os.pwrite(fd, data, 0)
        if size:
            os.ftruncate(fd, size)
        os.close(fd)
        overwrites = os.fsencode(path) in self.names
        return self._issue(
            OpKind.PUT,
            obj,
            path,
            Kind.FILE,
            size=size or len(data),
            overwrites=overwrites,
            state=state,
        )

    def rewrite(self, op: Op, data: bytes, *, number: bool = True) -> None:
        """Write the still pending file of `op` again, in place, and close it."""
        fd = self.store.open_object(op.object, os.O_RDWR)
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        os.close(fd)
        op.data_version += 1
        op.durable = False
        op.size = len(data)
        self.backlog.renumber(op, self.journal.next_number())
        self.journal.post(SaveOp(op))
        self.writeback.submit(op)

    def chmod(self, op: Op, mode: int) -> None:
        """Change the mode of an object that `op` is still to commit."""
        self.store.set_attributes(op.object, mode=mode)
        op.attr_version += 1
        self.journal.post(SaveOp(op))

    def mkdir(self, path: str, mode: int = 0o755) -> Op:
        parent, name = self._split(path)
        obj = new_object_id()
        self.store.create(obj, Kind.DIRECTORY, mode=mode, uid=0, gid=0, parent=parent, name=name)
        self.paths[obj] = os.fsencode(path)
        record = DirectoryRecord(obj, parent, name)
        self.places.add(record)
        self.journal.post(SaveDirectory(record))
        return self._issue(OpKind.MKDIR, obj, path, Kind.DIRECTORY)

    def symlink(self, target: str, path: str) -> Op:
        overwrites = os.fsencode(path) in self.names
        parent, name = self._split(path)
        obj = new_object_id()
        self.store.create(
            obj, Kind.SYMLINK, mode=0o777, uid=0, gid=0, parent=parent, name=name,
            target=os.fsencode(target),
        )  # fmt: skip
        return self._issue(OpKind.SYMLINK, obj, path, Kind.SYMLINK, overwrites=overwrites)

    def link(self, source: str, path: str) -> Op:
        obj, inode = self.names[os.fsencode(source)]
        return self._issue(OpKind.LINK, obj, path, Kind.FILE, source=source, inode=inode)

    def rename(self, source: str, path: str) -> Op:
        obj, inode = self.names.pop(os.fsencode(source))
        kind = Kind.DIRECTORY if obj in self.paths else Kind.FILE
        op = self._issue(OpKind.RENAME, obj, path, kind, source=source, inode=inode)
        if kind is Kind.DIRECTORY:
            self._move_paths(os.fsencode(source), os.fsencode(path))
        return op

    def exchange(self, source: str, path: str) -> Op:
        """RENAME_EXCHANGE of two files."""
        (obj, inode), back = (self.names[os.fsencode(each)] for each in (source, path))
        fields = (f"{EXCHANGED}{back[0]:x}",)
        op = self._issue(
            OpKind.RENAME, obj, path, Kind.FILE, source=source, inode=inode, fields=fields,
            flags=RENAME_EXCHANGE,
        )  # fmt: skip
        self.names[os.fsencode(source)] = back
        return op

    def unlink(self, path: str) -> Op:
        obj, inode = self.names[os.fsencode(path)]
        op = self._issue(OpKind.UNLINK, obj, path, Kind.FILE, inode=inode)
        del self.names[os.fsencode(path)]
        return op

    def rmdir(self, path: str) -> Op:
        obj, inode = self.names[os.fsencode(path)]
        op = self._issue(OpKind.RMDIR, obj, path, Kind.DIRECTORY, inode=inode)
        del self.names[os.fsencode(path)]
        return op

    def trash(self, path: str) -> Op:
        """Remove a checkpoint as a whole."""
        obj, inode = self.names[os.fsencode(path)]
        return self._issue(OpKind.TRASH, obj, path, Kind.DIRECTORY, inode=inode)

    def setattr(self, path: str, *fields: str) -> Op:
        """Send the attributes that the object has now to the committed entry."""
        obj, inode = self.names[os.fsencode(path)]
        kind = Kind.DIRECTORY if obj in self.paths else Kind.FILE
        return self._issue(OpKind.SETATTR, obj, path, kind, inode=inode, fields=fields)

    # -- and what a test asks --------------------------------------------------------------------

    def on_shared(self, path: str = "") -> Path:
        return self.shared.root / path

    async def drain(self, seconds: float = 30) -> None:
        """Until everything is committed; fails the test when that takes too long."""
        with trio.fail_after(seconds):
            for op in list(self.backlog.under(ROOT)):
                await self.writeback.committed(op)

    def committed(self) -> list[str]:
        """Kind and last name of all that was committed, in order."""
        return [
            f"{o.op.kind} {os.fsdecode(o.op.name)}"
            for o in self.ended
            if o.kind is OutcomeKind.COMMITTED
        ]

    # -- the namespace's part --------------------------------------------------------------------

    def outcome(self, outcome: Outcome) -> Sequence[Change]:
        self.ended.append(outcome)
        op = outcome.op
        path = b"/".join(op.path)
        if outcome.st is not None and path in self.names:
            self.names[path] = (op.object, outcome.st.st_ino)
        changes: list[Change] = [DropOp(op.row)]
        if self.backlog.of_object(op.object) is None:
            changes.append(DropObject(op.object))
        return changes

    def reload(self) -> None:
        """Take over what the journal holds, as a mount does."""
        snapshot = self.journal.load()
        for record in snapshot.directories:
            self.places.add(record)
        for record in snapshot.directories:
            self.paths[record.id] = self.places.path(record.id)
        for op in snapshot.ops:
            self._locate(op)
            self.backlog.add(op)
        for op in snapshot.ops:
            self.writeback.submit(op)

    def _locate(self, op: Op) -> None:
        op.scope, op.path = self._scope(op.parent), self._path(op.parent, op.name)
        if op.parent2 is not None:
            assert op.name2 is not None
            op.scope2, op.path2 = self._scope(op.parent2), self._path(op.parent2, op.name2)
        if op.kind is OpKind.RENAME and op.object in self.paths:
            self._move_paths(b"/".join(op.path2), b"/".join(op.path))
        inode = op.staged_inode or op.base_inode
        self.names[b"/".join(op.path)] = (op.object, inode)

    def _issue(
        self,
        kind: OpKind,
        obj: ObjectId,
        path: str,
        object_kind: Kind,
        *,
        source: str | None = None,
        inode: int | None = None,
        fields: tuple[str, ...] = (),
        size: int = 0,
        overwrites: bool = False,
        state: OpState = OpState.PENDING,
        flags: int = 0,
    ) -> Op:
        parent, name = self._split(path)
        now = time.time_ns()
        number = self.journal.next_number()
        op = Op(
            self.journal.next_row(), number, kind, obj, parent, name, now, state=state,
            first=number if state is OpState.PENDING else 0,
            changed_ns=0 if kind is OpKind.SETATTR else now, base_inode=inode, fields=fields,
            size=size, overwrites=overwrites, scope=self._scope(parent),
            path=self._path(parent, name), flags=flags,
        )  # fmt: skip
        if source is not None:
            op.parent2, op.name2 = self._split(source)
            op.scope2 = self._scope(op.parent2)
            op.path2 = self._path(op.parent2, op.name2)
        self.names[os.fsencode(path)] = (obj, inode)
        self.journal.post(
            SaveObject(ObjectRecord(obj, object_kind, kind is OpKind.PUT)), SaveOp(op)
        )
        self.backlog.add(op)
        self.writeback.submit(op)
        return op

    def _split(self, path: str) -> tuple[ObjectId, bytes]:
        directory, _, name = os.fsencode(path).rpartition(b"/")
        return next(i for i, p in self.paths.items() if p == directory), name

    def _path(self, parent: ObjectId, name: bytes) -> tuple[bytes, ...]:
        return (*filter(None, self.paths[parent].split(b"/")), name)

    def _scope(self, directory: ObjectId) -> tuple[ObjectId, ...]:
        path = self.paths[directory]
        above = [i for i, p in self.paths.items() if p == b"" or (path + b"/").startswith(p + b"/")]
        return tuple(sorted(above, key=lambda i: len(self.paths[i])))

    def _move_paths(self, old: bytes, new: bytes) -> None:
        for directory, path in self.paths.items():
            if path == old or path.startswith(old + b"/"):
                self.paths[directory] = new + path[len(old) :]
        for path in [p for p in self.names if p.startswith(old + b"/")]:
            self.names[new + path[len(old) :]] = self.names.pop(path)


def open_rig(
    local: Path,
    shared: Path,
    system: OS | None = None,
    *,
    settings: WritebackSettings = FAST,
    order: OrderSettings = ORDER,
) -> Rig:
    """Open all rooms on two directories; `rig.writeback.run()` is the caller's."""
    system = system or OS()
    local.mkdir(exist_ok=True)
    shared.mkdir(exist_ok=True)
    store = ObjectStore.open(local, system)
    journal = Journal.open(local / "journal.db")
    tier = SharedTier(
        shared, store.member, system, SharedTierSettings(),
        shared_threads=Pool("shared", 16), transfer_threads=Pool("transfer", 8),
    )  # fmt: skip
    tier.register("node")
    rig = Rig(store, journal, tier, Places(tier.root_inode), Backlog(order))
    rig.writeback = WriteBack(
        rig.backlog, rig.places, journal, store, tier, settings, rig.outcome,
        local_threads=Pool("local", 8),
    )  # fmt: skip
    rig.reload()
    return rig


def close_rig(rig: Rig) -> None:
    rig.journal.close()
    rig.shared.close()
    rig.store.close()


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """`rig` with its write-back at work; everything closed at the end."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.writeback.run)
            yield rig
            nursery.cancel_scope.cancel()
    finally:
        close_rig(rig)


@asynccontextmanager
async def releasing(stall: Stall) -> AsyncIterator[None]:
    """Whatever happens in the block, no thread stays behind in `stall`."""
    try:
        yield
    finally:
        stall.release()


async def until(condition: Callable[[], object]) -> None:
    """Until `condition()` holds; for states of the shared tier, which sends no events."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def reached(stall: Stall) -> None:
    """Until a call stands in `stall`."""
    assert await trio.to_thread.run_sync(stall.reached.wait, 10)


def plain_files(shared: Path) -> Iterator[Path]:
    """All that an application sees on the shared tier."""
    for path in sorted(shared.rglob("*")):
        if ".tierfs" not in path.relative_to(shared).parts:
            yield path


def staged_files(shared: Path) -> list[Path]:
    """What is left in staging."""
    found = (shared / ".tierfs" / "staging").glob("*/*/*")
    return [*found, *shared.rglob(".staging_*")]
