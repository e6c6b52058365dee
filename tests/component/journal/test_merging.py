"""Merged statements do what they did one by one."""

from __future__ import annotations

import random

import pytest

from tierfs.journal import (
    Change,
    DropClean,
    DropDirectory,
    DropObject,
    DropOp,
    DropRequests,
    SaveClean,
    SaveDirectory,
    SaveObject,
    SaveOp,
    SavePin,
    SaveRequest,
    TouchClean,
)
from tierfs.journal.database import Database
from tierfs.journal.merging import FEW, merged
from tierfs.journal.rows import Statement, encode
from tierfs.model import (
    ROOT,
    CleanRecord,
    DirectoryRecord,
    Kind,
    ObjectId,
    ObjectRecord,
    Op,
    OpKind,
    Signature,
)

TABLES = ("op", "object", "directory", "clean", "clean_total", "pin", "request")


def change(choose: random.Random) -> Change:
    """Any change, of few things: so one follows the other on the same row."""
    row, value = choose.randrange(1, 40), choose.randrange(1000)
    name = b"%d" % value
    op = Op(
        row=row, number=row, kind=OpKind.UNLINK, object=ObjectId(row), parent=ROOT, name=name,
        timestamp_ns=value,
    )  # fmt: skip
    sign = Signature(row, value, 1, 1)
    return choose.choice(
        [
            SaveOp(op), SaveOp(op), DropOp(row),
            SaveObject(ObjectRecord(ObjectId(row), Kind.FILE, True)),
            SaveObject(ObjectRecord(ObjectId(row), Kind.FILE, False, value)),
            DropObject(ObjectId(row)), SaveRequest(row), DropRequests((row, row + 1)),
            SaveDirectory(DirectoryRecord(ObjectId(row), ROOT, name)), DropDirectory(ObjectId(row)),
            SaveClean(CleanRecord(sign, ObjectId(row), None, value, value)), DropClean(row),
            TouchClean(row, value), SavePin(row, directory=True),
        ]
    )  # fmt: skip


def after(statements: list[Statement], *, at_once: bool) -> dict[str, list[object]]:
    database = Database.in_memory()
    database.begin()
    database.apply(merged(statements) if at_once else statements)
    database.commit()
    found = {
        table: sorted(database.connection.execute(f"SELECT * FROM {table}"), key=repr)
        for table in TABLES
    }
    database.close()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_merged_statements_do_the_same(seed: int) -> None:
    choose = random.Random(seed)
    many = [encode(change(choose)) for _ in range(choose.choice([FEW, 40, 300]))]
    assert after(many, at_once=True) == after(many, at_once=False)


def test_many_removals_are_few_statements() -> None:
    def one(row: int) -> list[Change]:
        record = ObjectRecord(ObjectId(row), Kind.FILE, False, row)
        op = Op(
            row=row, number=row, kind=OpKind.UNLINK, object=record.id, parent=ROOT, name=b"x",
            timestamp_ns=1,
        )  # fmt: skip
        return [SaveObject(record), SaveOp(op), SaveRequest(row)]

    many = [encode(each) for row in range(1, 101) for each in one(row)]
    assert len(list(merged(many))) == 3 * (3 + 1)
    assert after(many, at_once=True) == after(many, at_once=False)
