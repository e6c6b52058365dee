"""The SQLite side of the journal. One connection, used by one thread."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from tierfs.journal import explain, rows, schema
from tierfs.journal.wal import NoWal, Wal
from tierfs.model import CleanRecord, JournalSnapshot, ObjectId
from tierfs.osio import OS

_BUSY_SECONDS = 1.0
_MARK_SUSPECT = """
    UPDATE op SET mark = 'suspect'
    WHERE kind = 'put' AND state IN ('pending', 'closed') AND durable = 0 AND mark IS NULL
        AND NOT EXISTS (SELECT 1 FROM object WHERE object.id = op.object AND object.data = 0)
    RETURNING row
"""
_MARK_ALL_SUSPECT = """
    UPDATE op SET mark = 'suspect', error = ?
    WHERE kind = 'put' AND mark IS NULL
        AND NOT EXISTS (SELECT 1 FROM object WHERE object.id = op.object AND object.data = 0)
"""


class Database:
    """journal.db and its WAL. Methods raise sqlite3.Error, OSError, or ValueError for bad rows."""

    def __init__(self, connection: sqlite3.Connection, wal: Wal | NoWal) -> None:
        self.connection = connection
        self.wal = wal
        known = self.meta(schema.TRANSACTION)
        self._transaction = known if isinstance(known, int) else 0
        self._changes = 0

    @classmethod
    def open(cls, path: Path, system: OS, *, create: bool) -> Database:
        """Open `path`, making it if `create` and it is missing or empty; JournalError if not."""
        directory = system.open_root("journal.open", os.fspath(path.parent))
        try:
            flags = os.O_RDWR | (os.O_CREAT if create else 0)
            try:
                fd = system.open_at("journal.open", directory, os.fsencode(path.name), flags, 0o600)
            except FileNotFoundError:
                raise explain.missing(path) from None
            connection: sqlite3.Connection | None = None
            wal: Wal | None = None
            try:
                connection = _connect(path, create=create)
                wal = Wal(system, connection, fd, directory, path.name)
                database = cls(connection, wal)
                if database._transaction < wal.durable():
                    raise explain.cut_off(path)
            except BaseException:
                # First the connection: closing any descriptor of the file drops SQLite's locks.
                if connection is not None:
                    connection.close()
                if wal is not None:
                    wal.close()
                else:
                    system.close("journal.open", fd)
                raise
        finally:
            system.close("journal.open", directory)
        return database

    @classmethod
    def in_memory(cls) -> Database:
        """Empty, and gone with the process: what stands in for the drive when that has failed."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _make_tables(connection)
        connection.executescript(schema.LATER_TABLES)
        return cls(connection, NoWal())

    @property
    def is_in_memory(self) -> bool:
        """Whether it is a stand-in."""
        return isinstance(self.wal, NoWal)

    def begin(self) -> None:
        """Start a transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        self._changes = self.connection.total_changes

    def commit(self) -> None:
        """End it: what it did survives the process now."""
        changed = self.connection.total_changes != self._changes
        if changed:
            self.set_meta(schema.TRANSACTION, self._transaction + 1)
        self.connection.execute("COMMIT")
        self._transaction += changed

    def fsync(self) -> None:
        """Make every transaction that is committed durable. Any thread; OSError."""
        self.wal.fsync(self._transaction)

    def rollback(self) -> None:
        """Undo it, if one is open."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def apply(self, statements: Iterable[rows.Statement]) -> None:
        """Execute encoded changes."""
        for sql, parameters in statements:
            self.connection.execute(sql, parameters)

    def load(self) -> JournalSnapshot:
        """All that a mount needs: one statement a table, whatever the number of rows."""
        execute = self.connection.execute
        return JournalSnapshot(
            [rows.op_of(row) for row in execute(rows.SELECT_OPS)],
            [rows.object_of(row) for row in execute(rows.SELECT_OBJECTS)],
            [rows.directory_of(row) for row in execute(rows.SELECT_DIRECTORIES)],
            [rows.group_of(row) for row in execute(rows.SELECT_GROUPS)],
        )

    def clean_copy(self, inode: int) -> CleanRecord | None:
        """The clean copy of the shared file `inode`."""
        row = self.connection.execute(rows.SELECT_CLEAN, rows.clean_key(inode)).fetchone()
        return None if row is None else rows.clean_of(row)

    def clean_victims(self, limit: int) -> list[CleanRecord]:
        """Up to `limit` clean copies, least recently used first."""
        return [
            rows.clean_of(row) for row in self.connection.execute(rows.SELECT_VICTIMS, (limit,))
        ]

    def clean_objects(self, objects: Iterable[ObjectId]) -> set[ObjectId]:
        """Which of `objects` hold a clean copy; looks at all clean copies once."""
        wanted = set(objects)
        found = self.connection.execute("SELECT object FROM clean")
        return {ObjectId(row[0]) for row in found} & wanted

    def clean_totals(self) -> tuple[int, int]:
        """Count and bytes of all clean copies."""
        count, size = self.connection.execute("SELECT count, bytes FROM clean_total").fetchone()
        return count, size

    def pins(self) -> list[tuple[int, bool, int]]:
        """What is pinned: inode, whether it is a directory, bytes of the local copy."""
        found = self.connection.execute(rows.SELECT_PINS)
        return [(rows.unsigned(row[0]), bool(row[1]), row[2]) for row in found]

    def requests(self) -> set[int]:
        """The requests that were carried out and not answered."""
        found = self.connection.execute("SELECT request_unique FROM request")
        return {rows.unsigned(row[0]) for row in found}

    def forget_requests(self) -> None:
        """Another mount: its numbers mean something else."""
        self.connection.execute("DELETE FROM request")

    def meta(self, key: str) -> bytes | int | None:
        """The value stored under `key`; None if there is none."""
        row = self.connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def set_meta(self, key: str, value: bytes | int) -> None:
        """Store `value` under `key`."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def noted(self) -> tuple[bytes | None, int]:
        """Where posts that this one may lack stand, and the number of the last that it has."""
        path, applied = self.meta(schema.AHEAD), self.meta(schema.APPLIED)
        known = path if isinstance(path, bytes) and path else None
        return known, applied if isinstance(applied, int) else 0

    def take_up(self, posts: Iterable[Iterable[rows.Statement]], path: bytes) -> None:
        """Apply `posts`, which it lacked. Those that it may lack next will stand at `path`."""
        for statements in posts:
            self.apply(statements)
        self.set_meta(schema.AHEAD, path)
        self.set_meta(schema.APPLIED, 0)

    def mark_undurable_suspect(self) -> list[int]:
        """See Journal.mark_undurable_suspect."""
        return [row for (row,) in self.connection.execute(_MARK_SUSPECT)]

    def mark_all_suspect(self, error: str) -> None:
        """See Journal.mark_all_suspect."""
        self.connection.execute(_MARK_ALL_SUSPECT, (error,))

    def mark_torn(self, row_ids: Iterable[int]) -> None:
        """See Journal.mark_torn."""
        sql = "UPDATE op SET mark = 'torn', state = 'pending' WHERE row = ? AND state = 'open'"
        self.connection.executemany(sql, [(row,) for row in row_ids])

    def close(self) -> None:
        """Bring everything into the database, close it, and then the descriptors."""
        try:
            self.connection.close()
        finally:
            self.wal.close()


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        new = _is_new(connection, path)
        if new and not create:
            raise explain.missing(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        # Checkpoints are made by Journal, when nobody waits for a commit.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        if new:
            _make_tables(connection)
        connection.executescript(schema.LATER_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == 0 and version == 0:
        if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            raise explain.foreign(path)
        return True
    if application != schema.APPLICATION_ID:
        raise explain.foreign(path)
    if version != schema.FORMAT_VERSION:
        raise explain.other_version(path, version, schema.FORMAT_VERSION)
    return False


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN IMMEDIATE; {schema.TABLES}"
        f"INSERT INTO meta VALUES ('{schema.NUMBER_LIMIT}', 1), ('{schema.ROW_LIMIT}', 1);"
        f"PRAGMA application_id = {schema.APPLICATION_ID};"
        f"PRAGMA user_version = {schema.FORMAT_VERSION}; COMMIT"
    )
