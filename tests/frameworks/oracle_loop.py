"""Runs the oracle over one directory per input line; started by the interpreter that has torch.

    oracle_loop.py LOOKS_COMPLETE.py WORLD

Prints one JSON line for each: the directory, the exit code and what the oracle printed. One
process for all, because importing torch takes longer than looking.
"""

import contextlib
import io
import json
import runpy
import sys

import torch  # noqa: F401 - the pickles in .metadata need it


def look(script: str, world: str, directory: str) -> dict[str, object]:
    """The oracle's verdict on `directory`."""
    printed = io.StringIO()
    sys.argv = [script, directory, "--world", world]
    code: object = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            code = stop.code
    return {"directory": directory, "code": code, "out": printed.getvalue()}


def main() -> None:
    """Answer until the input ends."""
    _, script, world = sys.argv
    for line in sys.stdin:
        print(json.dumps(look(script, world, line.strip())), flush=True)


if __name__ == "__main__":
    main()
