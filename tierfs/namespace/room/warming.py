"""Files that somebody wants on this node before they are read (`tierfs warm`, `tierfs pin`)."""

from __future__ import annotations

import errno
from collections.abc import Collection

from tierfs.capacity import Usage, fits
from tierfs.model import Signature
from tierfs.namespace.content.data import Data
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, Node
from tierfs.namespace.room.eviction import Eviction
from tierfs.namespace.room.promotion import Promotions


class Warming:
    """Says what is here and what fits, and has the rest brought."""

    def __init__(
        self, core: Core, lookup: Lookup, data: Data, eviction: Eviction, promotions: Promotions
    ) -> None:
        self._core = core
        self._lookup = lookup
        self._data = data
        self._eviction = eviction
        self._promotions = promotions

    async def is_here(self, node: Node) -> bool:
        """Whether the content of a file can be read on this node."""
        obj = node.object
        if obj is not None and obj.content is Content.DATA:
            return True
        if node.shared is None:
            return False
        clean = await self._core.journal.clean_copy(node.shared.inode)
        return clean is not None and clean.signature == await self._signature(node)

    async def _signature(self, node: Node) -> Signature:
        return Signature.of((await self._lookup.committed_entry(node)).st)

    async def fits(self, wanted: int, here: int) -> bool:
        """Whether `wanted` bytes can be had beside `here`, the copies that have to stay."""
        core = self._core
        usage = Usage(*await core.local(core.store.usage))
        _, clean = await core.journal.clean_totals()
        may_go = max(0, clean - core.pins.bytes - here)
        return fits(usage, self._eviction.marks, may_go, wanted + core.promises.wanted)

    async def bring(self, node: Node) -> bool:
        """Makes the local copy of `node`; False: there is one.

        OSError: a tier failed, it was changed meanwhile (EAGAIN), or it is not what was once
        committed (`VerifyMismatch`). Nothing is left then.
        """
        if await self.is_here(node):
            return False
        await self._promotions.bring(node, await self._signature(node))
        if not await self.is_here(node):
            raise OSError(errno.EAGAIN, "it was changed while it was copied")
        return True

    def copied(self, nodes: Collection[Node]) -> int:
        """Bytes that have been copied of those of `nodes` that are under way."""
        return sum(done for node, done, _ in self._data.copying.values() if node in nodes)
