"""Commands about whole checkpoints: ``checkpoints``, ``settled``, ``commit``, ``purge``."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from tierfs.cli import flush, output
from tierfs.config.units import format_duration, format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount
from tierfs.errors import TierfsError

_NOTHING_BUT = ("open", "pending", "sealing")
_SHOWN = 5


@click.command()
@click.argument("directory", required=False, metavar="[DIR]")
@click.option(
    "--latest-complete", is_flag=True, help="Print the path of the newest whole one and no more."
)
@output.json_option
def checkpoints(directory: str | None, latest_complete: bool) -> None:
    """List the checkpoints in DIR (default: in the whole mount) and below it, and how they stand.

    Whole ones are published: every node sees them under their names, every file verified. With
    --latest-complete the exit code is 1 when there is none; newest is the highest number in the
    name, then the youngest directory.
    """
    mountpoint, path = find_mount(directory, follow=True)
    result, _ = call(mountpoint, requests.Checkpoints(path=path))
    if not latest_complete:
        if output.wants_json():
            output.emit(result)
        else:
            _print(result)
        return
    if result["latest"] is None:
        raise TierfsError(f"{path}: no whole checkpoint here")
    if output.wants_json():
        output.emit({"latest": result["latest"]})
    else:
        output.say_path(result["latest"])


def _print(result: dict[str, Any]) -> None:
    lines = [
        *_section("whole", [_whole(each) for each in result["whole"]]),
        *_section("in flight", [_unsealed(each) for each in result["in_flight"]]),
        *_section("unsettled", [_unsettled(each) for each in result["unsettled"]]),
        *_section("broken", [_unsealed(each) for each in result["broken"]]),
        *_section("removals held back", [_removal(each) for each in result["removals"]]),
    ]
    if result["hidden"]:
        lines.append(f"and {result['hidden']} that you may not see")
    for line in lines or [f"{result['path']}: no checkpoints here"]:
        output.say(line)


def _section(title: str, entries: list[list[str]]) -> Iterator[str]:
    if entries:
        yield f"{title}: {len(entries)}"
        for first, *more in entries:
            yield f"  {first}"
            yield from (f"    {line}" for line in more)


def _whole(each: dict[str, Any]) -> list[str]:
    parts = [_amount(each), f"{format_duration(max(0.0, time.time() - each['mtime']))} old"]
    if not each["manifest"]:
        parts[0] = "made without tierfs"
    return [f"{each['path']}: {', '.join([*parts, *_under_way(each)])}"]


def _unsealed(each: dict[str, Any]) -> list[str]:
    parts = [f"{_amount(each)} sent", *_under_way(each)]
    if each["age_seconds"] is not None:
        parts.append(f"begun {format_duration(each['age_seconds'])} ago")
    if each["members"]:
        parts.append(f"by {', '.join(member[:8] for member in each['members'])}")
    lines = [f"{each['path']}: {', '.join(parts)}", each["reason"]]
    lines += each["broken_files"]
    return lines


def _unsettled(each: dict[str, Any]) -> list[str]:
    hint = f"to publish it as it is: tierfs commit {shlex.quote(each['path'])}"
    return [*_unsealed(each), hint]


def _removal(each: dict[str, Any]) -> list[str]:
    size = "" if each["bytes"] is None else f"{format_size(each['bytes'])}, "
    return [
        f"{each['path']}: {size}for {format_duration(each['held_seconds'])}: {each['reason']}",
        f"to let it go: tierfs purge {shlex.quote(each['path'])}",
    ]


def _amount(each: dict[str, Any]) -> str:
    if each["files"] is None:
        return "not counted"
    return f"{each['files']} files, {format_size(each['bytes'])}"


def _under_way(each: dict[str, Any]) -> Iterator[str]:
    if each["pending_files"]:
        size = format_size(each["pending_bytes"])
        yield f"{each['pending_files']} files, {size} pending"
    if each["open_files"]:
        yield f"{each['open_files']} open for writing"


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="At most S seconds.")
@output.json_option
def settled(directory: str, timeout: float | None) -> int:
    """Wait until nothing in DIR is open, pending or about to be published.

    Then prints the path of the newest whole checkpoint there, nothing if there is none: what a
    job that starts again finds does not change any more. What only somebody's doing can change,
    such as a checkpoint that is unsettled, is not waited for. Exit codes: 2 timed out, 3 something
    is stuck (the path is printed all the same).
    """
    mountpoint, path = find_mount(directory, follow=True)
    result, exit_code = call(mountpoint, requests.Settled(path=path, timeout=timeout), _tell)
    if output.wants_json():
        output.emit({**result, "exit_code": exit_code})
        return exit_code
    if result["latest"] is not None:
        output.say_path(result["latest"])
    for key in _NOTHING_BUT if result["timed_out"] else ("stuck", "broken"):
        problems = result[key]
        for problem in problems[:_SHOWN]:
            _warn(f"{problem['path']}: {problem['reason']}")
        if len(problems) > _SHOWN:
            _warn(f"and {len(problems) - _SHOWN} more (--json lists all)")
    if result["hidden"]:
        _warn(f"and {result['hidden']} that you may not see by name")
    if result["timed_out"]:
        _warn(f"{path}: timed out; it goes on")
    return exit_code


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--expect", type=click.IntRange(min=0), metavar="N", help="Refuse if it has not N files."
)
@output.json_option
def commit(directory: str, expect: int | None) -> int:
    """Publish the checkpoint DIR as it is, and wait until that is done.

    For one that is not published by itself: nothing says that it is whole, or something that
    others of its kind have is missing (it is printed). Needs the right to write in DIR. Exit
    codes: 0 published, 1 refused, 3 a file is stuck, 4 a file is open for writing, 5 held, 6 not
    published.
    """
    mountpoint, path = find_mount(directory, follow=True)
    result, exit_code = call(mountpoint, requests.Commit(path=path, expect=expect), _tell)
    if output.wants_json():
        output.emit({**result, "exit_code": exit_code})
        return exit_code
    for name in result["missing"]:
        output.say(f"missing: {name}")
    if result["published"]:
        output.say(f"{path}: published, {result['files']} files")
    else:
        _warn(f"{path}: not published: {result['reason']}")
    return exit_code


@click.command()
@click.argument("paths", nargs=-1)
@output.json_option
def purge(paths: tuple[str, ...]) -> None:
    """Let removals of checkpoints go that are held back, those under PATHS (default: all).

    A removal that would leave no whole checkpoint beside it is held until a newer one is
    published (`tierfs checkpoints` shows which). For root. What is let go is deleted behind;
    `tierfs flush --wait` waits for that.
    """
    mountpoint, wanted = flush.one_mount(paths)
    result, _ = call(mountpoint, requests.Purge(paths=wanted))
    if output.wants_json():
        output.emit(result)
        return
    for each in result["purged"]:
        size = "" if each["bytes"] is None else f" ({format_size(each['bytes'])})"
        output.say(f"{each['path']}: removed{size}")
    if not result["purged"]:
        output.say("no removal is held back")


def _tell(event: dict[str, Any]) -> None:
    """What is waited for, in a line on stderr: stdout is for scripts."""
    size = format_size(event["pending_bytes"])
    parts = [
        f"{event['open']} files open for writing" if event["open"] else "",
        f"{event['pending']} changes, {size} not committed" if event["pending"] else "",
        f"{event['sealing']} checkpoints to be published" if event["sealing"] else "",
    ]
    if not output.wants_json():
        _warn(f"waiting: {', '.join(filter(None, parts)) or 'for the shared tier'}")


def _warn(text: str) -> None:
    sys.stdout.flush()
    click.echo(f"tierfs: {output.shown(text)}", err=True)
