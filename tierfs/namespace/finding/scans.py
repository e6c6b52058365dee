"""What the shared tier has just listed of a directory: who asks again need not wait for it.

`rm` reads each directory twice before it removes it, and then it must be empty.
"""

from __future__ import annotations

import time

from tierfs.model import Kind
from tierfs.namespace.overlay.nodes import DirectoryState, Scan

RECENT_SECONDS = 0.25
"""As long as the attributes of a directory are taken as they were told."""

MOST = 8

Found = tuple[Kind, int]
"""What the shared tier's own listing says of a name: what it is, and its inode."""


class Scans:
    """The last ones. What is done in a directory is noted in its own."""

    def __init__(self) -> None:
        self._kept: list[DirectoryState] = []
        self._clock = time.monotonic

    def recent(self, state: DirectoryState) -> Scan | None:
        """The last one of `state`, if it may still be taken for the present state."""
        scan = state.scan
        if scan is None or self._clock() >= scan.until or scan.unsealed != state.unsealed:
            return None
        return scan

    def begin(self, state: DirectoryState) -> Scan:
        """One that begins now, to be given to `keep` when the shared tier has answered."""
        return Scan({}, {}, dict(state.unsealed), self._clock() + RECENT_SECONDS)

    def keep(self, state: DirectoryState, scan: Scan) -> None:
        """It is the last one of `state`."""
        self.forget(state)
        state.scan = scan
        self._kept.append(state)
        if len(self._kept) > MOST:
            self.forget(self._kept[0])

    def forget(self, state: DirectoryState) -> None:
        """The shared tier is to be asked again."""
        if state.scan is not None:
            state.scan = None
            self._kept = [each for each in self._kept if each is not state]

    def tidy(self) -> None:
        """Lets go of what is not recent; to be called now and then."""
        for state in list(self._kept):
            if self.recent(state) is None:
                self.forget(state)
