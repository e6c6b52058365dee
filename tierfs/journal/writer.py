"""The thread that owns the database: everything queued becomes one transaction (group commit)."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tierfs.errors import JournalError
from tierfs.journal import schema
from tierfs.journal.database import Database
from tierfs.journal.explain import explain, is_of_drive
from tierfs.journal.merging import merged
from tierfs.journal.progress import Progress
from tierfs.journal.rows import Statement
from tierfs.journal.syncer import Syncer

T = TypeVar("T")

_ITEMS_PER_TRANSACTION = 1000
_IDLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Post:
    number: int
    statements: list[Statement]
    noted: bool


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Database], Any]
    durable: bool
    future: Future[Any]


class Writer:
    """Executes posts and calls in the order in which they were queued.

    Attributes:
        written: how many posts are committed.
        syncer: makes them durable.
        failed: set once; from then on everything queued is refused with it.
        lost: set once, with `stand_in`, when the drive of the database failed: from then on a
            database in memory stands in for it, which begins empty.
    """

    def __init__(
        self, path: Path, open_database: Callable[[], Database], *, stand_in: bool = False
    ) -> None:
        """Start the thread; JournalError when the database cannot be opened."""
        self.written = Progress()
        self.failed: JournalError | None = None
        self.lost: JournalError | None = None
        self._stands_in = stand_in
        self._path = path
        self._queue: queue.SimpleQueue[list[_Post | _Call] | None] = queue.SimpleQueue()
        self._kept: list[_Post | _Call] = []
        self._lock = threading.Lock()
        started: Future[Database] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(open_database, started), name="journal", daemon=True
        )
        self._thread.start()
        self._database = started.result()
        self._in_use = threading.Lock()
        self.syncer = Syncer(self.written, self._fsync, self.fail)

    def post(
        self, number: int, statements: list[Statement], *, later: bool = False, noted: bool = False
    ) -> None:
        """Queue post `number`; numbers rise by one. `later`: with the next one, or at `hurry`.

        `noted`: the database is to know that it has it, as it stands elsewhere, too (ahead.py).
        """
        if self.failed is None:
            self._put(_Post(number, statements, noted), later=later)

    def hurry(self) -> None:
        """What was to be written later is written now."""
        self._put(None, later=False)

    def _put(self, item: _Post | _Call | None, *, later: bool) -> None:
        with self._lock:
            if item is not None:
                self._kept.append(item)
            if self._kept and not later:
                kept, self._kept = self._kept, []
                self._queue.put(kept)

    def call(self, function: Callable[[Database], T], *, durable: bool = False) -> Future[T]:
        """Queue `function`; with `durable` its outcome comes after an fsync."""
        future: Future[T] = Future()
        if self.failed is None:
            self._put(_Call(function, durable, future), later=False)
        else:
            future.set_exception(self.failed)
        return future

    def fail(self, error: Exception) -> JournalError:
        """Refuse everything from now on: what is not written yet never will be."""
        failure = explain(self._path, error)
        if self.failed is None:
            self.failed = failure
        self.written.fail(failure)
        self.syncer.synced.fail(failure)
        return failure

    def close(self) -> None:
        """Finish what is queued, close the database, end both threads. Blocks."""
        self.hurry()
        self._queue.put(None)
        self._thread.join()
        self.syncer.close()
        closed = self.fail(JournalError(f"journal {self._path} is closed"))
        with contextlib.suppress(queue.Empty):
            while True:
                _refuse(self._queue.get_nowait() or (), closed)

    def _main(self, open_database: Callable[[], Database], started: Future[Database]) -> None:
        try:
            database = open_database()
        except Exception as error:
            started.set_exception(explain(self._path, error))
            return
        started.set_result(database)
        closing = False
        while not closing:
            batch, closing = self._take(database)
            if self.lost is not None and not database.is_in_memory:
                database = self._stand_in(database)
            if self.failed is None:
                database = self._transact(database, batch)
            else:
                _refuse(batch, self.failed)
        with contextlib.suppress(sqlite3.Error, OSError):
            database.close()

    def _take(self, database: Database) -> tuple[list[_Post | _Call], bool]:
        """Wait for something to do, then take all there is, up to a limit and to the end mark.

        Returns it, and whether that mark was met.
        """
        batch: list[_Post | _Call] = []
        idle_seconds = _IDLE_SECONDS if self._may_tidy(database) else None
        with contextlib.suppress(queue.Empty):
            items = self._queue.get(timeout=idle_seconds)
            while items is not None:
                batch += items
                if len(batch) >= _ITEMS_PER_TRANSACTION:
                    break
                items = self._queue.get_nowait()
            else:
                return batch, True
        if not batch:
            self._checkpoint(database)
        return batch, False

    def _may_tidy(self, database: Database) -> bool:
        return self.failed is None and self.lost is None and database.wal.is_worthwhile

    def _transact(self, database: Database, batch: list[_Post | _Call]) -> Database:
        """Execute `batch`; returns the database that the next one goes to."""
        if not batch:
            return database
        posts = [item.number for item in batch if isinstance(item, _Post)]
        try:
            answers = _execute(database, batch)
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                database.rollback()
            if not self._is_lost(error):
                _refuse(batch, self.fail(error))
                return database
            return self._transact(self._stand_in(database), batch)
        # Before anybody is woken who would have to wait for the interpreter.
        is_due = self._asked(database.wal.is_due)
        if posts:
            self.written.advance(posts[-1])
            self.syncer.on_written()
        for future, answer in answers:
            future.set_result(answer)
        if is_due:
            self._checkpoint(database)
        return database

    def _asked(self, question: Callable[[], bool]) -> bool:
        """What the WAL answers; no if its drive has failed."""
        try:
            return question()
        except OSError as error:
            if not self._is_lost(error):
                self.fail(error)
            return False

    def _checkpoint(self, database: Database) -> None:
        try:
            database.wal.checkpoint()
        except (sqlite3.Error, OSError) as error:
            if not self._is_lost(error):
                self.fail(error)

    # -- when the drive fails ----------------------------------------------------------------------

    def _is_lost(self, error: Exception) -> bool:
        """Whether `error` says that the drive has failed, and a stand-in may take over."""
        if not self._stands_in or not is_of_drive(error):
            return False
        if self.lost is None:
            self.lost = explain(self._path, error)
        return True

    def _stand_in(self, database: Database) -> Database:
        fresh = Database.in_memory()
        with self._in_use:
            self._database = fresh
        # outside of the lock: a dead drive may take its time
        with contextlib.suppress(sqlite3.Error, OSError):
            database.close()
        return fresh

    def _fsync(self) -> None:
        try:
            with self._in_use:
                self._database.fsync()
        except OSError as error:
            if not self._is_lost(error):
                raise


def _execute(database: Database, batch: list[_Post | _Call]) -> list[tuple[Future[Any], Any]]:
    answers: list[tuple[Future[Any], Any]] = []
    noted = 0
    database.begin()
    statements: list[Statement] = []
    for item in batch:
        if isinstance(item, _Post):
            statements += item.statements
            noted = item.number if item.noted else noted
        else:
            database.apply(merged(statements))
            statements = []
            answers.append((item.future, item.function(database)))
    database.apply(merged(statements))
    if noted:
        database.set_meta(schema.APPLIED, noted)
    database.commit()
    if any(isinstance(item, _Call) and item.durable for item in batch):
        database.fsync()
    return answers


def _refuse(batch: Iterable[_Post | _Call], error: JournalError) -> None:
    for item in batch:
        if isinstance(item, _Call) and not item.future.done():
            item.future.set_exception(error)
