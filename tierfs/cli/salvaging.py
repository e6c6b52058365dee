"""What `tierfs mount` does when the journal of its local tier is lost."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tierfs.config import Settings
from tierfs.errors import TierfsError


def is_missing(settings: Settings) -> bool:
    """Whether the local tier was used before and has no journal."""
    if (settings.local / "journal.db").exists() or not settings.local.is_dir():
        return False
    from tierfs.mend import lost  # here: it loads trio, which a mount does not need

    return lost.is_missing(settings.local)


def begin_anew(settings: Settings) -> None:
    """Salvages the local tier, gives it a fresh journal, and says all of it on stderr.

    Raises TierfsError where something could not be kept; the tier is as it was then.
    """
    from tierfs.mend.lost import begin_anew as begin

    if os.geteuid() != 0:
        raise TierfsError("mounting needs root (sudo tierfs mount …)")
    local, shared = Path(os.path.realpath(settings.local)), settings.shared.resolve()
    _say(f"the journal of {local} is lost: what its objects hold goes to {shared} first")
    try:
        begun = begin(local, shared, settings.groups)
    except OSError as error:
        named = isinstance(error.filename, str | bytes)
        where = os.fsdecode(error.filename) if named else shared
        raise TierfsError(
            f"{where}: {error.strerror}: not mounted; {local}/journal.db and the objects are as "
            "they were: mend this, then mount again"
        ) from error
    done = begun.salvaged
    for each in done.beside:
        _say(f"{each['path']}: {each['why']}; kept as {each['kept']}")
    for path in done.unsealed:
        _say(f"{path}: a checkpoint that is not known to be whole; no mount shows it")
    kept = f"; the old journal is {begun.journal}" if begun.journal is not None else ""
    _say(
        f"{len(done.committed)} files committed, {done.same} were there, {len(done.beside)} kept "
        f"beside; lost with the journal: removals, renames of what was committed, {done.stubs} "
        f"changes of attributes and {done.special} special files{kept}"
    )


def _say(line: str) -> None:
    click.echo(f"tierfs: {line}", err=True)
