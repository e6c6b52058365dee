"""``tierfs config check`` and ``tierfs set``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from tierfs.cli import output
from tierfs.config import GroupRule, PolicyRule, keys, read_file
from tierfs.config.settings import default_node
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount
from tierfs.policies import Policies


@click.group()
def config() -> None:
    """Work with configuration files."""


@config.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--path", help="Tell which policy FILE gives this path, written from the root of the mount."
)
@output.json_option
def check(file: Path, path: str | None) -> None:
    """Check FILE and print every setting as it would be used.

    Names the first key that is unknown or has a value against its rule (exit code 1).
    """
    values = read_file(file)
    if path is not None:
        _tell_policy(Policies(values.get("policies", ())), path)
        return
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


@click.command("set")
@click.argument("words", nargs=-1, metavar="[MOUNTPOINT] [KEY=VALUE…]")
@output.json_option
def change(words: tuple[str, ...]) -> None:
    """Change settings of a running mount, such as bwlimit=200M; without any, print those that can
    be changed.

    They hold until the mount ends, also when its daemon is replaced; what is to hold for longer
    belongs into the configuration. All are changed, or, if one is refused, none. For root.
    """
    place = words[0] if words and "=" not in words[0] else None
    mountpoint, _ = find_mount(place)
    request = requests.Set(changes=words[0 if place is None else 1 :])
    result, _ = call(mountpoint, request)
    if output.wants_json():
        output.emit(result)
    else:
        output.table((name, "=", str(value)) for name, value in result["settings"].items())


def _tell_policy(policies: Policies, path: str) -> None:
    parts = [part for part in os.fsencode(path).split(b"/") if part]
    found = policies.of(parts)
    if output.wants_json():
        output.emit({"path": path, "policy": str(found.kind), "pattern": found.pattern})
        return
    why = f"pattern {found.pattern!r}" if found.pattern else "no pattern matches"
    output.say(f"{path}: {found.kind} ({why})")


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [asdict(rule) for rule in value]
    return str(value) if isinstance(value, Path) else value


def _rule(rule: object) -> str:
    if isinstance(rule, GroupRule):
        return f"{rule.pattern} is {rule.profile}"
    assert isinstance(rule, PolicyRule)
    calls = (f", {name} {wait}" for name, wait in (("fsync", rule.fsync), ("close", rule.close))
             if wait is not None)  # fmt: skip
    return f"{rule.pattern} is {rule.policy}{''.join(calls)}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_rule, value)) or "none"
    return "not set: give it on the command line" if value is None else str(value)
