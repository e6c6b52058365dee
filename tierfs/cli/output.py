"""How answers are printed: text for people, JSON for programs (``--json``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

JSON_OPTION = "--json"

_JSON = "tierfs.json"


def json_option(command: Command) -> Command:
    """Give `command` the option :data:`JSON_OPTION`; it is asked for with :func:`wants_json`."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_JSON] = value

    return click.option(
        JSON_OPTION,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Print JSON.",
    )(command)


def wants_json() -> bool:
    """Whether the running command was given ``--json``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_JSON))


def say(text: str) -> None:
    """Print `text`; bytes of names that are not UTF-8 are shown as ``\\xNN``."""
    click.echo(shown(text))


def say_path(path: str) -> None:
    """Print a path for programs: byte for byte, except on a terminal."""
    click.echo(shown(path) if sys.stdout.isatty() else os.fsencode(path))


def shown(text: str) -> str:
    """`text` with what a terminal cannot show (surrogate escapes, control characters) escaped."""
    raw = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in raw)


def emit(message: Mapping[str, Any]) -> None:
    """Print `message` as one line of JSON, at once."""
    click.echo(json.dumps(message))


def fail(message: str, exit_code: int) -> None:
    """Print the error `message`: one line on stderr, with ``--json`` also an object on stdout."""
    click.echo(f"tierfs: {shown(message)}", err=True)
    if wants_json():
        emit({"error": message, "exit_code": exit_code})


def table(rows: Iterable[Sequence[str]]) -> None:
    """Print `rows` in columns: all but the last aligned."""
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo("  ".join([*padded, row[-1]]))
