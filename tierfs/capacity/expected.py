"""How large a file will be that is begun now: as the largest of late that is like it."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tierfs.model import Name

MOST = 4096
"""Names whose sizes are remembered: those that were closed last."""

MARGIN = 1.1
"""How much larger than the largest one the next may become."""

WINDOW = 64
"""A size is remembered for as many closes of what is like it, and for twice as many at the most."""

_NUMBER = re.compile(rb"\d+")


@dataclass(slots=True)
class _Sizes:
    """The last size, and the largest ones of the present window and of the one before."""

    last: int = 0
    largest: int = 0
    before: int = 0
    count: int = 0

    def note(self, size: int) -> None:
        if self.count == WINDOW:
            self.before, self.largest, self.count = self.largest, 0, 0
        self.last, self.largest, self.count = size, max(self.largest, size), self.count + 1


class Expectations:
    """Sizes by name. `otherwise`: bytes of a file of which nothing like it was ever closed."""

    def __init__(self, otherwise: int) -> None:
        self.otherwise = otherwise
        self._sizes: OrderedDict[bytes, _Sizes] = OrderedDict()

    def note(self, path: tuple[Name, ...], size: int) -> None:
        """The file `path` (names from the root) was closed with `size` bytes."""
        for key in _keys(path):
            self._sizes.setdefault(key, _Sizes()).note(size)
            self._sizes.move_to_end(key)
        while len(self._sizes) > MOST:
            self._sizes.popitem(last=False)

    def restore(self, closed: Sequence[tuple[tuple[Name, ...], int]]) -> None:
        """The same of many, the last one last; more than are remembered would change nothing."""
        for path, size in closed[-MOST:]:
            self.note(path, size)

    def of(self, path: tuple[Name, ...]) -> int:
        """Bytes that the file `path` will hardly exceed.

        Who expects too much loses little, passthrough while the tier is nearly full; who expects
        too little promises room that is not there.
        """
        known = [self._sizes[key] for key in _keys(path) if key in self._sizes]
        if not known:
            return self.otherwise
        return int(max(max(sizes.largest, sizes.before) for sizes in known) * MARGIN)

    def known(self, path: tuple[Name, ...]) -> int | None:
        """The size of the last one like it, None if there was none."""
        return next((self._sizes[key].last for key in _keys(path) if key in self._sizes), None)


@functools.lru_cache(maxsize=256)
def _folder(path: tuple[Name, ...]) -> bytes:
    return _NUMBER.sub(b"#", b"/".join(path))


@functools.lru_cache(maxsize=256)
def _keys(path: tuple[Name, ...]) -> tuple[bytes, ...]:
    """What the file has in common with that of a sibling: at first the whole name, then all but
    its numbers (``step-500.ckpt``)."""
    folder = _folder(path[:-1])
    same = b"%s/%s" % (folder, path[-1])
    like = b"%s/%s" % (folder, _NUMBER.sub(b"#", path[-1]))
    return (same,) if same == like else (same, like)
