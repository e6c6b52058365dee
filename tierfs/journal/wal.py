"""The write-ahead log as a file: how long it is, making it durable, and the room it needs."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3

from tierfs.osio import FALLOC_FL_KEEP_SIZE, OS

MIB = 1 << 20
CHECKPOINT_BYTES = 8 * MIB
"""The WAL is brought into the database when it is longer than this."""
IDLE_BYTES = 1 * MIB
"""... and when it is longer than this and nothing happens."""
MARK = b"user.tierfs.synced"
"""xattr of journal.db: its transaction of this number was durable (decimal)."""
_WAL_ROOM = 12 * MIB
_DATABASE_ROOM = 8 * MIB


class Wal:
    """Descriptors on journal.db and journal.db-wal, held as long as the connection.

    Room for both is reserved ahead: a local tier that is full to the last byte with checkpoints
    must still be able to journal what makes room.
    """

    def __init__(
        self,
        system: OS,
        connection: sqlite3.Connection,
        database_fd: int,
        directory: int,
        name: str,
    ) -> None:
        """Takes over `database_fd` unless it raises OSError."""
        self._system = system
        self._connection = connection
        self._database_fd = database_fd
        wal_name = os.fsencode(name + "-wal")
        # A read makes SQLite create the file where it is not there yet.
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        self._fd = system.open_at("journal.open", directory, wal_name, os.O_RDWR)
        try:
            system.fsync("journal.open", self._fd)
            system.fsync_dir("journal.open", directory)
            self._bytes = system.fstat("journal.wal", self._fd).st_size
        except OSError:
            system.close("journal.open", self._fd)
            raise
        self._limit = CHECKPOINT_BYTES
        self._reserve()

    def bytes(self) -> int:
        """Length of the WAL."""
        self._bytes = self._system.fstat("journal.wal", self._fd).st_size
        return self._bytes

    def is_due(self) -> bool:
        """Whether a checkpoint should not wait any longer."""
        return self.bytes() > self._limit

    @property
    def is_worthwhile(self) -> bool:
        """Whether a checkpoint should be made when nothing else is to be done.

        By the length that was seen last: after each transaction.
        """
        return self._bytes > IDLE_BYTES

    def fsync(self, transaction: int) -> None:
        """Make every committed transaction durable, among them that one. Any thread.

        SQLite takes what follows a frame that is damaged, or was cut off, for a transaction that
        was never committed. So how far it was durable stands in another place, where there is one.
        """
        self._system.fsync("journal.fsync", self._fd)
        with contextlib.suppress(OSError):
            self._system.set_xattr("journal.mark", self._database_fd, MARK, b"%d" % transaction)

    def durable(self) -> int:
        """Number of a transaction that was durable; 0: none is known."""
        try:
            return int(self._system.get_xattr("journal.mark", self._database_fd, MARK))
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return 0

    def checkpoint(self) -> None:
        """Bring the WAL into the database, sync that, and empty the WAL.

        A full file system is no failure: nothing is lost, it stays in the WAL. Raises
        sqlite3.Error.
        """
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                raise
        # Relative: after one that found no room the next commit must not try again at once.
        self._limit = self.bytes() + CHECKPOINT_BYTES
        self._reserve()

    def close(self) -> None:
        """Close the descriptors. Only after the connection: it would drop SQLite's locks."""
        self._system.close("journal.close", self._fd)
        self._system.close("journal.close", self._database_fd)

    def _reserve(self) -> None:
        size = self._system.fstat("journal.reserve", self._database_fd).st_size
        for fd, length in ((self._fd, _WAL_ROOM), (self._database_fd, size + _DATABASE_ROOM)):
            try:
                self._system.fallocate("journal.reserve", fd, 0, length, FALLOC_FL_KEEP_SIZE)
            except OSError:
                # A reserve, not a need: full already, or a file system that cannot.
                continue


class NoWal:
    """That of a database in memory: nothing of it is durable, and nobody was told that it is."""

    def is_due(self) -> bool:
        """There is nothing to bring anywhere."""
        return False

    is_worthwhile = False
    """There is nothing to bring anywhere."""

    def fsync(self, transaction: int) -> None:
        """There is no drive."""

    def checkpoint(self) -> None:
        """There is nothing to bring anywhere."""

    def close(self) -> None:
        """There is nothing to close."""
