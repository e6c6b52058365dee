"""Between the records of the model and the rows of journal.db.

Encoding happens when a change is posted: it copies the record, and what cannot be stored fails
at its author, not in a transaction that others share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tierfs.journal import changes
from tierfs.model import (
    CleanRecord,
    DirectoryRecord,
    GroupRecord,
    Kind,
    Mark,
    ObjectId,
    ObjectRecord,
    Op,
    OpKind,
    OpState,
    Signature,
    WriterRecord,
)

Statement = tuple[str, tuple[Any, ...]]
"""SQL and its parameters."""

_OP_COLUMNS = (
    "row, number, first, kind, state, mark, object, parent, name, parent2, name2, timestamp_ns,"
    " changed_ns, base_inode, overwrites, fields, flags, request_connection, request_unique, size,"
    " error, attempts, digest, staged_inode, durable"
)
_OBJECT_COLUMNS = "id, kind, data, base_inode"
_DIRECTORY_COLUMNS = "id, parent, name, inode, tagged"
_GROUP_COLUMNS = "id, made, expect, older, writers"
_CLEAN_COLUMNS = "inode, size, mtime_ns, ctime_ns, object, digest, bytes, used_ns"

SELECT_OPS = f"SELECT {_OP_COLUMNS} FROM op ORDER BY number, row"
SELECT_OBJECTS = f"SELECT {_OBJECT_COLUMNS} FROM object"
SELECT_DIRECTORIES = f"SELECT {_DIRECTORY_COLUMNS} FROM directory"
SELECT_GROUPS = f"SELECT {_GROUP_COLUMNS} FROM checkpoint"
SELECT_CLEAN = f"SELECT {_CLEAN_COLUMNS} FROM clean WHERE inode = ?"
SELECT_VICTIMS = f"SELECT {_CLEAN_COLUMNS} FROM clean ORDER BY used_ns LIMIT ?"

SELECT_PINS = (
    "SELECT pin.inode, pin.directory, coalesce(clean.bytes, 0)"
    " FROM pin LEFT JOIN clean ON clean.inode = pin.inode"
)


def _replace(table: str, columns: str) -> str:
    marks = ", ".join("?" * len(columns.split(",")))
    return f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})"


_SAVE_OP = _replace("op", _OP_COLUMNS)
_SAVE_OBJECT = _replace("object", _OBJECT_COLUMNS)
_SAVE_DIRECTORY = _replace("directory", _DIRECTORY_COLUMNS)
_SAVE_GROUP = _replace("checkpoint", _GROUP_COLUMNS)
_SAVE_REQUEST = "INSERT OR IGNORE INTO request VALUES (?)"

MANY_AT_ONCE = frozenset({_SAVE_OP, _SAVE_OBJECT, _SAVE_DIRECTORY, _SAVE_REQUEST})
"""Statements whose row of values may be followed by more of them."""

# Not REPLACE: that would not run the trigger for the row that it removes.
_SAVE_CLEAN = (
    f"INSERT INTO clean ({_CLEAN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (inode) DO UPDATE SET size = excluded.size, mtime_ns = excluded.mtime_ns,"
    " ctime_ns = excluded.ctime_ns, object = excluded.object, digest = excluded.digest,"
    " bytes = excluded.bytes, used_ns = excluded.used_ns"
)


def _stored(value: int) -> int:
    """Any 64-bit value as SQLite's signed integer."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _stored_or_null(value: int | None) -> int | None:
    return None if value is None else _stored(value)


def unsigned(value: int) -> int:
    """The unsigned 64-bit value that was stored as `value`."""
    return value % (1 << 64)


def _unsigned_or_none(value: int | None) -> int | None:
    return None if value is None else unsigned(value)


def _text(value: str | None) -> str | None:
    # Messages carry file names; lone surrogates from undecodable ones cannot be stored as TEXT.
    return None if value is None else value.encode("utf-8", "backslashreplace").decode()


def _op_row(op: Op) -> tuple[Any, ...]:
    connection, unique = op.request or (None, None)
    return (
        op.row, op.number, op.first, op.kind.value, op.state.value, op.mark and op.mark.value,
        op.object, op.parent, op.name, op.parent2, op.name2, _stored(op.timestamp_ns),
        _stored(op.changed_ns), _stored_or_null(op.base_inode), int(op.overwrites),
        "\0".join(op.fields).encode("utf-8", "surrogateescape"), int(op.flags),
        _stored_or_null(connection), _stored_or_null(unique), op.size, _text(op.error),
        op.attempts, op.digest, _stored_or_null(op.staged_inode), int(op.durable),
    )  # fmt: skip


def op_of(row: Sequence[Any]) -> Op:
    """The op in a row of SELECT_OPS, phase QUEUED. ValueError if it is none."""
    (
        row_id, number, first, kind, state, mark, object_id, parent, name, parent2, name2,
        timestamp_ns, changed_ns, base_inode, overwrites, fields, flags, connection, unique, size,
        error, attempts, digest, staged_inode, durable,
    ) = row  # fmt: skip
    names = bytes(fields).decode("utf-8", "surrogateescape")
    return Op(
        row=row_id, number=number, first=first, kind=OpKind(kind), state=OpState(state),
        mark=None if mark is None else Mark(mark), object=ObjectId(object_id),
        parent=ObjectId(parent), name=name, parent2=parent2, name2=name2,
        timestamp_ns=timestamp_ns, changed_ns=changed_ns,
        base_inode=_unsigned_or_none(base_inode), overwrites=bool(overwrites),
        fields=tuple(names.split("\0")) if names else (), flags=flags,
        request=None if connection is None else (unsigned(connection), unsigned(unique)),
        size=size, error=error, attempts=attempts, digest=digest,
        staged_inode=_unsigned_or_none(staged_inode), durable=bool(durable),
    )  # fmt: skip


def _object_row(record: ObjectRecord) -> tuple[Any, ...]:
    return record.id, record.kind.value, int(record.data), _stored_or_null(record.base_inode)


def object_of(row: Sequence[Any]) -> ObjectRecord:
    """The record in a row of SELECT_OBJECTS. ValueError if it is none."""
    object_id, kind, data, base_inode = row
    return ObjectRecord(ObjectId(object_id), Kind(kind), bool(data), _unsigned_or_none(base_inode))


def _directory_row(record: DirectoryRecord) -> tuple[Any, ...]:
    inode = _stored_or_null(record.inode)
    return record.id, record.parent, record.name, inode, record.tag or int(record.tagged)


def directory_of(row: Sequence[Any]) -> DirectoryRecord:
    """The record in a row of SELECT_DIRECTORIES."""
    directory_id, parent, name, inode, tagged = row
    return DirectoryRecord(
        ObjectId(directory_id), ObjectId(parent), name, _unsigned_or_none(inode), tagged == 1,
        ObjectId(tagged) if tagged > 1 else None,
    )  # fmt: skip


def _group_row(record: GroupRecord) -> tuple[Any, ...]:
    writers = [
        [w.process, w.started, w.state, w.wrote, w.closed, w.removed, [*map(os.fsdecode, w.over)]]
        for w in record.writers
    ]
    older = _stored_or_null(record.older)
    return record.id, record.made, record.expect, older, json.dumps(writers)


def group_of(row: Sequence[Any]) -> GroupRecord:
    """The record in a row of SELECT_GROUPS."""
    group, made, expect, older, writers = row
    return GroupRecord(
        ObjectId(group), made, expect, _unsigned_or_none(older),
        tuple(_writer_of(*each) for each in json.loads(writers)),
    )  # fmt: skip


def _writer_of(
    process: int, started: int, state: str, wrote: bool, closed: bool, removed: bool = False,
    over: Sequence[str] = (),
) -> WriterRecord:  # fmt: skip
    names = tuple(map(os.fsencode, over))
    return WriterRecord(process, started, state, wrote, closed, removed, names)


def _clean_row(record: CleanRecord) -> tuple[Any, ...]:
    sign = record.signature
    return (
        _stored(sign.inode), sign.size, _stored(sign.mtime_ns), _stored(sign.ctime_ns),
        record.object, record.digest, record.bytes, record.used_ns,
    )  # fmt: skip


def clean_of(row: Sequence[Any]) -> CleanRecord:
    """The record in a row of SELECT_CLEAN or SELECT_VICTIMS."""
    inode, size, mtime_ns, ctime_ns, object_id, digest, bytes_, used_ns = row
    signature = Signature(unsigned(inode), size, mtime_ns, ctime_ns)
    return CleanRecord(signature, ObjectId(object_id), digest, bytes_, used_ns)


_ENCODERS: dict[type, Callable[[Any], Statement]] = {
    changes.SaveOp: lambda c: (_SAVE_OP, _op_row(c.op)),
    changes.DropOp: lambda c: ("DELETE FROM op WHERE row = ?", (c.row,)),
    changes.SaveObject: lambda c: (_SAVE_OBJECT, _object_row(c.record)),
    changes.DropObject: lambda c: ("DELETE FROM object WHERE id = ?", (c.id,)),
    changes.SaveDirectory: lambda c: (_SAVE_DIRECTORY, _directory_row(c.record)),
    changes.DropDirectory: lambda c: ("DELETE FROM directory WHERE id = ?", (c.id,)),
    changes.SaveGroup: lambda c: (_SAVE_GROUP, _group_row(c.record)),
    changes.DropGroup: lambda c: ("DELETE FROM checkpoint WHERE id = ?", (c.id,)),
    changes.SaveClean: lambda c: (_SAVE_CLEAN, _clean_row(c.record)),
    changes.DropClean: lambda c: ("DELETE FROM clean WHERE inode = ?", (_stored(c.inode),)),
    changes.TouchClean: lambda c: (
        "UPDATE clean SET used_ns = ? WHERE inode = ?",
        (c.used_ns, _stored(c.inode)),
    ),
    changes.SavePin: lambda c: (
        "INSERT OR REPLACE INTO pin VALUES (?, ?)",
        (_stored(c.inode), int(c.directory)),
    ),
    changes.DropPin: lambda c: ("DELETE FROM pin WHERE inode = ?", (_stored(c.inode),)),
    changes.SaveRequest: lambda c: (_SAVE_REQUEST, (_stored(c.unique),)),
    changes.DropRequests: lambda c: (
        "DELETE FROM request WHERE request_unique IN (SELECT value FROM json_each(?))",
        (json.dumps([_stored(unique) for unique in c.uniques]),),
    ),
}


def encode(change: changes.Change) -> Statement:
    """`change` as a statement with a copy of its values."""
    return _ENCODERS[type(change)](change)


@cache
def table_of(sql: str) -> str:
    """The table that a statement of `encode` changes."""
    words = sql.split()
    return words[1 + min(words.index(each) for each in ("INTO", "FROM", "UPDATE") if each in words)]


def clean_key(inode: int) -> tuple[int]:
    """The parameter of SELECT_CLEAN for the shared file `inode`."""
    return (_stored(inode),)
