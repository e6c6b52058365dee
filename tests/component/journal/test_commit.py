"""Transactions, syncs, and what is left of them when the process or the machine dies."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.component.journal.helpers import Gate, WatchedOS, put, python
from tests.harness.devices import LoopDevice, run, shut_down
from tests.harness.waiting import wait_until
from tierfs.errors import JOURNAL_LOST, JournalError
from tierfs.journal import DropOp, Journal, SaveOp
from tierfs.journal.rows import Statement
from tierfs.journal.wal import CHECKPOINT_BYTES
from tierfs.model import OpState
from tierfs.osio import OS

LIMITER = trio.CapacityLimiter(2)


async def in_thread(call: Callable[[], object]) -> None:
    await trio.to_thread.run_sync(call, limiter=LIMITER)


async def test_what_is_queued_becomes_one_transaction(open_journal: Callable[..., Journal]) -> None:
    gate = Gate()
    journal = open_journal(WatchedOS(journal_fsync=gate))
    commits: list[str] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            commits.append(statement)

    journal._writer.call(lambda db: db.connection.set_trace_callback(trace)).result()
    gate.shut()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, lambda: journal.set_meta("held", b""))
        await in_thread(gate.arrived.wait)  # the journal's own thread is held in that fsync
        del commits[:]
        tickets = [journal.post(SaveOp(put(journal))) for _ in range(50)]
        gate.open()
        for ticket in tickets:
            await ticket.written()
    assert commits == ["COMMIT"]


async def test_who_waits_for_all_posts_makes_no_transaction(journal: Journal) -> None:
    statements: list[str] = []
    journal.post(SaveOp(put(journal)), later=True)
    await journal.written()
    assert len(journal.load().ops) == 1
    journal._writer.call(lambda db: db.connection.set_trace_callback(statements.append)).result()
    del statements[:]
    await journal.written()
    assert not statements


async def test_a_slow_sync_holds_up_no_post(open_journal: Callable[..., Journal]) -> None:
    gate = Gate()
    journal = open_journal(WatchedOS(journal_fsync=gate))
    gate.shut()
    done = trio.Event()

    async def sync() -> None:
        await journal.post(SaveOp(put(journal))).synced()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        await in_thread(gate.arrived.wait)
        later = journal.post(SaveOp(put(journal)))
        await later.written()
        assert not done.is_set()
        gate.open()
        await later.synced()
        await done.wait()


async def test_one_sync_serves_all_that_is_written(open_journal: Callable[..., Journal]) -> None:
    syncs: list[int] = []
    journal = open_journal(WatchedOS(journal_fsync=lambda: syncs.append(1)))
    for _ in range(20):
        await journal.post(SaveOp(put(journal))).written()
    del syncs[:]
    await journal.sync()
    await journal.sync()
    assert len(syncs) == 1


async def test_a_cancelled_wait_harms_nobody(journal: Journal) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.post(SaveOp(put(journal))).written()
    assert scope.cancelled_caught
    await journal.post(SaveOp(put(journal))).written()
    assert len(journal.load().ops) == 2


KILLED_WHILE_POSTING = """
import sys, trio
from tests.component.journal.helpers import put
from tierfs.journal import Journal, SaveOp

async def main():
    journal = Journal.open(sys.argv[1])
    while True:
        ops = [put(journal) for _ in range(3)]
        tickets = [journal.post(SaveOp(op)) for op in ops]
        await tickets[-1].written()
        print(*(f"{op.row}:{op.number}" for op in ops), flush=True)

trio.run(main)
"""


def test_what_was_written_survives_kill_9_and_no_number_comes_twice(
    path: Path, open_journal: Callable[..., Journal]
) -> None:
    rows: set[int] = set()
    highest_row = highest_number = 0
    for _ in range(3):
        child = python(KILLED_WHILE_POSTING, path)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(200)]
        child.kill()
        lines.extend(line for line in child.stdout.read().splitlines(True) if line.endswith("\n"))
        child.wait()
        child.stdout.close()
        pairs = [tuple(map(int, word.split(":"))) for line in lines for word in line.split()]
        assert min(row for row, _ in pairs) > highest_row
        assert min(number for _, number in pairs) > highest_number
        highest_row, highest_number = map(max, zip(*pairs, strict=True))
        rows.update(row for row, _ in pairs)
    journal = open_journal()
    assert rows <= {op.row for op in journal.load().ops}
    assert journal.next_row() > highest_row
    assert journal.next_number() > highest_number


async def test_synced_posts_survive_a_power_cut(
    make_device: Callable[..., LoopDevice], open_journal: Callable[..., Journal]
) -> None:
    device = make_device("power")
    path = device.mountpoint / "journal.db"
    journal = open_journal(at=path)
    ops = [put(journal) for _ in range(100)]
    for op in ops:
        journal.post(SaveOp(op))
    await journal.sync()
    with dead(device):  # what is not on the disk yet never will be
        journal.close()
    device.mount()

    journal = open_journal(at=path)
    assert [op.row for op in journal.load().ops] == [op.row for op in ops]
    assert journal.next_number() > ops[-1].number
    journal.close()


@contextmanager
def dead(device: LoopDevice) -> Iterator[None]:
    """The drive is gone in the block, and unmounted after it."""
    shut_down(device)
    try:
        yield
    finally:
        run("umount", "-l", device.mountpoint)


def fail(code: int) -> Callable[[], None]:
    def hook() -> None:
        raise OSError(code, os.strerror(code))

    return hook


async def test_after_a_failed_sync_nothing_is_promised_any_more(
    open_journal: Callable[..., Journal],
) -> None:
    system = WatchedOS()
    journal = open_journal(system)
    before = journal.post(SaveOp(put(journal)))
    await before.synced()
    ticket = journal.post(SaveOp(put(journal)))
    await ticket.written()
    system.at["journal.fsync"] = fail(errno.EIO)
    with pytest.raises(JournalError, match=r"journal\.db: .*Input/output error"):
        await ticket.synced()
    assert journal.failed is not None
    await before.synced()
    await ticket.written()
    for wait in (journal.post(SaveOp(put(journal))).written, journal.sync):
        with pytest.raises(JournalError):
            await wait()
    with pytest.raises(JournalError):
        journal.load()


async def test_who_waits_when_the_drive_dies_gets_the_error(
    make_device: Callable[..., LoopDevice], open_journal: Callable[..., Journal]
) -> None:
    device = make_device("dying")
    journal = open_journal(at=device.mountpoint / "journal.db")
    with dead(device):
        ticket = journal.post(SaveOp(put(journal)))
        with pytest.raises(JournalError, match="check"):
            await ticket.synced()
        assert journal.failed is not None
        journal.close()


async def test_a_full_file_system_still_takes_what_makes_room_and_then_fails_honestly(
    make_device: Callable[..., LoopDevice], open_journal: Callable[..., Journal]
) -> None:
    device = make_device("full", size=96 << 20)
    path = device.mountpoint / "journal.db"
    journal = open_journal(at=path)
    ballast = device.fill()
    with pytest.raises(OSError, match="No space left"):
        (device.mountpoint / "other").write_bytes(bytes(1 << 20))

    written: list[int] = []

    async def post_on() -> None:
        while True:
            ops = [put(journal, name=bytes(200)) for _ in range(1000)]
            for op in ops:
                ticket = journal.post(SaveOp(op))
            await ticket.written()
            written.extend(op.row for op in ops)

    with pytest.raises(JournalError, match=r"full.*make room"):
        await post_on()
    assert len(written) >= 20_000, "the reserve should have held for longer"
    assert journal.failed is not None
    journal.close()

    ballast.unlink()
    journal = open_journal(at=path)
    assert set(written) <= {op.row for op in journal.load().ops}
    journal.close()


async def test_the_wal_stays_bounded_and_is_emptied_when_idle(
    open_journal: Callable[..., Journal], path: Path
) -> None:
    journal = open_journal()
    wal = path.with_name("journal.db-wal")
    longest = 0
    for _ in range(40):
        ops = [put(journal, name=bytes(250)) for _ in range(1000)]
        for op in ops:
            journal.post(SaveOp(op))
        await journal.written()
        longest = max(longest, wal.stat().st_size)
        for op in ops:
            journal.post(DropOp(op.row))
    await journal.post(*(SaveOp(put(journal, name=bytes(250))) for _ in range(8000))).written()
    assert 1 << 20 < longest < 2 * CHECKPOINT_BYTES
    await in_thread(
        lambda: wait_until(lambda: wal.stat().st_size == 0, "the WAL to be emptied", timeout=60)
    )


def test_a_cut_database_is_refused_in_a_line(
    path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.apply(*(SaveOp(put(journal)) for _ in range(5000)))
    journal.close()
    for size in (path.stat().st_size // 2, 5000, 100):
        os.truncate(path, size)
        with pytest.raises(JournalError, match=r"journal\.db: .*damaged.*tierfs salvage") as caught:
            Journal.open(path)
        assert "\n" not in str(caught.value)


def test_a_missing_or_emptied_journal_is_no_fresh_start(path: Path) -> None:
    for prepare in (lambda: None, path.touch):
        prepare()
        with pytest.raises(JournalError, match="missing or empty"):
            Journal.open(path, create=False)
    assert os.listdir(path.parent) == ["journal.db"]


def test_overwritten_pages_are_refused(path: Path, open_journal: Callable[..., Journal]) -> None:
    journal = open_journal()
    journal.apply(*(SaveOp(put(journal)) for _ in range(5000)))
    journal.close()
    with path.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xa5" * (path.stat().st_size - 16 * 4096))
    with pytest.raises(JournalError, match="damaged"):
        open_journal().load()


def test_a_damaged_schema_is_a_lost_journal(
    path: Path, open_journal: Callable[..., Journal]
) -> None:
    """One bit in the name of a column: SQLite calls that an error in the statement."""
    journal = open_journal()
    journal.apply(SaveOp(put(journal)))
    journal.close()
    content = path.read_bytes()
    assert content.count(b"staged_inode") == 1
    path.write_bytes(content.replace(b"staged_inode", b"staged_inoee"))
    with pytest.raises(JournalError, match=JOURNAL_LOST):
        open_journal().load()


def test_a_row_that_makes_no_sense_is_refused(
    path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.apply(SaveOp(put(journal)))
    journal.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE op SET state = 'elsewhere'")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="elsewhere"):
        open_journal().load()


def test_a_cut_wal_leaves_the_posts_before_the_cut(
    path: Path, tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    for _ in range(50):
        journal.apply(SaveOp(put(journal)))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        shutil.copy(path.with_name(name), copy)
    wal = copy / "journal.db-wal"
    os.truncate(wal, wal.stat().st_size * 2 // 3)
    rows = [op.row for op in open_journal(at=copy / "journal.db").load().ops]
    everything = [op.row for op in journal.load().ops]
    assert 0 < len(rows) < 50
    assert rows == everything[: len(rows)]


def copied_with_marks(path: Path, to: Path) -> Path:
    """The journal as a kill at this moment leaves it, xattrs too."""
    to.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        shutil.copy2(path.with_name(name), to)
    return to / path.name


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_wal_that_lost_what_was_durable_is_a_lost_journal(
    path: Path, tmp_path: Path, open_journal: Callable[..., Journal], how: str
) -> None:
    """To SQLite its end is a transaction that was never committed."""
    journal = open_journal()
    for _ in range(50):
        journal.apply(SaveOp(put(journal)))
    whole = copied_with_marks(path, tmp_path / "whole")
    copy = copied_with_marks(path, tmp_path / "copy")
    assert len(open_journal(at=whole).load().ops) == 50
    wal = copy.with_name("journal.db-wal")
    size = wal.stat().st_size
    if how == "cut":
        os.truncate(wal, size - 100)
    elif how == "flipped":
        with wal.open("r+b") as file:
            file.seek(size // 2)
            file.write(bytes(64))
    else:
        wal.unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match=JOURNAL_LOST):
            Journal.open(copy, create=False)


async def test_what_was_never_durable_may_be_missing(
    path: Path, tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    await journal.post(SaveOp(put(journal))).written()
    await journal.sync()
    synced = path.with_name("journal.db-wal").stat().st_size
    for _ in range(20):
        await journal.post(SaveOp(put(journal))).written()
    copy = copied_with_marks(path, tmp_path / "copy")
    os.truncate(copy.with_name("journal.db-wal"), synced)
    assert len(open_journal(at=copy).load().ops) == 1


@pytest.mark.parametrize(
    ("pragma", "message"),
    [("user_version = 2", "format 2"), ("application_id = 5", "no tierfs journal")],
)
def test_other_versions_and_other_databases_are_refused(
    path: Path, open_journal: Callable[..., Journal], pragma: str, message: str
) -> None:
    open_journal().close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA {pragma}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=message):
        Journal.open(path)
    assert path.read_bytes() == before


def test_a_foreign_database_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(JournalError, match="no tierfs journal"):
        Journal.open(path)


def test_a_journal_in_use_by_another_process_is_refused(
    path: Path, open_journal: Callable[..., Journal]
) -> None:
    open_journal()
    code = """
import sys
from tierfs.errors import JournalError
from tierfs.journal import Journal
try:
    Journal.open(sys.argv[1])
except JournalError as error:
    print(error)
"""
    child = python(code, path)
    output, _ = child.communicate(timeout=60)
    assert "another process uses it" in output


def test_only_its_owner_may_read_it(path: Path, open_journal: Callable[..., Journal]) -> None:
    open_journal(OS()).apply()
    names = ("journal.db", "journal.db-wal")
    assert {path.with_name(name).stat().st_mode & 0o777 for name in names} == {0o600}


async def test_a_closed_journal_says_so(journal: Journal) -> None:
    ticket = journal.post(SaveOp(put(journal, state=OpState.PENDING)))
    journal.close()
    await ticket.written()
    with pytest.raises(JournalError, match="closed"):
        await journal.post(SaveOp(put(journal))).written()


async def test_what_one_step_posts_is_written_at_once_or_not_at_all(
    open_journal: Callable[..., Journal],
) -> None:
    """A kill between two posts leaves no half of what was decided in one step."""
    journal, sizes = open_journal(), list[int]()
    post = journal._writer.post

    def count(number: int, statements: list[Statement], *, later: bool, noted: bool) -> None:
        sizes.append(len(statements))
        post(number, statements, later=later, noted=noted)

    journal._writer.post = count  # type: ignore[method-assign]
    first, second = put(journal), put(journal)
    journal.post(SaveOp(first))
    journal.post(SaveOp(second), later=True)
    await journal.post(DropOp(first.row)).written()
    journal.post(SaveOp(first))
    await trio.testing.wait_all_tasks_blocked()
    assert sizes == [3, 1]


async def test_nothing_to_post_is_waited_for_no_longer_than_what_came_before(
    open_journal: Callable[..., Journal],
) -> None:
    journal = open_journal()
    with trio.fail_after(10):
        await journal.post().written()
        journal.post(SaveOp(put(journal)), later=True)
        await journal.post().synced()
    assert len(journal.load().ops) == 1
