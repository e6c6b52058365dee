"""``tierfs mount``: start the daemon and wait for its word."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

import tierfs
from tierfs.cli import output, salvaging
from tierfs.config import Settings, encode, load
from tierfs.config.settings import LOG_LEVELS
from tierfs.control.discovery import LOG_NAME, session_directory
from tierfs.errors import JOURNAL_LOST, TierfsError

READY_TIMEOUT = 120.0
"""Seconds that a daemon has to mount or refuse: a hung shared tier must not hang the caller."""

_LOG_LIMIT = 16 * 1024 * 1024

_UMASK = 0o077
"""Of the daemon, whatever that of the caller is: its log names files that not everybody may see.
What is for all gets its mode set."""


class _Refused(TierfsError):
    """The daemon's own word why it does not mount; its log has no more to say."""


@click.command()
@click.argument("mountpoint")
@click.option("--local", metavar="DIR", help="Directory on node-local NVMe.")
@click.option("--shared", metavar="DIR", help="Directory on the shared tier.")
@click.option("--node", help="Label of this node (default: host name).")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings; the options here override it.",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="How much the daemon logs.")
@click.option(
    "--no-passthrough", is_flag=True, help="Send every read and write through the daemon."
)
@click.option(
    "--supervisor/--no-supervisor",
    default=None,
    help="Whether a supervisor starts the daemon again when it dies.",
)
@click.option(
    "--bwlimit", metavar="RATE", help='Bytes a second to and from the shared tier: "200M", "off".'
)
@click.option("--foreground", is_flag=True, help="Do not detach; log to stderr.")
@output.json_option
def mount(
    mountpoint: str,
    local: str | None,
    shared: str | None,
    node: str | None,
    config_file: Path | None,
    log_level: str | None,
    no_passthrough: bool,
    supervisor: bool | None,
    bwlimit: str | None,
    foreground: bool,
) -> None:
    """Mount at MOUNTPOINT: writes land in --local and are sent to --shared.

    Returns when the mount answers (0), or says in one line why not (1). A dead tierfs mount of
    the same local directory is replaced. If the journal of the local tier is lost, what the tier
    holds is salvaged first (see tierfs salvage), which may take a while.
    """
    overrides: Mapping[str, object] = {
        "local": _absolute(local),
        "shared": _absolute(shared),
        "node": node,
        "log_level": log_level,
        "passthrough": False if no_passthrough else None,
        "supervisor": supervisor,
        "bwlimit": bwlimit,
    }
    settings = load(config_file, overrides)
    place = os.path.realpath(mountpoint)
    command = _daemon_command(place, settings)
    if foreground:
        if salvaging.is_missing(settings):
            salvaging.begin_anew(settings)
        _make_runtime(session_directory(place))
        _become(command)
    try:
        _start(place, command, session_directory(place))
    except _Refused as refusal:
        if JOURNAL_LOST not in str(refusal):
            raise
        salvaging.begin_anew(settings)
        _start(place, command, session_directory(place))


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _daemon_command(mountpoint: str, settings: Settings) -> list[str]:
    words = [mountpoint, "--settings", encode(settings)]
    if settings.supervisor:
        runtime = str(session_directory(mountpoint))
        return [sys.executable, "-m", "tierfs.supervisor", *words, "--runtime", runtime]
    return [sys.executable, "-m", "tierfs.daemon", *words]


def _environment() -> dict[str, str]:
    """The daemon's environment: it finds this very package although it starts in ``/``."""
    package_parent = str(Path(tierfs.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    path = package_parent if not inherited else f"{package_parent}{os.pathsep}{inherited}"
    return {**os.environ, "PYTHONPATH": path}


def _become(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.umask(_UMASK)
    os.execve(command[0], command, _environment())


def _start(mountpoint: str, command: list[str], runtime: Path) -> subprocess.Popen[bytes]:
    """Start the daemon detached; return it when it is ready.

    Raises:
        TierfsError: it refused (and nothing is left), died, or did not come up in time.
    """
    made = _make_runtime(runtime)
    log = runtime / LOG_NAME
    try:
        with contextlib.ExitStack() as stack:
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            try:
                process = _spawn(command, log, writer)
            finally:
                os.close(writer)
            reason = _refusal(reader, process, log)
        if reason is not None:
            raise _Refused(reason)
    except _Refused:
        if made:
            shutil.rmtree(runtime, ignore_errors=True)
        raise
    if output.wants_json():
        output.emit({"mountpoint": mountpoint, "pid": process.pid, "log": str(log)})
    else:
        output.say(f"{mountpoint}: mounted (pid {process.pid}, log {log})")
    return process


def _make_runtime(runtime: Path) -> bool:
    """Make the runtime directory; whether it was not there before."""
    try:
        _make_public(runtime.parent)
        return _make_public(runtime)
    except OSError as error:
        raise TierfsError(
            f"{error.filename}: {error.strerror}; mounting needs root (sudo tierfs mount …)"
        ) from None


def _make_public(directory: Path) -> bool:
    """Make a directory that everybody may enter, whatever the umask; False: it was there."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    directory.chmod(0o755)
    return True


def _spawn(command: list[str], log: Path, ready: int) -> subprocess.Popen[bytes]:
    try:
        # What is older than this mount and large makes room: /run is memory.
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))
        sink = log.open("ab")
        log.chmod(0o600)
    except OSError as error:
        raise TierfsError(f"{log}: {error.strerror}; mounting needs root") from None
    with sink:
        return subprocess.Popen(
            [*command, "--ready-fd", str(ready), "--log-file", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            pass_fds=[ready],
            start_new_session=True,
            cwd="/",
            umask=_UMASK,
            env=_environment(),
        )


def _refusal(reader: int, process: subprocess.Popen[bytes], log: Path) -> str | None:
    """None when the daemon said that it is ready, else why it is not, in its own words.

    It writes ``ok`` or its one-line reason into the pipe; one that dies closes it.

    Raises:
        TierfsError: it said nothing.
    """
    said = b""
    ready = select.poll()
    ready.register(reader, select.POLLIN)
    while b"\n" not in said:
        if not ready.poll(READY_TIMEOUT * 1000):
            process.terminate()
            raise TierfsError(
                f"the daemon was not ready after {READY_TIMEOUT:.0f} s and was told to end; "
                f"see {log}"
            )
        piece = os.read(reader, 4096)
        if not piece:
            break
        said += piece
    line = said.decode(errors="backslashreplace").strip()
    if line == "ok":
        return None
    if line:
        process.wait()
        return line
    raise TierfsError(
        f"the daemon ended with code {process.wait()}: {_last_line(log)} (log: {log})"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="backslashreplace").strip().splitlines()
    return lines[-1] if lines else "it logged nothing"
