"""``tierfs config check``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tierfs.cli import output
from tierfs.config import keys, read_file
from tierfs.config.settings import default_node


@click.group()
def config() -> None:
    """Work with configuration files."""


@config.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@output.json_option
def check(file: Path) -> None:
    """Check FILE and print every setting as it would be used.

    Names the first key that is unknown or has a value against its rule (exit code 1).
    """
    values = read_file(file)
    defaults = {
        name: key.default for name, key in keys().items() if name not in ("local", "shared")
    }
    effective = {"local": None, "shared": None, **defaults, "node": default_node(), **values}
    if output.wants_json():
        output.emit({name: _plain(value) for name, value in effective.items()})
        return
    output.table(
        (name, "=", _text(effective[name]), "" if name in values else "(default)")
        for name in keys()
    )


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [asdict(rule) for rule in value]
    return str(value) if isinstance(value, Path) else value


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{rule.pattern} is {rule.profile}" for rule in value) or "none"
    return "not set: give it on the command line" if value is None else str(value)
