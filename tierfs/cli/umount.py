"""``tierfs umount``: drain, detach, and wait until the daemon is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
from typing import Any

import click

from tierfs.cli import flush, output, progress
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import (
    NoMount,
    find_mount,
    mountpoints,
    read_session,
    session_directory,
)
from tierfs.errors import TierfsError

END_TIMEOUT = 60.0
"""Seconds that a daemon has to end after it detached; its locks are free only then."""

FORCE_TIMEOUT = 5.0
"""The same after --force: no signal ends a process that waits for a tier that hangs."""

SILENCE = 10.0
"""Seconds without a word after which --force goes on without the daemon."""

_MNT_DETACH = 2  # umount2(2)


@click.command()
@click.argument("mountpoint", required=False)
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="S", help="Wait at most S seconds."
)
@click.option("--force", is_flag=True, help="Detach at once; the backlog stays for the next mount.")
@output.json_option
def umount(mountpoint: str | None, timeout: float | None, force: bool) -> int:
    """Commit everything as `flush --wait` does, then unmount.

    With an exit code other than 0 (those of flush) the mount stays as it is; 4 also while files
    are open in it, 6 while a checkpoint is not published (--force leaves it for the next mount;
    tierfs commit publishes it). Ctrl-C stops the waiting and leaves the mount.
    """
    place, path = find_mount(mountpoint)
    if path != place:
        raise TierfsError(f"{path}: not a mount point; the mount is {place}")
    request = requests.Umount(timeout=timeout, force=force)
    with contextlib.ExitStack() as stack:
        try:
            daemon = _descriptor_of(read_session(place).pid, stack)
            result, exit_code = _ask(place, request)
        except NoMount:
            if not force:
                raise
            _detach_dead(place)
            return 0
        if exit_code == 0:
            _see_it_end(place, daemon, forced=force)
    _say_end(place, result, exit_code, forced=force)
    return exit_code


def _ask(place: str, request: requests.Umount) -> tuple[dict[str, Any], int]:
    with progress.shown("umount") as on_event:
        return call(place, request, on_event, silence=SILENCE if request.force else None)


def _descriptor_of(pid: int, stack: contextlib.ExitStack) -> int | None:
    """A descriptor of process `pid` (its number may be another's later), None if it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, descriptor)
    return descriptor


def _see_it_end(place: str, daemon: int | None, *, forced: bool) -> None:
    """Return when the daemon has ended: only then can its local tier be mounted again."""
    seconds = FORCE_TIMEOUT if forced else END_TIMEOUT
    if daemon is not None and not _ends(daemon, seconds):
        note = f"{place}: unmounted, but its daemon still waits for a tier that does not answer"
        if not forced:
            raise TierfsError(note)
        click.echo(f"tierfs: {output.shown(note)}; the next mount has to wait for it", err=True)
    elif not forced:
        # All is committed, and the next mount makes it anew: nothing is left to look up here.
        shutil.rmtree(session_directory(place), ignore_errors=True)


def _ends(daemon: int, seconds: float) -> bool:
    end = select.poll()
    end.register(daemon, select.POLLIN)
    return bool(end.poll(seconds * 1000))


def _say_end(place: str, result: dict[str, Any], exit_code: int, *, forced: bool) -> None:
    if forced and not progress.as_lines():
        left = len(result["remaining"]) + result["hidden"]
        output.say(f"{place}: detached; {left} files stay for the next mount")
        return
    flush.report(result, exit_code, waited=True)
    if not progress.as_lines():
        output.say(f"{place}: {'still mounted' if exit_code else 'unmounted'}")


def _detach_dead(place: str) -> None:
    """Take away a mount without its daemon. What was pending is in the local tier."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(place), _MNT_DETACH) != 0 and place in mountpoints():
        code = ctypes.get_errno()
        raise TierfsError(f"{place}: {os.strerror(code)}; unmounting needs root")
    note = "its daemon did not answer; detached. What was pending stays for the next mount"
    if output.wants_json():
        output.emit({"event": "result", "mountpoint": place, "note": note, "exit_code": 0})
    else:
        output.say(f"{place}: {note}")
