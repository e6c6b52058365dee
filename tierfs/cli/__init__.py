"""The command line: thin clients of the daemons, one module for each command or small group."""

from tierfs.cli.app import main

__all__ = ["main"]
