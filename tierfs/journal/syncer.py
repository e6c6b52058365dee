"""The thread that makes posts durable, so that a slow fsync holds up no post after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tierfs.errors import JournalError
from tierfs.journal.progress import Progress


class Syncer:
    """Runs one fsync for all posts that are written when it begins (group commit).

    An fsync of the WAL alone is enough, at any time: the frames of a written post are in the WAL
    until a checkpoint has brought them into the database *and* synced that.

    Attributes:
        synced: how many posts are durable.
    """

    def __init__(
        self,
        written: Progress,
        fsync: Callable[[], None],
        fail: Callable[[OSError], JournalError],
    ) -> None:
        self.synced = Progress()
        self._written = written
        self._fsync = fsync
        self._fail = fail
        self._wanted = 0
        self._closing = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    async def wait(self, number: int) -> None:
        """Return when post `number` is durable; JournalError when it never will be."""
        if self.synced.reached < number:
            with self._condition:
                self._wanted = max(self._wanted, number)
                self._condition.notify()
        await self.synced.wait(number)

    def on_written(self) -> None:
        """More posts are written. Called by the journal's thread."""
        if self._wanted > self.synced.reached:
            with self._condition:
                self._condition.notify()

    def close(self) -> None:
        """Stop the thread; blocks while an fsync runs."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _has_work(self) -> bool:
        # Not "all that is wanted is written": with posts coming all the time it never might be.
        reached = self.synced.reached
        return self._closing or (self._wanted > reached and self._written.reached > reached)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                if self._closing:
                    return
            number = self._written.reached
            try:
                self._fsync()
            except OSError as error:
                self._fail(error)
                return
            self.synced.advance(number)
