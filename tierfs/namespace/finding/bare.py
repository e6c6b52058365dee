"""Files that have no xattrs: asked for a whole block of a listing at once.

Whoever lists a directory at length (`ls -l`) asks for the ACL of every file, and hardly any file
has one. What was found is believed for a moment, as attributes are (G10).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tierfs.health import is_failure
from tierfs.model import Name, ObjectId
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import watching
from tierfs.namespace.overlay.nodes import Node

BLOCKS = 16
"""Directories of which the last block is kept, those that were read last."""

BELIEVED_SECONDS = 0.25


@dataclass(slots=True)
class Block:
    """The files that a reader of a directory was told of last.

    Attributes:
        names: by their node's number.
        bare: the numbers of those that had no xattrs when they were looked at.
        until: clock value until when that is believed.
    """

    names: dict[int, Name]
    bare: set[int] = field(default_factory=set)
    until: float = 0.0


class Bare:
    """The last blocks told of each directory."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._blocks: dict[ObjectId, Block] = {}

    def told(self, directory: ObjectId, names: dict[int, Name]) -> None:
        """A reader of `directory` was told of these files, which have one name each."""
        self._blocks.pop(directory, None)
        self._blocks[directory] = Block(names)
        if len(self._blocks) > BLOCKS:
            del self._blocks[next(iter(self._blocks))]

    def changed(self, node: Node) -> None:
        """`node` may have xattrs from now on, also once that is committed and no longer pending."""
        for block in self._blocks.values():
            block.bare.discard(node.ino)

    def knows(self, node: Node) -> bool:
        """Whether `node`, of which nothing is pending, surely has no xattrs."""
        block = self._block(node)
        return block is not None and node.ino in block.bare and time.monotonic() < block.until

    async def look(self, node: Node) -> None:
        """Looks at the files that were told with `node`, if it was told lately."""
        block = self._block(node)
        if block is None or node.shared is None or time.monotonic() < block.until:
            return
        core, directory = self._core, node.shared.directory
        state = core.tree.directories[directory]
        names = list(block.names.values())
        now = time.monotonic()
        with watching(state) as changed:
            try:
                bare = await core.at(directory, core.shared.without_xattrs, names, hasty=True)
            except OSError as error:
                if not is_failure(error):
                    raise
                return  # who asks has another answer, or finds none
        block.bare = {
            ino for ino, name in block.names.items()
            if name in bare and name not in changed and name not in state.entries
        }  # fmt: skip
        block.until = now + BELIEVED_SECONDS

    def _block(self, node: Node) -> Block | None:
        if node.shared is None or node.object is not None or node.handles:
            return None
        block = self._blocks.get(node.shared.directory)
        return block if block is not None and node.ino in block.names else None
