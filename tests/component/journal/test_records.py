"""What is posted is what is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.component.journal.helpers import journaled, put
from tierfs.journal import (
    DropClean,
    DropDirectory,
    DropObject,
    DropOp,
    DropPin,
    Journal,
    SaveClean,
    SaveDirectory,
    SaveObject,
    SaveOp,
    SavePin,
    TouchClean,
)
from tierfs.model import (
    ROOT,
    CleanRecord,
    DirectoryRecord,
    Kind,
    Mark,
    ObjectId,
    ObjectRecord,
    OpKind,
    OpState,
    Phase,
    Signature,
    new_object_id,
)

HIGHEST = 2**64 - 1


async def test_every_journaled_field_of_an_op_survives(
    journal: Journal, open_journal: Callable[..., Journal]
) -> None:
    full = put(
        journal, kind=OpKind.RENAME, first=7, changed_ns=-5, parent2=new_object_id(),
        name2=b"\x01\xfe",
        base_inode=HIGHEST, overwrites=True, fields=("mode", "xattr:user.\udcff"), flags=1,
        request=(3, HIGHEST), size=1 << 40, mark=Mark.STUCK, error="EACCES: 'x'", attempts=3,
        digest="sha256:00", staged_inode=2**63, durable=True, state=OpState.PUBLISHING,
        phase=Phase.STAGED,
    )  # fmt: skip
    bare = put(journal)
    await journal.post(SaveOp(full), SaveOp(bare)).written()
    journal.close()

    ops = open_journal().load().ops
    assert [journaled(op) for op in ops] == [journaled(full), journaled(bare)]
    assert {op.phase for op in ops} == {Phase.QUEUED}


async def test_an_error_with_an_undecodable_name_can_be_journaled(journal: Journal) -> None:
    await journal.post(SaveOp(put(journal, error="no such file: \udcff"))).written()
    assert journal.load().ops[0].error == "no such file: \\udcff"


async def test_ops_come_back_by_number_and_the_last_state_counts(journal: Journal) -> None:
    first, second, third = (put(journal) for _ in range(3))
    journal.post(SaveOp(first), SaveOp(second), SaveOp(third))
    first.number = journal.next_number()
    journal.post(SaveOp(first), DropOp(second.row))
    await journal.written()
    assert [op.row for op in journal.load().ops] == [third.row, first.row]


async def test_a_post_keeps_the_record_as_it_was(journal: Journal) -> None:
    op = put(journal, size=1)
    ticket = journal.post(SaveOp(op))
    op.size = 2
    await ticket.written()
    assert journal.load().ops[0].size == 1


async def test_objects_and_directories(journal: Journal) -> None:
    stub = ObjectRecord(new_object_id(), Kind.FILE, data=False, base_inode=HIGHEST)
    link = ObjectRecord(new_object_id(), Kind.SYMLINK, data=True)
    made = DirectoryRecord(new_object_id(), ROOT, b"d\xff", inode=2**63, tagged=True)
    pending = DirectoryRecord(new_object_id(), made.id, b"e")
    other = DirectoryRecord(new_object_id(), made.id, b"f", inode=5, tag=new_object_id())
    journal.post(SaveObject(stub), SaveObject(link), *map(SaveDirectory, (made, pending, other)))
    await journal.written()
    loaded = journal.load()
    assert {o.id: o for o in loaded.objects} == {stub.id: stub, link.id: link}
    assert {d.id: d for d in loaded.directories} == {d.id: d for d in (made, pending, other)}

    dropped = DropDirectory(pending.id), DropDirectory(other.id)
    await journal.post(DropObject(stub.id), *dropped).written()
    loaded = journal.load()
    assert (loaded.objects, loaded.directories) == ([link], [made])


def clean(inode: int, used_ns: int, size: int = 10) -> CleanRecord:
    signature = Signature(inode, size, -1, 2**62)
    return CleanRecord(signature, ObjectId(inode % 2**62), None, size, used_ns)


async def test_clean_copies(journal: Journal) -> None:
    records = [clean(HIGHEST, 3), clean(11, 1), clean(12, 2)]
    journal.post(*map(SaveClean, records))
    assert await journal.clean_copy(HIGHEST) == records[0]
    assert await journal.clean_copy(13) is None
    assert await journal.clean_victims(2) == [records[1], records[2]]
    assert await journal.clean_totals() == (3, 30)

    journal.post(TouchClean(11, 9), SaveClean(clean(12, 2, size=25)))
    assert [r.signature.inode for r in await journal.clean_victims(9)] == [12, HIGHEST, 11]
    assert await journal.clean_totals() == (3, 45)

    journal.post(DropClean(12), DropClean(12), DropClean(HIGHEST), TouchClean(12, 1))
    assert await journal.clean_totals() == (1, 10)


def test_small_facts(journal: Journal, open_journal: Callable[..., Journal]) -> None:
    assert journal.meta("shared") is None
    journal.set_meta("shared", b"\x00\xff")
    journal.close()
    assert open_journal().meta("shared") == b"\x00\xff"


def test_apply_is_visible_at_once(journal: Journal) -> None:
    op = put(journal)
    journal.apply(SaveOp(op))
    assert [found.row for found in journal.load().ops] == [op.row]


def test_after_a_reboot_closed_content_that_was_not_synced_is_suspect(journal: Journal) -> None:
    stub = new_object_id()
    expected = [put(journal), put(journal, state=OpState.PENDING)]
    others = [
        put(journal, durable=True),
        put(journal, state=OpState.OPEN),
        put(journal, mark=Mark.TORN),
        put(journal, object=stub),
        put(journal, kind=OpKind.MKDIR, state=OpState.PENDING),
    ]
    journal.apply(*map(SaveOp, expected + others), SaveObject(ObjectRecord(stub, Kind.FILE, False)))

    assert sorted(journal.mark_undurable_suspect()) == [op.row for op in expected]
    marks = {op.row: op.mark for op in journal.load().ops}
    assert marks == {
        **{op.row: Mark.SUSPECT for op in expected},
        **{op.row: op.mark for op in others},
    }


def test_open_files_of_a_dead_mount_become_torn(journal: Journal) -> None:
    torn, gone, closed = (
        put(journal, state=OpState.OPEN),
        put(journal, state=OpState.OPEN),
        put(journal),
    )
    journal.apply(*map(SaveOp, (torn, gone, closed)))
    journal.mark_torn([torn.row, closed.row])
    journal.apply(DropOp(gone.row))
    found = {op.row: (op.mark, op.state) for op in journal.load().ops}
    assert found == {
        torn.row: (Mark.TORN, OpState.PENDING),
        closed.row: (None, OpState.CLOSED),
    }


def test_what_cannot_be_stored_fails_at_its_author_alone(journal: Journal) -> None:
    with pytest.raises(AttributeError):
        journal.post(SaveOp(None))  # type: ignore[arg-type]
    journal.apply(SaveOp(put(journal)))
    assert journal.failed is None


def test_loading_takes_one_statement_a_table_however_many_rows(journal: Journal) -> None:
    journal.apply(*(SaveOp(put(journal)) for _ in range(100_000)))
    statements: list[str] = []
    call = journal._writer.call
    call(lambda database: database.connection.set_trace_callback(statements.append)).result()
    assert len(journal.load().ops) == 100_000
    call(lambda database: database.connection.set_trace_callback(None)).result()
    assert sum(statement.startswith("SELECT") for statement in statements) == 4


async def test_pins_come_with_the_bytes_of_their_copies(journal: Journal) -> None:
    journal.post(SavePin(HIGHEST, directory=False), SaveClean(clean(HIGHEST, 3, size=7)))
    journal.post(SavePin(11, directory=True), SavePin(12, directory=False), DropPin(12))
    await journal.post(SavePin(13, directory=False), DropPin(14)).written()
    assert sorted(journal.pins()) == [(11, True, 0), (13, False, 0), (HIGHEST, False, 7)]
