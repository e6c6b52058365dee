"""Settings that are lists of tables, such as ``[[groups]]``: what all of them ask of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tierfs.config.nearest import nearest

Rule = TypeVar("Rule")


def parse_tables(
    value: object,
    name: str,
    rule: type[Rule],
    parse: Callable[[int, Mapping[str, Any]], Rule],
    *,
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> tuple[Rule, ...]:
    """The rules in `value`, the tables ``[[name]]`` of a configuration file, or rules already.

    `parse` gets the number of a table, from 1, and the table, in which all that is `required` is
    set and nothing is that is not known.

    Raises:
        ValueError: with the rule that `value` breaks.
    """
    wanted = " and ".join(required)
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be [[{name}]] tables with {wanted}")
    rules = []
    for number, entry in enumerate(value, start=1):
        if isinstance(entry, rule):
            rules.append(entry)
            continue
        if not isinstance(entry, dict):
            raise ValueError(f"entry {number} must be a table with {wanted}")
        _check_keys(number, entry, required, (*required, *optional))
        rules.append(parse(number, entry))
    return tuple(rules)


def _check_keys(
    number: int, table: Mapping[str, Any], required: Sequence[str], known: Sequence[str]
) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"entry {number}: unknown key {key!r}{nearest(key, known)}")
    if missing := [key for key in required if key not in table]:
        raise ValueError(f"entry {number}: {missing[0]} is not set")
