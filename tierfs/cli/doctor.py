"""``tierfs doctor``: why things are as they are."""

from __future__ import annotations

import os
from collections import Counter
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
@click.option(
    "--tiers", "mountpoint", metavar="MOUNTPOINT",
    help="Tell how the shared tier is, and what goes on if it does not answer.",
)  # fmt: skip
@output.json_option
def doctor(directory: str | None, file: str | None, mountpoint: str | None) -> None:
    """Explain what tierfs knows: which pattern and profile apply to a checkpoint, what each file
    of it counts for, and why it is not published; which policy holds for a path; or how the
    shared tier is.
    """
    if sum(each is not None for each in (directory, file, mountpoint)) != 1:
        raise click.UsageError("give one of --profile DIR, --policy PATH and --tiers MOUNTPOINT")
    if mountpoint is not None:
        _tiers(mountpoint)
    elif file is not None:
        _policy(file)
    elif directory is not None:
        _profile(directory)


def _tiers(mountpoint: str) -> None:
    result, _ = call(find_mount(mountpoint)[0], requests.Status())
    shared = result["shared"]
    if output.wants_json():
        output.emit({key: result[key] for key in ("shared", "retrying", "announced", "hanging")})
        return
    reason = f": {shared['reason']}" if shared["reason"] else ""
    output.say(f"{shared['path']}: {shared['state']}{reason}")
    errors = Counter(each["error"].partition(": ")[2] for each in result["retrying"])
    for error, count in errors.most_common():
        output.say(f"tried again and again: {count} times {error}")
    for each in result["hanging"]:
        output.say(f"waits: {each['path']}: {each['operation']} for {each['seconds']:.0f} s")
    if os.geteuid() != 0:
        output.say("the directories in which saving goes on without it are told to root only")
        return
    output.say("saving goes on without it in:" if result["announced"] else "no directory is in use")
    for path in result["announced"]:
        output.say(f"  {path}")


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
    mountpoint, path = find_mount(directory, follow=True)
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
