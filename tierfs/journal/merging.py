"""Many small statements as few large ones.

Between two statements the journal's thread gives the interpreter away and takes it back, which in
the middle of a burst of requests costs these more than what is asked of SQLite. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

from tierfs.journal.rows import MANY_AT_ONCE, Statement, table_of

AT_ONCE = (32, 4)
"""Rows that one statement inserts; so few different ones that SQLite prepares each once."""

FEW = 12
"""So many statements are not worth it."""


def merged(statements: list[Statement]) -> Iterable[Statement]:
    """What does the same in one transaction: the order is kept within each table."""
    return statements if len(statements) <= FEW else _merged(statements)


def _merged(statements: Iterable[Statement]) -> Iterator[Statement]:
    waiting: dict[str, tuple[str, list[tuple[Any, ...]]]] = {}
    for sql, parameters in statements:
        table = table_of(sql)
        known = waiting.get(table)
        if known is not None and known[0] == sql:
            known[1].append(parameters)
            continue
        if known is not None:
            yield from _in_pieces(*known)
        waiting[table] = sql, [parameters]
    for known in waiting.values():
        yield from _in_pieces(*known)


def _in_pieces(sql: str, rows: list[tuple[Any, ...]]) -> Iterator[Statement]:
    at = 0
    if sql in MANY_AT_ONCE:
        for count in AT_ONCE:
            while len(rows) - at >= count:
                yield _of_many(sql, count), tuple(chain.from_iterable(rows[at : at + count]))
                at += count
    for parameters in rows[at:]:
        yield sql, parameters


@cache
def _of_many(sql: str, count: int) -> str:
    head, word, row = sql.rpartition("VALUES ")
    return head + word + ", ".join([row] * count)
