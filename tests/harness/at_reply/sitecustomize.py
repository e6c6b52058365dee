"""For a daemon under test: it dies once, where the file `ARMED` says.

"reply": about to answer a request that changes names. "post": about to journal it, when the log of
what the kernel knows speaks of it already. "noted": when it stands ahead of the journal. "init":
about to answer the first request of all. "init unwritten": when that has been read.

Python imports this module by itself where its folder is in PYTHONPATH.
"""

import os
import signal
from pathlib import Path

from tierfs.journal import Change, Journal, Ticket
from tierfs.journal.ahead import Ahead
from tierfs.journal.rows import Statement
from tierfs.journal.writer import Writer
from tierfs.kernel.filter import Filter
from tierfs.kernel.resent import RESENT
from tierfs.kernel.wire import REPLY_HEADER
from tierfs.namespace.requests import current
from tierfs.namespace.restart.memory import Memory

ARMED = Path(os.environ["TIERFS_TEST_DIE_AT_REPLY"])

send_reply = Filter._reply
note_init = Memory.init
mark = Journal._note
gather = Journal.post
post = Writer.post

of_request = False
"""Whether something that a request did is among what is to be journaled next."""


def die_if(where: str) -> None:
    if ARMED.exists() and ARMED.read_text() == where:
        ARMED.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def die_or_reply(self: Filter, message: memoryview | bytes) -> None:
    unique = REPLY_HEADER.unpack_from(message)[2] & ~RESENT
    if unique in self._named._unanswered:
        die_if("reply")
    if bytes(message) == self._agreement:
        self._fs.core.memory.flush()
        die_if("init")
    send_reply(self, message)


def die_or_note(self: Memory, request: bytes) -> None:
    die_if("init unwritten")
    note_init(self, request)


def gather_and_look(self: Journal, *changes: Change, later: bool = False) -> Ticket:
    global of_request
    of_request = of_request or current() is not None
    return gather(self, *changes, later=later)


def die_or_mark(self: Journal, noted: Ahead, statements: list[Statement], *, early: bool) -> bool:
    if of_request:
        die_if("post")
    return mark(self, noted, statements, early=early)


def die_or_post(
    self: Writer, number: int, statements: list[Statement], *, later: bool = False,
    noted: bool = False,
) -> None:  # fmt: skip
    global of_request
    if of_request:
        die_if("post")
        die_if("noted")
    of_request = False
    post(self, number, statements, later=later, noted=noted)


Journal.post = gather_and_look  # type: ignore[method-assign]
Journal._note = die_or_mark  # type: ignore[method-assign]
Writer.post = die_or_post  # type: ignore[method-assign]
Filter._reply = die_or_reply  # type: ignore[method-assign]
Memory.init = die_or_note  # type: ignore[method-assign]
