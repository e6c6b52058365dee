"""Commands about local copies: ``warm``, ``pin``, ``evict``."""

from __future__ import annotations

from typing import Any

import click

from tierfs.cli import output, progress
from tierfs.cli.flush import one_mount
from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.client import call

_SHOWN = 20


@click.command()
@click.argument("paths", nargs=-1, required=True)
@output.json_option
def warm(paths: tuple[str, ...]) -> int:
    """Copy the committed files at and below PATHS to the local tier, before they are read.

    Each copy is compared with the digest that was recorded when the file was sent, if there is
    one. Refused, and nothing copied, when all of it does not fit. Exit code 1 if a file failed.
    """
    mountpoint, wanted = one_mount(paths)
    return _run(mountpoint, requests.Warm(paths=wanted), "warm", "copied")


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Let them be evicted again.")
@output.json_option
def pin(paths: tuple[str, ...], remove: bool) -> int:
    """Keep the files at and below PATHS on the local tier, whatever else has to go.

    What is not here is copied first, as with warm. Of a directory also what is committed below it
    later stays, and of a file its next version. Pins outlive restarts and reboots.
    """
    mountpoint, wanted = one_mount(paths)
    request = requests.Pin(paths=wanted, remove=remove)
    return _run(mountpoint, request, "pin", "pinned no more" if remove else "pinned")


@click.command()
@click.argument("paths", nargs=-1, required=True)
@output.json_option
def evict(paths: tuple[str, ...]) -> int:
    """Remove the local copies of the committed files at and below PATHS now.

    The files stay: reads go to the shared tier. What is open, mapped, pinned or not committed
    stays here and is named. Exit code 1 if something could not be looked at for lack of rights.
    """
    mountpoint, wanted = one_mount(paths)
    return _run(mountpoint, requests.Evict(paths=wanted), "evict", "evicted")


def _run(mountpoint: str, request: requests.Request, title: str, done: str) -> int:
    with progress.shown(title) as on_event:
        result, exit_code = call(mountpoint, request, on_event)
    if progress.as_lines():
        output.emit({"event": "result", **result, "exit_code": exit_code})
    else:
        _report(result, done)
    return exit_code


def _report(result: dict[str, Any], done: str) -> None:
    size = f", {format_size(result['bytes'])}" if result["bytes"] else ""
    already = f"; {result['already']} already" if result["already"] else ""
    output.say(f"{result['files']} files {done}{size}{already}")
    for each in result["left"][:_SHOWN]:
        output.say(f"  {each['path']}: {each['reason']}")
    if len(result["left"]) > _SHOWN:
        output.say(f"  and {len(result['left']) - _SHOWN} more (--json lists all)")
