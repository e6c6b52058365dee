"""The journal: one SQLite row per pending op, written before a close is answered (FORMAT.md)."""

from tierfs.journal.changes import (
    Change,
    DropClean,
    DropDirectory,
    DropGroup,
    DropObject,
    DropOp,
    DropPin,
    DropRequests,
    SaveClean,
    SaveDirectory,
    SaveGroup,
    SaveObject,
    SaveOp,
    SavePin,
    SaveRequest,
    TouchClean,
)
from tierfs.journal.journal import Journal
from tierfs.journal.ticket import Ticket

__all__ = [
    "Change",
    "DropClean",
    "DropDirectory",
    "DropGroup",
    "DropObject",
    "DropOp",
    "DropPin",
    "DropRequests",
    "Journal",
    "SaveClean",
    "SaveDirectory",
    "SaveGroup",
    "SaveObject",
    "SaveOp",
    "SavePin",
    "SaveRequest",
    "Ticket",
    "TouchClean",
]
