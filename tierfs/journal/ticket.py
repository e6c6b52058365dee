"""What a caller gets for a post: the two rungs of durability to wait for."""

from __future__ import annotations

from collections.abc import Callable

from tierfs.journal.progress import Progress
from tierfs.journal.syncer import Syncer


class Ticket:
    """What becomes of one post. Both waits may be called any number of times, by many tasks."""

    __slots__ = ("_hurry", "_number", "_syncer", "_written")

    def __init__(
        self, number: int, written: Progress, syncer: Syncer, hurry: Callable[[], None]
    ) -> None:
        self._number = number
        self._written = written
        self._syncer = syncer
        self._hurry = hurry

    async def written(self) -> None:
        """Return when the changes survive the process; JournalError when they never will."""
        self._hurry()
        await self._written.wait(self._number)

    async def synced(self) -> None:
        """Return when the changes survive a power cut; JournalError when they never will."""
        self._hurry()
        await self._syncer.wait(self._number)
