"""The `tierfs` command: its sub-commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

import tierfs
from tierfs.cli import (
    checkpoints,
    doctor,
    files,
    flush,
    keep,
    mount,
    output,
    reload,
    salvage,
    settings,
    status,
    umount,
    verify,
)
from tierfs.errors import TierfsError

INTERRUPTED = 130
"""Ctrl-C, as shells count it: 128 + SIGINT."""


class _Group(click.Group):
    """Turns our own errors into exit codes where it is still known whether JSON was asked for."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TierfsError as error:
            output.fail(str(error), error.exit_code)
            return error.exit_code


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tierfs.__version__, prog_name="tierfs")
def cli() -> None:
    """One namespace over node-local NVMe and a shared tier.

    Exit codes: 0 done; 1 usage, no daemon, refused; of flush and umount also 2 timed out, 3 stuck,
    4 still open for writing, 5 held, 6 a checkpoint is not published (also of commit); of settled
    2 and 3; of verify 3 differs; of salvage 3 something was kept beside.
    """


for command in (
    mount.mount,
    umount.umount,
    reload.reload,
    flush.flush,
    status.status,
    checkpoints.checkpoints,
    checkpoints.settled,
    checkpoints.commit,
    checkpoints.purge,
    doctor.doctor,
    files.ls,
    files.locate,
    files.accept,
    files.discard,
    keep.warm,
    keep.pin,
    keep.evict,
    verify.verify,
    salvage.salvage,
    settings.config,
    settings.change,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    # click's own codes are not ours: its usage error is 2, which here is flush's timeout.
    try:
        outcome = cli.main(args=arguments, prog_name="tierfs", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        click.echo("tierfs: interrupted; the daemon goes on", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        # A usage error comes before the options are known.
        if output.JSON_OPTION in (sys.argv[1:] if arguments is None else arguments):
            output.emit({"error": error.format_message(), "exit_code": 1})
        return 1
    except BrokenPipeError:
        # The reader has gone (`tierfs ls | head`): nothing more to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return outcome if isinstance(outcome, int) else 0
