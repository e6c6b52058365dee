"""``tierfs flush``: everything (or everything under some paths) onto the shared tier, now."""

from __future__ import annotations

from typing import Any

import click

from tierfs.cli import output, progress
from tierfs.config.units import format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount
from tierfs.errors import TierfsError

_HEADINGS = {
    "stuck": "stuck (mend the cause, then flush again; or tierfs accept|discard PATH)",
    "held": "held (each waits for what is stuck, or for a checkpoint that is not published)",
    "open": "still open for writing",
    "remaining": "not yet committed",
}
_SHOWN = 20


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--wait", is_flag=True, help="Return when everything is committed.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="S", help="With --wait: at most S seconds."
)
@output.json_option
def flush(paths: tuple[str, ...], wait: bool, timeout: float | None) -> int:
    """Send what is pending under PATHS (default: in the whole mount) now.

    With --wait, exit code 0 means that every file closed there before the call is verified on the
    shared tier and every checkpoint there is published. Otherwise: 2 timed out, 3 stuck, 5 held,
    6 a checkpoint is not published, 4 still open for writing; if several apply, the first of these.
    Ctrl-C stops the waiting, not the sending.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    mountpoint, wanted = one_mount(paths)
    request = requests.Flush(paths=wanted, wait=wait, timeout=timeout)
    with progress.shown("flush") as on_event:
        result, exit_code = call(mountpoint, request, on_event)
    report(result, exit_code, waited=wait)
    return exit_code


def report(result: dict[str, Any], exit_code: int, *, waited: bool) -> None:
    """Print how a flush ended: one JSON line, or a summary with the names."""
    if progress.as_lines():
        output.emit({"event": "result", **result, "exit_code": exit_code})
        return
    size = format_size(result["committed_bytes"])
    if waited:
        output.say(f"committed {result['committed_files']} files, {size}")
    else:
        output.say(f"sending {len(result['remaining'])} files; nobody waits (use --wait)")
    for key, heading in _HEADINGS.items():
        if key != "remaining" or waited:
            _list_problems(heading, result[key])
    for group in result["unsealed"]:
        output.say(f"checkpoint not published: {group['path']}: {group['reason']}")
        output.say(f"  to publish it as it is: {group['command']}")
    if result["hidden"]:
        output.say(f"and {result['hidden']} that you may not see by name")
    if result["timed_out"]:
        output.say("timed out; sending goes on")


def _list_problems(heading: str, problems: list[dict[str, str]]) -> None:
    if not problems:
        return
    output.say(f"{heading}: {len(problems)}")
    for problem in problems[:_SHOWN]:
        output.say(f"  {problem['path']}: {problem['reason']}")
    if len(problems) > _SHOWN:
        output.say(f"  and {len(problems) - _SHOWN} more (--json lists all)")


def one_mount(paths: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The mount that holds all `paths` (none: the only one), and the paths as it knows them."""
    if not paths:
        return find_mount()[0], ()
    found = [find_mount(path) for path in paths]
    mounts = {mountpoint for mountpoint, _ in found}
    if len(mounts) > 1:
        raise TierfsError(
            f"paths in several mounts ({', '.join(sorted(mounts))}): flush one by one"
        )
    return mounts.pop(), tuple(path for _, path in found)
