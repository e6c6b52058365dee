"""Turns what SQLite and the file system say into one line for the user."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from tierfs.errors import JOURNAL_LOST, JournalError

_SALVAGE = (
    f"{JOURNAL_LOST}: keep this directory, bring them "
    "to the shared tier with: tierfs salvage LOCAL --shared DIR, and mount with another local tier"
)
_ADVICE = {
    sqlite3.SQLITE_CORRUPT: f"it is damaged; {_SALVAGE}",
    sqlite3.SQLITE_NOTADB: f"it is damaged or no journal; {_SALVAGE}",
    sqlite3.SQLITE_FULL: "its file system is full; make room there and mount again",
    sqlite3.SQLITE_BUSY: "another process uses it; unmount there first",
    sqlite3.SQLITE_READONLY: "it cannot be written; check its file system and its owner",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check its file system and its owner",
    sqlite3.SQLITE_IOERR: "the drive failed; check the kernel log, then mount again",
}


def explain(path: Path, error: Exception) -> JournalError:
    """The JournalError that says what happened to the journal `path`, and what to do."""
    if isinstance(error, JournalError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and str(error).startswith("no such "):  # a table or column of ours
        advice = _ADVICE[sqlite3.SQLITE_CORRUPT]
    elif code is not None:
        advice = _ADVICE.get(code & 0xFF, "mount again; if it stays, report it")
    elif isinstance(error, OSError):
        advice = "check its file system, then mount again"
    else:
        advice = f"a row of it makes no sense; {_SALVAGE}"
    return JournalError(f"journal {path}: {error}: {advice}")


def missing(path: Path) -> JournalError:
    """The journal is gone or empty though the local tier has objects."""
    return JournalError(f"journal {path} is missing or empty, its objects are not: {_SALVAGE}")


def cut_off(path: Path) -> JournalError:
    """The end of the journal, which was durable once, is not there any more."""
    return JournalError(f"journal {path}: the last that was written to it is not there: {_SALVAGE}")


def other_version(path: Path, found: int, known: int) -> JournalError:
    """The journal was written by another version of tierfs."""
    return JournalError(
        f"journal {path} has format {found}, this tierfs knows {known}: mount it with the version "
        "that wrote it and let it flush, or install that version here"
    )


def foreign(path: Path) -> JournalError:
    """There is a database, but not one of ours."""
    return JournalError(
        f"{path} is no tierfs journal: it is left alone; name another directory as local tier"
    )


_OF_DRIVE = frozenset(
    {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.EUCLEAN}
)
_SQLITE_OF_DRIVE = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)


def is_of_drive(error: Exception) -> bool:
    """Whether `error` says that the drive is gone, broken or read-only: not full, not damaged."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _SQLITE_OF_DRIVE
    return isinstance(error, OSError) and error.errno in _OF_DRIVE
