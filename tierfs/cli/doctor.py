"""``tierfs doctor``: why things are as they are."""

from __future__ import annotations

import os
from typing import Any

import click

from tierfs.cli import output
from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount


@click.command()
@click.option(
    "--profile", "directory", metavar="DIR",
    help="Explain why the checkpoint DIR is published, or is not.",
)  # fmt: skip
@click.option("--policy", "file", metavar="PATH", help="Tell which policy holds for PATH.")
@output.json_option
def doctor(directory: str | None, file: str | None) -> None:
    """Explain what tierfs knows: which pattern and profile apply to a checkpoint, what each file
    of it counts for, and why it is not published; or which policy holds for a path.
    """
    if (directory is None) == (file is None):
        raise click.UsageError("give one of --profile DIR and --policy PATH")
    if file is not None:
        _policy(file)
    elif directory is not None:
        _profile(directory)


def _policy(file: str) -> None:
    mountpoint, path = find_mount(file)
    result, _ = call(mountpoint, requests.Policy(path=path))
    if output.wants_json():
        output.emit(result)
        return
    why = f"pattern {result['pattern']!r}" if result["pattern"] else "no pattern matches"
    output.say(f"{result['path']}: {result['policy']} ({why})")
    output.say(f"fsync: {result['fsync']}, close: {result['close']}")


def _profile(directory: str) -> None:
    mountpoint, path = find_mount(directory)
    result, _ = call(mountpoint, requests.Profile(path=path))
    if output.wants_json():
        output.emit(result)
        return
    output.say(f"{result['path']}: {result['decision']}: {result['reason']}")
    if result["profile"] is None:
        if result["pattern"] is not None:
            output.say(f"pattern: {result['pattern']}")
        return
    _print_rules(result)
    _print_facts(result)


def _print_rules(result: dict[str, Any]) -> None:
    output.say(f"pattern: {result['pattern']}")
    proposed, profile = result["proposed"], result["profile"]
    why = "" if proposed == profile else f" (the name proposes {proposed}, the files decide)"
    output.say(f"profile: {profile}{why}")
    for label, there in result["required"].items():
        output.say(f"required: {label}: {'there' if there else 'MISSING'}")
    for name in result["missing"]:
        if name not in result["required"]:
            output.say(f"required: {name}: MISSING")
    output.say(f"end marker: {result['end_marker'] or 'none'}")
    output.say(f"pointer: {result['pointer'] or 'any beside it that names it'}")


def _print_facts(result: dict[str, Any]) -> None:
    for fact, value in result["said"].items():
        output.say(f"{fact}: {value}")
    for each in result["writers"]:
        did = "wrote and closed" if each["closed"] else "wrote" if each["wrote"] else "made it"
        output.say(f"process {each['pid'] or 'unknown'}: {each['state']}, {did}")
    output.say(f"files: {len(result['files'])}")
    for each in result["files"]:
        name = os.path.relpath(each["path"], result["path"])
        rules = "; ".join(each["rules"]) or "no rule"
        output.say(f"  {name} ({format_size(each['size'])}): {rules}")
    if result["hidden"]:
        output.say(f"and {result['hidden']} files that you may not see by name")
