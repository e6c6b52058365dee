"""Bringing committed files to the local tier: behind their readers (policy `cache`), or asked for.

A copy is served only after it was read back from the local drive and compared: with the digest
that was recorded when the file was committed, or else with the shared file, read once more.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from tierfs.capacity import Usage, beyond
from tierfs.errors import VerifyMismatch
from tierfs.journal import SaveClean
from tierfs.model import CleanRecord, Signature
from tierfs.namespace.content.data import Data
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, LocalObject, Node
from tierfs.namespace.room.eviction import Eviction
from tierfs.shared import digest, layout

log = logging.getLogger(__name__)

WIDTH = 2
"""So many files are brought at once."""

AGAIN_SECONDS = 60.0
"""Who could not be brought is not tried again before."""

TRIES = 10
"""How often room is made for one: others write meanwhile."""

NO_ROOM = "there is no room for it beside what is pending, pinned, promised or open"

Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class Promotions:
    """Files that are wanted, and those under way; each once, however many readers it has.

    `forget` takes back a lookup of a node (`Node.lookups`).
    """

    def __init__(
        self, core: Core, lookup: Lookup, data: Data, eviction: Eviction,
        forget: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._lookup = lookup
        self._data = data
        self._eviction = eviction
        self._forget = forget
        self._under_way: set[int] = set()
        self._over: dict[int, trio.Event] = {}
        self._not_before: dict[int, float] = {}
        self._send, self._receive = trio.open_memory_channel[tuple[Node, Signature]](math.inf)

    def want(self, node: Node, signature: Signature) -> None:
        """A reader has opened `node` on the shared tier, in the state `signature`. Synchronous."""
        inode = signature.inode
        if inode in self._under_way or time.monotonic() < self._not_before.get(inode, 0.0):
            return
        self._under_way.add(inode)
        node.lookups += 1
        self._send.send_nowait((node, signature))

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WIDTH):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        async for node, signature in self._receive:
            try:
                await self.bring(node, signature)
                self._not_before.pop(signature.inode, None)
            except OSError as error:
                log.info("%s stays on the shared tier: %s", self._named(node), error)
                self._refuse(signature)
            except VerifyMismatch:
                log.error("%s: the copy for the local tier differs: dropped", self._named(node))
                self._refuse(signature)
            finally:
                self._under_way.discard(signature.inode)
                self._forget(node.ino, 1)

    def _refuse(self, signature: Signature) -> None:
        now = time.monotonic()
        self._not_before = {i: at for i, at in self._not_before.items() if at > now}
        self._not_before[signature.inode] = now + AGAIN_SECONDS

    def _named(self, node: Node) -> str:
        return os.fsdecode(b"/".join(self._core.tree.path_of(node) or (b"?",)))

    async def bring(self, node: Node, signature: Signature) -> None:
        """Makes the local copy of `node`, if its shared file is in the state `signature`.

        Who asks for one that is under way waits for it. OSError, VerifyMismatch: nothing is left.
        """
        inode = signature.inode
        if (over := self._over.get(inode)) is not None:
            await over.wait()
            return
        over = self._over[inode] = trio.Event()
        try:
            await self._bring(node, signature)
        finally:
            del self._over[inode]
            over.set()

    async def _bring(self, node: Node, signature: Signature) -> None:
        core = self._core
        if not await self._has_room(signature.size):
            raise OSError(NO_ROOM)
        fd, st, xattrs = await self._data.open_shared(node)
        obj = core.add_object(node.kind, Content.DATA)
        obj.pending += 1  # held over the awaits
        try:
            if Signature.of(st) != signature:
                return  # it is another by now; its next reader wants that one
            attributes = await self._lookup.attributes(node, st)
            await self._data.make(node, obj, attributes, xattrs, fd)
            recorded = await core.calls.content(self._recorded, fd)
            found = await self._verify(obj, fd, st.st_size, recorded)
            after = await core.calls.content(core.os.fstat, "promote.stat", fd)
            if Signature.of(after) == signature:
                await self._record(obj, signature, found)
        finally:
            with trio.CancelScope(shield=True):
                await self._let_go(obj)
                await core.calls.content(core.os.close, "promote.close", fd)

    async def _let_go(self, obj: LocalObject) -> None:
        core = self._core
        obj.pending -= 1
        if core.unused(obj):
            with suppress(OSError):
                await core.dispose(obj)

    async def _has_room(self, size: int) -> bool:
        """Whether `size` more bytes leave the local tier below its high mark.

        Clean copies go for them; not when nothing more can: what is pending, or in use, stays, and
        who writes comes before who wants a copy.
        """
        core = self._core
        for _ in range(TRIES):
            usage = Usage(*await core.local(core.store.usage))
            missing = beyond(usage, self._eviction.marks, size + core.promises.wanted)
            if not missing:
                return True
            if not await self._eviction.make(missing):
                return False
        return False

    def _recorded(self, fd: int) -> str | None:
        try:
            return self._core.os.get_xattr("promote.digest", fd, layout.XATTR_DIGEST).decode()
        except OSError:
            return None

    async def _verify(self, obj: LocalObject, shared_fd: int, size: int, known: str | None) -> str:
        """The digest of the copy. Raises VerifyMismatch."""
        core = self._core
        try:
            kind = digest.digest_kind(known or "")
        except ValueError:
            known, kind = None, core.shared.settings.digest
        fd = await core.local(core.store.open_object, obj.id, os.O_RDONLY)
        try:
            await core.local(core.store.sync, obj.id)
            await core.local(core.os.drop_cache, "promote.drop_cache", fd, 0, size)
            found = await self._digest(core.local, fd, size, kind)
        finally:
            await core.local(core.os.close, "promote.close", fd)
        if known is None:
            known = await self._digest(core.calls.content, shared_fd, size, kind)
        if found != known:
            raise VerifyMismatch(f"object {obj.id:016x}")
        return found

    async def _digest(self, run: Run, fd: int, size: int, kind: str) -> str:
        digests = [
            await run(partial(digest.chunk_digest, self._core.os, fd, kind, span))
            for span in digest.chunks(size)
        ]
        return digest.file_digest(kind, digests)

    async def _record(self, obj: LocalObject, signature: Signature, found: str) -> None:
        core = self._core
        older = await core.journal.clean_copy(signature.inode)
        record = CleanRecord(signature, obj.id, found, signature.size, time.time_ns())
        obj.clean, obj.origin = True, signature
        core.pins.copied(signature.inode, signature.size)
        await core.journal.post(SaveClean(record)).written()
        if older is not None and older.object != obj.id:
            await self._data.drop_copy(older.object)
