"""Page-aligned memory for O_DIRECT, used again and again."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tierfs.shared.digest import BLOCK_BYTES


class BufferPool:
    """Buffers of one block each. There are as many as there ever were threads at once that sent
    data, so memory is bounded by the limiter of those threads.
    """

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque()

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """A buffer for the length of the block; its content is undefined. Safe in threads."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        try:
            yield buffer
        finally:
            self._free.append(buffer)
