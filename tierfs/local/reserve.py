"""Space that is taken so that it can be given to small files when nothing else is free.

The file ``reserve`` holds it. Other writers of the drive, also those that the kernel lets past the
daemon, cannot use it up.
"""

from __future__ import annotations

import errno
import os
import threading

from tierfs.osio import OS

RESERVE = b"reserve"
PIECE_BYTES = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNABLE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Reserve:
    """Grows while there is room, shrinks when a small file needs it.

    All methods block, and may be called in several threads.

    Attributes:
        held: bytes that are kept now.
        wanted: bytes that should be.
    """

    def __init__(self, system: OS, root: int) -> None:
        """`root` is a descriptor of the local tier, and stays the caller's."""
        self._system = system
        self._root = root
        self._able = True
        self._changing = threading.Lock()
        self.held = self.wanted = self._size()

    @property
    def owed(self) -> int:
        """Bytes that were given, or could not be had yet: what is free is first of all these."""
        return max(0, self.wanted - self.held) if self._able else 0

    def fill(self, wanted: int, free: int) -> None:
        """Keeps `wanted` bytes, as far as they can be had of `free`."""
        with self._changing:
            self._fill(wanted, free)

    def _fill(self, wanted: int, free: int) -> None:
        self.wanted = wanted
        missing = wanted - self.held
        if not self._able or not missing or missing > free // 2:
            return
        flags = os.O_RDWR | os.O_CREAT
        fd = self._system.open_at("reserve.open", self._root, RESERVE, flags, 0o600)
        try:
            if missing > 0:
                self._system.fallocate("reserve.fill", fd, self.held, missing)
            else:
                self._system.ftruncate("reserve.shrink", fd, wanted)
            self.held = wanted
        except OSError as error:
            self.held = self._system.fstat("reserve.size", fd).st_size
            if error.errno in _UNABLE:
                self._able = False
            elif error.errno not in _FULL:
                raise
        finally:
            self._system.close("reserve.close", fd)

    def give(self, size: int) -> bool:
        """Frees at least `size` bytes of what is kept; False: it is not enough."""
        with self._changing:
            return self._give(size)

    def _give(self, size: int) -> bool:
        if self.held < size or not self.held:
            return False
        left = max(0, self.held - max(PIECE_BYTES, 2 * size))
        fd = self._system.open_at("reserve.open", self._root, RESERVE, os.O_RDWR)
        try:
            self._system.ftruncate("reserve.give", fd, left)
            self.held = left
        finally:
            self._system.close("reserve.close", fd)
        return True

    def _size(self) -> int:
        try:
            return self._system.stat_at("reserve.size", self._root, RESERVE).st_size
        except FileNotFoundError:
            return 0
