"""Old checkpoints that tierfs itself removes, when the configuration says so.

It does what an application's own rotation would: unlinks and rmdirs, in order behind what was
issued before. So a removal is collected, held and told of like any other (DESIGN 6, "Removal").
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable

import trio

from tierfs.groups.retention import surplus
from tierfs.model import ROOT, Kind, Name, ObjectId, OpKind
from tierfs.namespace.changing.names import Names
from tierfs.namespace.core import Core
from tierfs.namespace.finding.listing import Listings
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.finding.pointers import MAX_BYTES
from tierfs.namespace.overlay.nodes import DirectoryState, Node
from tierfs.order import names as roles
from tierfs.order.spellings import spellings_in

log = logging.getLogger(__name__)


class Retention:
    """Looks at a directory after a checkpoint was sealed in it, one directory at a time."""

    def __init__(
        self, core: Core, lookup: Lookup, listings: Listings, names: Names,
        forget: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._lookup = lookup
        self._listings = listings
        self._names = names
        self._forget = forget
        self._send, self._parents = trio.open_memory_channel[Node](math.inf)
        if core.settings.keep_last:
            core.groups.sealed = self._sealed

    def _sealed(self, parent: ObjectId) -> None:
        node = self._core.tree.by_object.get(parent)
        if node is not None:
            node.lookups += 1  # it is needed until it was looked at
            self._send.send_nowait(node)

    def resume(self) -> None:
        """Look again where a removal may have been cut off by the end of an earlier daemon."""
        if not self._core.settings.keep_last:
            return
        cut = {op.group for op in self._core.backlog.under(ROOT) if op.kind is OpKind.UNLINK}
        for group in cut:
            state = self._core.tree.directories.get(group) if group is not None else None
            if state is not None and state.parent is not None:
                self._sealed(state.parent)

    async def run(self) -> None:
        """Remove what is surplus, until cancelled."""
        async for parent in self._parents:
            try:
                await self._look(parent)
            except OSError as error:
                log.info("retention: cannot look for old checkpoints: %s", error)
            finally:
                self._forget(parent.ino, 1)

    async def _look(self, parent: Node) -> None:
        assert parent.directory is not None
        state = self._core.tree.directories[parent.directory]
        names = await self._listings.names(state)
        groups = self._core.groups
        sealed = [name for name in names if name not in state.unsealed]
        sealed = [name for name in sealed if groups.is_group(state, name)]
        if not self._surplus(sealed):
            return
        keep = await self._named(state, set(names) - set(sealed))
        for name in self._surplus(sealed, keep):
            await self._remove_checkpoint(state, name)

    def _surplus(self, sealed: Iterable[Name], keep: Collection[Name] = ()) -> list[Name]:
        last, every = self._core.settings.keep_last, self._core.settings.keep_every
        return surplus(sealed, keep_last=last, keep_every=every, keep=keep)

    async def _remove_checkpoint(self, state: DirectoryState, name: Name) -> None:
        node = await self._lookup.find(state, name)
        if node is None or node.directory is None or name in state.unsealed:
            return
        if self._core.backlog.pointers_to(node.directory):
            return
        log.info("checkpoint %s: is removed by keep_last and keep_every", os.fsdecode(name))
        await self._remove(state, name, node)

    async def _remove(self, state: DirectoryState, name: Name, node: Node) -> None:
        if node.directory is None:
            await self._names.unlink(state, name)
            return
        node.lookups += 1
        try:
            inner = self._core.tree.directories[node.directory]
            for each in await self._listings.names(inner):
                below = await self._lookup.find(inner, each)
                if below is not None:
                    await self._remove(inner, each, below)
            await self._names.rmdir(state, name)
        finally:
            self._forget(node.ino, 1)

    # -- what names a checkpoint -------------------------------------------------------------------

    async def _named(self, state: DirectoryState, others: Iterable[Name]) -> set[Name]:
        """What the symbolic links and pointers among `others` name: it is kept."""
        found: set[Name] = set()
        for name in others:
            node = await self._lookup.find(state, name)
            if node is None:
                continue
            if node.kind is Kind.SYMLINK:
                found |= set((await self._lookup.target(node)).split(b"/"))
            elif node.kind is Kind.FILE and roles.role(name) is roles.Role.POINTER:
                for spellings in spellings_in(await self._content(node)):
                    found |= set(spellings)
        return found

    async def _content(self, node: Node) -> bytes:
        """The committed content of a small file; a later one is a pending pointer."""
        if node.shared is None:
            return b""
        core = self._core
        fd, st = await self._lookup.open_committed(node)
        try:
            if st.st_size > MAX_BYTES:
                return b""
            return await core.on_shared(core.os.pread, "pointer.read", fd, MAX_BYTES, 0)
        finally:
            core.closing_shared.add(fd)
