"""Room that was made and does not show yet: XFS frees the blocks of a removed file later."""

from __future__ import annotations

PATIENCE_SECONDS = 1.0
"""What did not show by then is not coming: its blocks belong to another file as well."""


class Freeing:
    """Counts the bytes of removed files until the drive shows that they are free.

    Without that the next look would find the drive as full as before, and as much would go again.

    Attributes:
        coming: bytes, as of the last look.
    """

    def __init__(self) -> None:
        self.coming = 0
        self._free: int | None = None
        self._until = 0.0

    def removed(self, now: float, size: int) -> None:
        """Files of `size` bytes were removed."""
        self.coming += size
        self._until = now + PATIENCE_SECONDS

    def looked(self, now: float, free: int) -> None:
        """The drive says that `free` bytes are free."""
        if self._free is not None:
            self.coming = max(0, self.coming - max(0, free - self._free))
        if now >= self._until:
            self.coming = 0
        self._free = free
