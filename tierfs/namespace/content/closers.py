"""Whose close a FLUSH is: of who opened the file, of the kernel as that was killed, or of another.

Children have the open files of their parent, and let go of them when they end or call execve(2).
"""

from __future__ import annotations

import enum

from tierfs.osio.processes import process_of, was_killed


class Closer(enum.Enum):
    """What a close says of the file."""

    OPENER = "opener"  # it is as it was meant
    KILLED = "killed"  # it ends wherever the opener was
    SHARER = "sharer"  # nothing: the opener has it still, or was killed, which was seen then
    DEAD_SHARER = "dead sharer"  # not even that it should be kept as it is now


def closer(opener: int, thread: int) -> Closer:
    """Whose close it is, of a file that its `opener` has not closed before.

    `thread` closes, and waits for the answer; 0 if the kernel does not tell. Of an opener that is
    not known all are its closes.
    """
    process = opener if thread in (0, opener) else process_of(thread) or opener
    if process == opener:
        return Closer.KILLED if opener > 0 and was_killed(opener) else Closer.OPENER
    if opener <= 0:
        return Closer.OPENER
    return Closer.DEAD_SHARER if was_killed(process) else Closer.SHARER
