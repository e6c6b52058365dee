"""What a lookup has just told the kernel of a file: another node may replace that at any moment.

The kernel walks a path once more when it gets ESTALE, and not a second time. It does not always
believe the attributes that come with a lookup: of files that are replaced all the time it was seen
to ask again less than a millisecond later, and what it asks about may be replaced by then. The
reason is likely `evict_ctr` in fuse_change_attributes_common: attributes are taken for stale when
another inode was dropped meanwhile. That was not traced.
"""

from __future__ import annotations

import time

from tierfs.model import Attributes
from tierfs.namespace.overlay.nodes import Node

SECONDS = 1.0
"""What is older is no answer (G10); the kernel itself believes a name for 0.7 s."""

MOST = 4096
"""How many are kept at least, if so many are told of within a second."""


class Told:
    """By node, the attributes that it was last looked up with; older ones go with the next."""

    def __init__(self) -> None:
        self._young: dict[Node, tuple[float, Attributes]] = {}
        self._old: dict[Node, tuple[float, Attributes]] = {}
        self._turn = 0.0

    def note(self, node: Node, attributes: Attributes) -> None:
        """The shared tier has just said so, and the kernel will know by this reply."""
        now = time.monotonic()
        if now >= self._turn or len(self._young) >= MOST:
            self._old = {} if now >= self._turn + SECONDS else self._young
            self._young, self._turn = {}, now + SECONDS
        self._young[node] = now, attributes

    def get(self, node: Node) -> Attributes | None:
        """What was told of `node` in the last second."""
        found = self._young.get(node) or self._old.get(node)
        recent = found is not None and time.monotonic() < found[0] + SECONDS
        return found[1] if found is not None and recent else None
