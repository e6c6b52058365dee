"""Commands about single files: ``ls``, ``locate``, ``accept``, ``discard``."""

from __future__ import annotations

from typing import Any

import click

from tierfs.cli import output
from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount


@click.command()
@click.argument("path", default=".")
@output.json_option
def ls(path: str) -> None:
    """List PATH (default: here) with the state and the tier of each file."""
    result = _ask(requests.List, path)
    if output.wants_json():
        output.emit(result)
        return
    rows = [
        (entry["state"], entry["tier"], format_size(entry["size"]), entry["kind"], entry["name"])
        for entry in result["entries"]
    ]
    output.table([("STATE", "TIER", "SIZE", "KIND", "NAME"), *rows])


@click.command()
@click.argument("path")
@output.json_option
def locate(path: str) -> None:
    """Say where the content of PATH is, and what it waits for."""
    result = _ask(requests.Locate, path)
    if output.wants_json():
        output.emit(result)
        return
    output.say(result["path"])
    output.table(
        (f"  {key.replace('_', ' ')}", "-" if value is None else str(value))
        for key, value in result.items()
        if key != "path"
    )


@click.command()
@click.argument("path")
@output.json_option
def accept(path: str) -> None:
    """Commit the suspect, torn or stuck file PATH as it is now."""
    _decide(requests.Accept, path)


@click.command()
@click.argument("path")
@output.json_option
def discard(path: str) -> None:
    """Forget the pending content of the suspect, torn or stuck file PATH.

    The name then shows what the shared tier has under it, or is gone. The content is lost.
    """
    _decide(requests.Discard, path)


_OnePath = type[requests.List | requests.Locate | requests.Accept | requests.Discard]


def _ask(kind: _OnePath, path: str) -> dict[str, Any]:
    mountpoint, resolved = find_mount(path)
    return call(mountpoint, kind(path=resolved))[0]


def _decide(kind: _OnePath, path: str) -> None:
    result = _ask(kind, path)
    if output.wants_json():
        output.emit(result)
    else:
        output.say(f"{result['path']}: now {result['state']}")
