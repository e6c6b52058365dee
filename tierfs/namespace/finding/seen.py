"""What the shared tier has just shown under a name: who removes it need not ask again."""

from __future__ import annotations

import time

from tierfs.model import Attributes, Name, ObjectId
from tierfs.namespace.overlay.nodes import DirectoryState, Node
from tierfs.namespace.overlay.tree import Tree

BELIEVED_SECONDS = 0.7
"""As long as the kernel believes a name."""

_Key = tuple[ObjectId, Name]
_Seen = tuple[float, Node, Attributes]


class Seen:
    """What was seen in the last moments; what is older goes with the next that is noted."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._young: dict[_Key, _Seen] = {}
        self._old: dict[_Key, _Seen] = {}
        self._turn = 0.0

    def note(self, state: DirectoryState, name: Name, node: Node, told: Attributes) -> None:
        """The shared tier has just said that a file or directory has `name`, and `told` of it."""
        now = time.monotonic()
        if now >= self._turn:
            stale = now >= self._turn + BELIEVED_SECONDS
            self._old = {} if stale else self._young
            self._young, self._turn = {}, now + BELIEVED_SECONDS
        self._young[state.id, name] = (now + BELIEVED_SECONDS, node, told)

    def take(self, state: DirectoryState, name: Name) -> tuple[Node, Attributes] | None:
        """The file under `name` that nothing was done to since it was seen; it is not kept.

        A removal names its inode: what another node has put in its place meanwhile stays.
        """
        found = self._take(state, name)
        if found is None or found[0].directory is not None or found[1].nlink != 1:
            return None
        return found if found[0].names == {(state.id, name)} else None

    def take_directory(self, state: DirectoryState, name: Name) -> tuple[Node, Attributes] | None:
        """As `take`, the directory under `name`; not one that may be an unsealed checkpoint."""
        found = self._take(state, name)
        if found is None or found[0].directory is None or name in state.unsealed:
            return None
        inner = self._tree.directories.get(found[0].directory)
        return found if inner and (inner.parent, inner.name) == (state.id, name) else None

    def _take(self, state: DirectoryState, name: Name) -> tuple[Node, Attributes] | None:
        key = (state.id, name)
        seen = self._young.pop(key, None) or self._old.pop(key, None)
        if seen is None or time.monotonic() > seen[0] or state.removed or name in state.entries:
            return None
        _, node, told = seen
        at = node.shared
        if node.object is not None or node.unlinked or at is None:
            return None
        if (at.directory, at.name) != key or self._tree.by_shared.get(at.inode) is not node:
            return None
        return node, told
