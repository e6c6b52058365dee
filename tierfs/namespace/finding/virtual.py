"""What tierfs says of a file in xattrs of the mount (DESIGN 8)."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from tierfs.model import Kind, Op, OpState
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Content, Node


class Virtual:
    """Read-only xattrs ``user.tierfs.*``; not listed, so that no copy carries them along."""

    names = frozenset(
        b"user.tierfs." + name for name in (b"state", b"digest", b"tier", b"local_path", b"error")
    )

    def __init__(self, core: Core, local: Path) -> None:
        self._core = core
        self._local = local

    async def value(self, node: Node, name: bytes) -> bytes:
        """The value of one of `names`; OSError(ENODATA) where there is nothing to say."""
        match name.rpartition(b".")[2]:
            case b"state":
                text: str | None = self.state(node)
            case b"tier":
                text = await self.tier(node)
            case b"digest":
                text = await self.digest(node)
            case b"local_path":
                text = await self.local_path(node)
            case _:
                text = self.error(node)
        if text is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return os.fsencode(text)

    def op_of(self, node: Node) -> Op | None:
        """The op that will bring `node` to the shared tier, or the last that concerns it."""
        obj = node.object
        return None if obj is None else obj.put or self._core.backlog.of_object(obj.id)

    def state(self, node: Node) -> str:
        """committed, pending, open, stuck, suspect, torn; local: it stays on this node.

        Of a checkpoint that is not published: unsealed, unsettled or broken.
        """
        if node.stays:
            return "local"
        if node.directory is not None and self._core.groups.is_unsealed(node.directory):
            group = self._core.groups.get(node.directory)
            return "unsealed" if group is None else group.word
        op = self.op_of(node)
        if op is None:
            return "committed"
        if op.mark is not None:
            return str(op.mark)
        return "open" if op.state in (OpState.OPEN, OpState.CLOSED) else "pending"

    async def tier(self, node: Node) -> str:
        """Where the content can be read: local, shared, both; "-" of a directory."""
        if node.kind is Kind.DIRECTORY:
            return "-"
        local = await self.local_path(node) is not None
        if node.object is not None and self._core.store.spread.is_spilled(node.object.id):
            return "shared"
        if node.shared is None:
            return "local"
        return "both" if local else "shared"

    async def local_path(self, node: Node) -> str | None:
        """The object that holds the content of a file on this node."""
        if node.kind is not Kind.FILE:
            return None
        if node.object is not None and node.object.content is Content.DATA:
            if self._core.store.spread.is_spilled(node.object.id):
                return None
            return str(self._local / self._core.store.relative_path(node.object.id))
        if node.shared is not None:
            clean = await self._core.journal.clean_copy(node.shared.inode)
            if clean is not None:
                return str(self._local / self._core.store.relative_path(clean.object))
        return None

    async def digest(self, node: Node) -> str | None:
        """The digest of the committed content, if it was sent from here."""
        if node.shared is None:
            return None
        clean = await self._core.journal.clean_copy(node.shared.inode)
        return clean.digest if clean is not None else None

    def error(self, node: Node) -> str | None:
        """What went wrong with it last, or what it waits for."""
        op = self.op_of(node)
        if op is None:
            return None
        return op.error or self._core.backlog.explain(op, time.monotonic())
