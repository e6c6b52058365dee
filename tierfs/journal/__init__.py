"""The journal: one SQLite row per pending op, written before a close is answered (FORMAT.md)."""

from tierfs.journal.changes import (
    Change,
    DropClean,
    DropDirectory,
    DropObject,
    DropOp,
    DropRequests,
    SaveClean,
    SaveDirectory,
    SaveObject,
    SaveOp,
    SaveRequest,
    TouchClean,
)
from tierfs.journal.journal import Journal
from tierfs.journal.ticket import Ticket

__all__ = [
    "Change",
    "DropClean",
    "DropDirectory",
    "DropObject",
    "DropOp",
    "DropRequests",
    "Journal",
    "SaveClean",
    "SaveDirectory",
    "SaveObject",
    "SaveOp",
    "SaveRequest",
    "Ticket",
    "TouchClean",
]
