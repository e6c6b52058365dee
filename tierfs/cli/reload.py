"""``tierfs reload``: a new daemon takes over a mount that goes on."""

from __future__ import annotations

import os
import signal
import time

import click

from tierfs.cli import output
from tierfs.control.discovery import find_mount, session_directory
from tierfs.control.supervision import FAILED, RUNNING, State, read_state
from tierfs.errors import TierfsError

TIMEOUT = 150.0
"""Seconds that the supervisor gives a new worker, and some more."""

POLL = 0.05


@click.command()
@click.argument("mountpoint", required=False)
@output.json_option
def reload(mountpoint: str | None) -> None:
    """Hand the mount over to a new daemon, for example after an upgrade, without unmounting.

    Applications see a pause; their open files go on. Also brings back a mount that answers EIO
    because its daemon ended again and again.
    """
    place, _ = find_mount(mountpoint)
    before = _state(place)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except ProcessLookupError:
        pass  # it ends just now: the wait below tells
    except PermissionError:
        raise TierfsError(
            "reload: only root may hand a mount over (sudo tierfs reload …)"
        ) from None
    after = _wait(place, before)
    if output.wants_json():
        output.emit({"mountpoint": place, "worker_pid": after.worker_pid})
    else:
        output.say(f"{place}: taken over by a new daemon (pid {after.worker_pid})")


def _state(place: str) -> State:
    state = read_state(session_directory(place))
    if state is None:
        raise TierfsError(
            f"{place}: no supervisor runs: tierfs mount replaces a dead mount; one that answers "
            "has to be unmounted first"
        )
    return state


def _wait(place: str, before: State) -> State:
    limit = time.monotonic() + TIMEOUT
    while time.monotonic() < limit:
        state = _state(place)
        if state.generation > before.generation:
            if state.state == RUNNING:
                return state
            if state.state == FAILED:
                raise TierfsError(f"{place}: the new daemon failed: {state.error}; see the log")
        if state.failed_reloads > before.failed_reloads:
            raise TierfsError(
                f"{place}: the installed version does not start; the mount goes on as it was; "
                "see the log"
            )
        time.sleep(POLL)
    raise TierfsError(f"{place}: no new daemon was ready after {TIMEOUT:.0f} s; see the log")
