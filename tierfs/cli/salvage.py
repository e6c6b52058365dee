"""``tierfs salvage``: what a local tier holds without its journal, brought to the shared tier."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierfs.cli import output
from tierfs.config import load
from tierfs.errors import TierfsError

if TYPE_CHECKING:
    from tierfs.mend.salvage import Salvaged

LEFT = 3
"""Exit code when something did not get its name on the shared tier."""


@click.command()
@click.argument("local", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--shared",
    required=True,
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory of the shared tier that LOCAL was mounted with.",
)
@click.option(
    "--into",
    metavar="SUBDIR",
    help="Directory on the shared tier for what does not get its name (default: the quarantine).",
)
@click.option(
    "--all-closed",
    is_flag=True,
    help="Nothing was being written at the end, so that nothing is doubtful.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Configuration of the mount: its [[groups]] say which directories are checkpoints.",
)
@output.json_option
def salvage(
    local: Path, shared: Path, into: str | None, all_closed: bool, config_file: Path | None
) -> int:
    """Commit what the local tier LOCAL holds, from its objects alone (root, LOCAL not mounted).

    For a local tier whose journal is lost or damaged, on its node or another one. Files that the
    shared tier has not, or has older in the same size, are committed; the replaced ones are kept in
    quarantine. What differs otherwise, what was written in the last minute (it may have been open),
    and markers and pointers of either, are kept beside and named. LOCAL itself is not changed.
    Exit code 0 if all is on the shared tier now, 3 if something was kept beside or failed.
    """
    # Here: the room loads trio, which no other command needs.
    from tierfs.mend.salvage import salvage as run

    if os.geteuid() != 0:
        raise TierfsError("salvaging needs root (sudo tierfs salvage …)")
    place = _inside(into)
    tiers = {"local": str(local), "shared": str(shared)}
    groups = load(config_file, tiers).groups
    try:
        done = run(
            Path(os.path.realpath(local)), shared.resolve(), place,
            all_closed=all_closed, groups=groups,
        )  # fmt: skip
    except OSError as error:
        raise TierfsError(f"{error.filename or shared}: {error.strerror}") from error
    exit_code = LEFT if done.beside or done.failed or done.unsealed else 0
    if output.wants_json():
        output.emit({**asdict(done), "exit_code": exit_code})
    else:
        _print(done)
    return exit_code


def _inside(into: str | None) -> bytes | None:
    if into is None:
        return None
    path = os.path.normpath(into)
    if os.path.isabs(path) or path.split(os.sep)[0] in (".", "..", ".tierfs"):
        raise click.UsageError("--into is a directory below that of --shared: give it from there")
    return os.fsencode(path)


def _print(done: Salvaged) -> None:
    for path in done.committed:
        output.say(f"{path}: committed")
    for each in done.beside:
        output.say(f"{each['path']}: {each['why']}; kept as {each['kept']}")
    for each in done.failed:
        output.say(f"{each['path']}: FAILED: {each['why']}; only the local tier has it")
    for path in done.unsealed:
        output.say(
            f"{path}: a checkpoint that is not known to be whole; it stands as .staging_ and its "
            "name on the shared tier. Compare it with what was saved, then rename it there"
        )
    output.say(
        f"{len(done.committed)} committed, {done.same} were there, {len(done.beside)} kept beside, "
        f"{len(done.failed)} failed; {done.older} older versions, {done.stubs} changes of "
        f"attributes alone and {done.special} special files were left out"
    )
