"""What the shared tier has just shown under a name: who removes it need not ask again."""

from __future__ import annotations

import time

from tierfs.model import Attributes, Name, ObjectId
from tierfs.namespace.overlay.nodes import DirectoryState, Node
from tierfs.namespace.overlay.tree import Tree

BELIEVED_SECONDS = 0.7
"""As long as the kernel believes a name."""

TOLD_AGAIN_SECONDS = 0.25
"""As long as what a listing has asked for may be told."""

_Key = tuple[ObjectId, Name]
_Seen = tuple[float, Node, Attributes, int]


class Seen:
    """What was seen in the last moments; what is older goes with the next that is noted."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._young: dict[_Key, _Seen] = {}
        self._old: dict[_Key, _Seen] = {}
        self._turn = 0.0

    def note(
        self, state: DirectoryState, name: Name, node: Node, told: Attributes, issued: int = -1
    ) -> None:
        """The shared tier has just said that a file or directory has `name`, and `told` of it.

        `issued`: how many ops had been when it was asked; without, it is not told again.
        """
        now = time.monotonic()
        if now >= self._turn:
            stale = now >= self._turn + BELIEVED_SECONDS
            self._old = {} if stale else self._young
            self._young, self._turn = {}, now + BELIEVED_SECONDS
        self._young[state.id, name] = (now + BELIEVED_SECONDS, node, told, issued)

    def again(
        self, state: DirectoryState, name: Name, issued: int
    ) -> tuple[float, Node, Attributes] | None:
        """What was told of the file under `name`, and until when it may be told once more; it is
        kept. `rm` reads each directory twice.

        Not if any op was `issued` since: what one on the file has changed may be committed, and
        all trace of it gone.
        """
        found = self._still((state.id, name), state)
        if found is None or found[1].directory is not None or found[3] != issued:
            return None
        until = found[0] - BELIEVED_SECONDS + TOLD_AGAIN_SECONDS
        return None if time.monotonic() >= until else (until, found[1], found[2])

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
        found = self._still(key, state)
        self._young.pop(key, None)
        self._old.pop(key, None)
        return None if found is None else (found[1], found[2])

    def _still(self, key: _Key, state: DirectoryState) -> _Seen | None:
        """What was seen lately under the name, if nothing was done to it since."""
        seen = self._young.get(key) or self._old.get(key)
        if seen is None or time.monotonic() > seen[0] or state.removed or key[1] in state.entries:
            return None
        if seen[0] - BELIEVED_SECONDS <= state.rebuilt:
            return None
        node = seen[1]
        at = node.shared
        if node.object is not None or node.unlinked or at is None:
            return None
        if (at.directory, at.name) != key or self._tree.by_shared.get(at.inode) is not node:
            return None
        return seen
