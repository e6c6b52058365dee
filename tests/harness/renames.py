"""renameat2(2), which the standard library does not have."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, target: Path, flags: int) -> None:
    """Rename `source` to `target` with `flags`; OSError."""
    names = os.fsencode(source), os.fsencode(target)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2", os.fspath(source))


def exchange(one: Path, other: Path) -> None:
    """Each name gets what the other had."""
    renameat2(one, other, RENAME_EXCHANGE)
