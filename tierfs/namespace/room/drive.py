"""The drive of the local tier has failed: the mount goes on, write-through (G9).

The journal is the witness: every close writes to it. From then on what is new lies on the shared
tier from the start, close() returns after the commit, and what only the drive had is named.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable

import trio

from tierfs.errors import JournalError
from tierfs.journal import SaveOp
from tierfs.model import ROOT, Mark, Name, Op, OpKind, OpState, Phase
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Content, Handle, LocalObject

log = logging.getLogger(__name__)

Commit = Callable[[Handle], Awaitable[None]]

LOOK_SECONDS = 0.5
NOTE_SECONDS = 1.0

RETURN_SECONDS = 2.0
"""How often it is looked whether the drive is there again."""

AGAIN_SECONDS = 30.0
"""How long after `on_returned` it is called again, should nothing have come of it."""

OF_DRIVE = frozenset(
    {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.EUCLEAN}
)
"""Errors after which the journal is asked whether the drive is still there."""

HAS_OBJECT = frozenset({OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK, OpKind.SETATTR})

TAKEN = "the local drive failed before this was committed: bring it back, or write it again"


class Drive:
    """Notices that it failed, and does what is different then.

    Attributes:
        failed: why, in one line; "" while it is there.
        on_failed: called once, with the names (from the root) of what only the drive had.
        on_returned: called when it is there again and nothing is pending that only this daemon
            knows of: the next one can take it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.on_failed: Callable[[list[tuple[Name, ...]]], None] = lambda names: None
        self.on_returned: Callable[[], None] = lambda: None
        self._over = trio.Event()
        self._noted = trio.Event()
        self.failed = ""

    async def run(self) -> None:
        """Looks now and then, until cancelled."""
        while not self.look():
            with trio.move_on_after(LOOK_SECONDS):
                await self._over.wait()
        await self._release()
        while not self._noted.is_set():
            try:
                await self._core.on_shared(self._core.shared.note_failed_drive)
                self._noted.set()
            except OSError as error:
                log.warning("the failed drive cannot be noted on the shared tier: %s", error)
                await trio.sleep(NOTE_SECONDS)
        await self._await_return()

    async def _await_return(self) -> None:
        """What is issued from now on stands in a journal that ends with this daemon."""
        core = self._core
        while True:
            await trio.sleep(RETURN_SECONDS)
            if self._knows_more() or not await core.local(core.store.has_returned):
                continue
            if not self._knows_more():
                log.warning("the local drive is there again: the next daemon takes it")
                self.on_returned()
                await trio.sleep(AGAIN_SECONDS)

    def _knows_more(self) -> bool:
        """Whether something is pending that the journal on the drive may not know of."""
        backlog = self._core.backlog
        return bool(backlog.held()) or any(op.mark is None for op in backlog.under(ROOT))

    def look(self) -> bool:
        """Whether the drive has failed, as far as the journal knows. Synchronous."""
        lost = self._core.journal.lost
        if not self.failed and lost is not None:
            self._fail(str(lost))
        return bool(self.failed)

    async def is_lost(self, error: OSError) -> bool:
        """Whether `error`, met on the local tier, came because the drive has failed."""
        if error.errno not in OF_DRIVE:
            return False
        if not self.look():
            with contextlib.suppress(JournalError):
                await self._core.journal.probe()
        return self.look()

    def has_lost(self, obj: LocalObject) -> bool:
        """Whether `obj` went with the drive."""
        return self.look() and not self._core.store.spread.is_spilled(obj.id)

    def check(self, obj: LocalObject) -> None:
        """OSError(EIO) if `obj` went with the drive."""
        if self.has_lost(obj):
            raise OSError(errno.EIO, "it was on the local drive, which has failed")

    def _fail(self, reason: str) -> None:
        core = self._core
        self.failed = reason
        core.store.spread.only_far = True
        log.error("the local drive has failed: the mount is write-through now (%s)", reason)
        taken = [op for op in core.backlog.under(ROOT) if self._took(op)]
        for op in taken:
            core.writeback.lost(op, TAKEN)
        self.on_failed([op.path for op in taken])
        self._over.set()

    def _took(self, op: Op) -> bool:
        obj = self._core.tree.objects.get(op.object)
        if op.kind not in HAS_OBJECT or obj is None or obj.content is Content.NONE:
            return False
        if op.phase is Phase.STAGED and op.state is not OpState.OPEN:
            op.durable = True  # it is on the shared tier, verified: no drive is needed any more
            return False
        return op.phase is not Phase.PUBLISHING and self.has_lost(obj)

    async def _release(self) -> None:
        """Lets go of everything on the drive, so that it can be unmounted and mounted again."""
        core = self._core
        nothing = await core.local(core.os.open_root, "drive.nothing", "/")
        try:
            for obj in list(core.tree.objects.values()):
                if not core.store.spread.is_spilled(obj.id):
                    for fd in (obj.fd, obj.write_fd):
                        if fd >= 0:
                            core.os.replace("drive.release", nothing, fd)
            await core.local(core.store.let_go)
        finally:
            core.os.close("drive.nothing", nothing)

    def doubtful(self, obj: LocalObject, error: OSError) -> None:
        """Its tier failed at the last close: nobody knows what the file holds."""
        core, op, obj.live = self._core, obj.put, False
        if op is None or op.phase is Phase.PUBLISHING:
            return
        op.mark, op.state = Mark.SUSPECT, OpState.PENDING
        where = "shared" if core.store.spread.is_spilled(obj.id) else "local"
        op.error = (
            f"the {where} tier failed when it was closed ({error.strerror}): check the file, "
            "then run tierfs accept or tierfs discard"
        )
        core.backlog.update(op)
        core.journal.post(SaveOp(op))
        core.writeback.submit(op)

    def and_commit(self, commit: Commit) -> Commit:
        """`commit`, with OSError(EIO) for what went with the drive.

        While that is away it returns when a later start will know that its journal is old.
        """

        async def checked(handle: Handle) -> None:
            if handle.object is not None and handle.object.put is not None:
                self.check(handle.object)
            await commit(handle)
            if self.failed:
                await self._noted.wait()

        return checked
