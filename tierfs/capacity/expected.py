"""How large a file will be that is begun now: as the one of its name in the last checkpoint."""

from __future__ import annotations

import re
from collections import OrderedDict

from tierfs.model import Name

MOST = 4096
"""Names whose size is remembered: those that were closed last."""

MARGIN = 1.1
"""How much larger than the last one the next may become."""

_NUMBER = re.compile(rb"\d+")


class Expectations:
    """Sizes by name. `otherwise`: bytes of a file of which nothing like it was ever closed."""

    def __init__(self, otherwise: int) -> None:
        self.otherwise = otherwise
        self._sizes: OrderedDict[bytes, int] = OrderedDict()

    def note(self, path: tuple[Name, ...], size: int) -> None:
        """The file `path` (names from the root) was closed with `size` bytes."""
        for key in _keys(path):
            self._sizes[key] = size
            self._sizes.move_to_end(key)
        while len(self._sizes) > MOST:
            self._sizes.popitem(last=False)

    def of(self, path: tuple[Name, ...]) -> int:
        """Bytes that the file `path` is expected to have at its close."""
        known = self.known(path)
        return self.otherwise if known is None else int(known * MARGIN)

    def known(self, path: tuple[Name, ...]) -> int | None:
        """The size of the last one like it, None if there was none."""
        return next((self._sizes[key] for key in _keys(path) if key in self._sizes), None)


def _keys(path: tuple[Name, ...]) -> tuple[bytes, ...]:
    """What the file has in common with that of a sibling: at first the whole name, then all but
    its numbers (``step-500.ckpt``)."""
    folder = _NUMBER.sub(b"#", b"/".join(path[:-1]))
    same = b"%s/%s" % (folder, path[-1])
    like = b"%s/%s" % (folder, _NUMBER.sub(b"#", path[-1]))
    return (same,) if same == like else (same, like)
