"""The journal's front: what the other rooms call."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import trio

from tierfs.errors import JournalError
from tierfs.journal import ahead, schema
from tierfs.journal.ahead import Ahead
from tierfs.journal.changes import Change
from tierfs.journal.database import Database
from tierfs.journal.numbers import BLOCK, Numbers
from tierfs.journal.rows import Statement, encode
from tierfs.journal.ticket import Ticket
from tierfs.journal.writer import Writer
from tierfs.model import CleanRecord, JournalSnapshot, ObjectId
from tierfs.osio import OS
from tierfs.threads import patience

log = logging.getLogger(__name__)

T = TypeVar("T")

LATER_SECONDS = 0.02
"""How long what was posted for later may wait to share a transaction with the next."""


class Answer(Generic[T]):
    """What the journal's thread will answer."""

    __slots__ = ("_answered", "_future")

    def __init__(self, answered: trio.Event, future: Future[T]) -> None:
        self._answered = answered
        self._future = future

    async def get(self) -> T:
        """The answer; JournalError."""
        if seconds := patience.left():
            with contextlib.suppress(TimeoutError):
                return self._future.result(seconds)
        await self._answered.wait()
        return self._future.result()


class Journal:
    """What is pending, kept so that it survives the process, and after a sync a power cut.

    What is posted in one synchronous step of the trio loop is one transaction: no kill leaves a
    part of it. So who decides something has to post all of it before the next await, and no more.

    `post`, `next_number`, `next_row` and the `async` methods belong to the trio thread and never
    block it; the others block and may be called from any thread.

    Attributes:
        before_post: called before each post: what must not be written later than it.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._posted = 0
        self._step: list[Statement] = []
        self._is_early = self._waits_long = self._is_ending = False
        self._together = self._poster = 0
        self._kept = trio.Event()
        self._ahead: Ahead | None = None
        self.before_post: Callable[[], None] | None = None
        self._numbers = self._open_numbers(schema.NUMBER_LIMIT)
        self._rows = self._open_numbers(schema.ROW_LIMIT)

    @classmethod
    def open(
        cls, path: Path | str, system: OS | None = None, *, create: bool = True,
        stand_in: bool = False,
    ) -> Journal:  # fmt: skip
        """Open the journal `path`; blocks.

        With `create` a missing or empty one is made; without, it is an error: so a journal that
        was lost beside objects that were not is never taken for a fresh start. With `stand_in` a
        failure of its drive later on sets `lost` and ends nothing. Raises
        JournalError: damaged, of another version, in use, not writable.
        """
        absolute = Path(path).absolute()
        open_database = partial(Database.open, absolute, system or OS(), create=create)
        writer = Writer(absolute, open_database, stand_in=stand_in)
        try:
            return cls(writer)
        except BaseException:
            writer.close()
            raise

    def write_ahead(self, system: OS, directory: Path, *, take_up: bool) -> None:
        """What is posted early survives the process at once, in a file in `directory`; blocks.

        With `take_up` what an earlier process left of that is applied; else it is worth nothing,
        as the local file system was mounted again. Where there can be no such file all goes on
        without. JournalError.
        """
        before, applied = self._writer.call(Database.noted).result()
        old = None if before is None else Path(os.fsdecode(before))
        path = directory / f"ahead-{secrets.token_hex(8)}"
        try:
            lacking = ahead.left(system, old, applied) if old is not None and take_up else []
        except (OSError, ValueError) as error:
            raise JournalError(
                f"{old}.0 and .1, which hold the last changes before a kill, cannot be read: "
                f"{error}; without these two files the mount begins without those changes"
            ) from error
        try:
            made: Ahead | None = Ahead(system, path)
        except OSError as error:
            log.info("%s: %s; each removal is journaled by itself", path, error)
            made = None
        name = b"" if made is None else os.fsencode(path)
        self._writer.call(lambda database: database.take_up(lacking, name), durable=True).result()
        if lacking:
            log.info("%d changes that were answered before they were journaled are taken up",
                     len(lacking))  # fmt: skip
        self._ahead = made
        if old is not None:
            with contextlib.suppress(OSError):
                ahead.remove(system, old)

    @property
    def is_ahead(self) -> bool:
        """Whether all that was posted survives the process already, written or not.

        Not while the database is far behind. Asking ends the step.
        """
        self._end_step()
        noted = self._ahead
        if noted is None or noted.last != self._posted or noted.is_crowded:
            return False
        return self.failed is None and self.lost is None

    @property
    def failed(self) -> JournalError | None:
        """Why nothing can be journaled any more; None while all is well."""
        return self._writer.failed

    @property
    def lost(self) -> JournalError | None:
        """Why nothing that is posted outlives the process any more; None while all is well."""
        return self._writer.lost

    async def probe(self) -> None:
        """Writes something, so that a drive that has failed is noticed."""
        await self._ask(lambda database: database.set_meta("probed", 1))

    def next_number(self) -> int:
        """The next place in the order: above all before it, also those before a crash."""
        return self._numbers.take()

    def number_behind(self, held: int) -> int:
        """A place in the order behind everything else: `held` itself, if it is the last one."""
        return self._numbers.take_behind(held)

    def next_row(self) -> int:
        """The next row id: above all before it, also those before a crash."""
        return self._rows.take()

    def post(self, *changes: Change, later: bool = False) -> Ticket:
        """Queue `changes`: applied all or none, with the rest of the step, after every earlier one.

        Records are copied. A journal that failed tells so when the ticket is waited for. With
        `later` nothing is written before the next post, a wait for the ticket, or `LATER_SECONDS`.
        """
        if not self._step:
            self._waits_long, self._poster = True, threading.get_ident()
        self._step += [encode(change) for change in changes]
        if not self._together:
            self._posts(later=later)
        number, writer = self._posted + bool(self._step), self._writer
        return Ticket(number, writer.written, writer.syncer, self._hurry)

    @contextlib.contextmanager
    def together(self, *, later: bool = False, early: bool = False) -> Iterator[None]:
        """What is posted inside is posted at the end, with `later` as of `post`.

        For a part of a synchronous step. `early`: it is to survive the process at once, which
        `is_ahead` tells. Inside another one it is part of that.
        """
        self._together += 1
        self._is_early = self._is_early or early
        try:
            yield
        finally:
            self._together -= 1
            if not self._together:
                self._posts(later=later)

    def _posts(self, *, later: bool) -> None:
        if self.before_post is not None:
            self.before_post()
        if later:
            self._kept.set()
        else:
            self._waits_long = False
            self._end_soon()

    def _end_soon(self) -> None:
        """What is posted by code that runs before the next await is still of this step."""
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:  # before the loop runs: until it does, or something is asked
            self._kept.set()
            return
        if not self._is_ending:
            self._is_ending = True
            token.run_sync_soon(self._step_is_over)

    def _step_is_over(self) -> None:
        self._is_ending = False
        self._end_step()

    def _end_step(self) -> None:
        """What was posted is one: it gets its number, and stands where others of it may stand."""
        early, self._is_early = self._is_early, False
        if not self._step:
            return
        statements, self._step = self._step, []
        self._posted += 1
        noted = self._ahead is not None and self._note(self._ahead, statements, early=early)
        self._writer.post(self._posted, statements, later=self._waits_long, noted=noted)

    def _hurry(self) -> None:
        self._end_step()
        self._writer.hurry()

    def _note(self, noted: Ahead, statements: list[Statement], *, early: bool) -> bool:
        """Whether the present post stands in the file, before the database can have it.

        It does if others before it do, or if it is an early one and the database has all before.
        """
        if self.lost is not None:
            # what the next process finds in its database is older than what was noted
            self._leave(noted)
            return False
        written = self._writer.written.reached
        try:
            noted.settle(written)
            if noted.is_over and noted.is_empty:
                self._leave(noted)
            if noted.is_over or (noted.is_empty and not (early and written == self._posted - 1)):
                return False
            noted.note(self._posted, statements)
        except (OSError, ValueError) as error:
            log.error("%s: each removal is journaled by itself from now on", error)
            noted.is_over = True  # what it holds stays until the database has it
            return False
        return True

    def _leave(self, noted: Ahead) -> None:
        self._ahead = None
        with contextlib.suppress(OSError):
            noted.close(keep=False)

    async def run(self) -> None:
        """Writes what was posted for later, until cancelled."""
        while True:
            await self._kept.wait()
            self._kept = trio.Event()
            await trio.sleep(LATER_SECONDS)
            self._hurry()

    async def written(self) -> None:
        """Return when every post so far survives the process; JournalError when it cannot."""
        self._hurry()
        await self._writer.written.wait(self._posted)

    async def sync(self) -> None:
        """Return when every post so far survives a power cut; JournalError when it cannot."""
        self._hurry()
        await self._writer.syncer.wait(self._posted)

    async def clean_copy(self, inode: int) -> CleanRecord | None:
        """The local copy of the shared file `inode`, every earlier post applied."""
        return await self.clean_copy_soon(inode).get()

    def clean_copy_soon(self, inode: int) -> Answer[CleanRecord | None]:
        """As `clean_copy`, to be waited for later."""
        return self._ask_soon(lambda database: database.clean_copy(inode))

    async def clean_victims(self, limit: int) -> list[CleanRecord]:
        """Up to `limit` clean copies, least recently used first."""
        return await self._ask(lambda database: database.clean_victims(limit))

    async def clean_objects(self, objects: Iterable[ObjectId]) -> set[ObjectId]:
        """Which of `objects` hold a clean copy, every earlier post applied."""
        return await self._ask(lambda database: database.clean_objects(objects))

    async def clean_totals(self) -> tuple[int, int]:
        """How many clean copies there are, and their bytes."""
        return await self._ask(Database.clean_totals)

    def load(self) -> JournalSnapshot:
        """All pending ops by number, phase QUEUED, with what they need. Blocks."""
        return self._call(Database.load).result()

    def apply(self, *changes: Change) -> None:
        """Apply `changes` durably, after every earlier post. Blocks."""
        statements = [encode(change) for change in changes]
        self._call(lambda database: database.apply(statements), durable=True).result()

    def clean_copy_now(self, inode: int) -> CleanRecord | None:
        """As :meth:`clean_copy`, for the time before the trio thread serves. Blocks."""
        return self._call(lambda database: database.clean_copy(inode)).result()

    def pins(self) -> list[tuple[int, bool, int]]:
        """What is pinned: shared inode, whether a directory, bytes of its local copy. Blocks."""
        return self._call(Database.pins).result()

    def requests(self) -> set[int]:
        """The kernel's requests of the present mount that were carried out and not answered."""
        return self._call(Database.requests).result()

    def forget_requests(self) -> None:
        """There is a new mount: the kernel counts its requests anew. Blocks."""
        self._call(Database.forget_requests).result()

    def meta(self, key: str) -> bytes | None:
        """The value of `key` in the table of small facts; None if there is none. Blocks."""
        value = self._call(lambda database: database.meta(key)).result()
        return value if value is None else bytes(value)

    def set_meta(self, key: str, value: bytes) -> None:
        """Set the value of `key` durably. Blocks."""
        self._call(lambda database: database.set_meta(key, value), durable=True).result()

    def mark_undurable_suspect(self) -> list[int]:
        """After a reboot: mark SUSPECT each closed PUT whose content may not have been synced.

        These are the rows without a mark, in state CLOSED or PENDING, that are not durable and
        whose content is local. Returns their row ids. Durable; blocks.
        """
        return self._call(Database.mark_undurable_suspect, durable=True).result()

    def mark_all_suspect(self, error: str) -> None:
        """Mark SUSPECT, because of `error`, each PUT without a mark whose content is local.

        After a time that the journal has missed. Durable; blocks.
        """
        self._call(lambda database: database.mark_all_suspect(error), durable=True).result()

    def mark_torn(self, rows: Iterable[int]) -> None:
        """Mark TORN each of `rows` that is OPEN: its writer is gone with the mount.

        They become PENDING, since nobody will close them. Durable; blocks.
        """
        row_ids = list(rows)
        self._call(lambda database: database.mark_torn(row_ids), durable=True).result()

    def close(self) -> None:
        """Commit what is queued, bring the WAL into the database and close it. Blocks."""
        self._end_step()
        self._writer.close()
        if (noted := self._ahead) is not None:
            self._ahead = None
            with contextlib.suppress(OSError):
                noted.close(keep=self._writer.written.reached < self._posted)

    def _call(self, function: Callable[[Database], T], *, durable: bool = False) -> Future[T]:
        """As of the writer, with every earlier post of this thread applied."""
        if self._step and threading.get_ident() == self._poster:
            self._end_step()
        return self._writer.call(function, durable=durable)

    async def _ask(self, function: Callable[[Database], T]) -> T:
        return await self._ask_soon(function).get()

    def _ask_soon(self, function: Callable[[Database], T]) -> Answer[T]:
        token = trio.lowlevel.current_trio_token()
        answered = trio.Event()

        def wake(_: Future[T]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(answered.set)

        future = self._call(function)
        future.add_done_callback(wake)
        return Answer(answered, future)

    def _open_numbers(self, key: str) -> Numbers:
        def reserve(limit: int) -> Future[None]:
            # in the middle of a step, which goes on
            return self._writer.call(lambda database: database.set_meta(key, limit), durable=True)

        first = self._call(lambda database: database.meta(key)).result()
        if not isinstance(first, int):
            raise self._writer.fail(ValueError(f"{key} is {first!r}"))
        limit = first + 2 * BLOCK
        reserve(limit).result()
        return Numbers(first, limit, reserve)
