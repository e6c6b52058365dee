"""The processes that made a checkpoint or wrote into it: who is living, who ended how.

From it follow whether an unsealed checkpoint is listed on this node, and whether a flush or a
newer sibling may seal it when it has no end marker.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tierfs.groups.profiles import END_MARKERS

POINTER = b"/pointer"
"""Stands for the pointers to a checkpoint among the names of end markers: it is none of a file."""

WORDS = END_MARKERS | {POINTER}
"""What may call a checkpoint whole, and says nothing of what is written over after it."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process: pids come back, the time of the start does not.

    Attributes:
        pid: of the process, not of one of its threads.
        start: when it started (field 22 of ``/proc/PID/stat``, clock ticks since the boot).
    """

    pid: int
    start: int


UNKNOWN = Process(0, 0)
"""Whoever the kernel names no pid for: a process outside of the daemon's pid namespace."""


class State(enum.Enum):
    """What became of a process."""

    LIVING = "living"
    EXITED = "exited"  # by itself
    KILLED = "killed"  # by a signal, or nobody saw how it ended
    UNKNOWN = "unknown"


class Removal(enum.Enum):
    """Whether an unsealed checkpoint is being removed, by unlinks one after the other."""

    NONE = "none"
    UNDER_WAY = "under way"  # one who removed files lives: others may follow
    CUT_OFF = "cut off"  # one who removed files was killed: those that are left are not all


@dataclass(slots=True)
class _Record:
    state: State
    wrote: bool = False
    closed: bool = False
    removed: bool = False
    over: frozenset[bytes] = frozenset()


class Writers:
    """The processes that made one checkpoint, opened a file in it for writing, or removed one."""

    def __init__(self) -> None:
        self._records: dict[Process, _Record] = {}

    def made(self, process: Process) -> None:
        """`process` made the directory, or one inside."""
        self._record(process)

    def wrote(self, process: Process) -> None:
        """`process` opened a file in it for writing, or changed a name in it."""
        self._record(process).wrote = True

    def closed(self, process: Process) -> None:
        """`process` closed a file there that it had open for writing."""
        record = self._record(process)
        record.wrote = record.closed = True

    def wrote_over(self, *processes: Process, older: Iterable[bytes] = WORDS) -> None:
        """`processes` changed a file that was there: the WORDS `older` say nothing of it."""
        for process in processes:
            self._record(process).over |= frozenset(older)

    def marked(self, name: bytes) -> None:
        """The file `name` was closed, or got that name: if it is an end marker, it says so now.

        POINTER: a pointer that names the checkpoint was.
        """
        for record in self._records.values():
            record.over -= {name}

    def removed(self, process: Process) -> None:
        """`process` is about to remove a file there."""
        self._record(process).removed = True

    def written_again(self) -> None:
        """Something is written there: what was removed before is no removal of all of it."""
        for record in self._records.values():
            record.removed = False

    def ended(self, process: Process, *, killed: bool) -> None:
        """`process` is no more. Does nothing if it never was here."""
        if process in self._records and process != UNKNOWN:
            self._records[process].state = State.KILLED if killed else State.EXITED

    def processes(self, *states: State) -> frozenset[Process]:
        """Those in one of `states`; all without any."""
        return frozenset(p for p, r in self._records.items() if not states or r.state in states)

    def state_of(self, process: Process) -> State:
        """What became of `process`, one of `processes`."""
        return self._records[process].state

    def who_wrote(self) -> frozenset[Process]:
        """Those that did more than make the directory."""
        return frozenset(p for p, record in self._records.items() if record.wrote)

    def who_closed(self) -> frozenset[Process]:
        """Those that closed a file that they had written."""
        return frozenset(p for p, record in self._records.items() if record.closed)

    def who_removed(self) -> frozenset[Process]:
        """Those that removed files there since something was last written there."""
        return frozenset(p for p, record in self._records.items() if record.removed)

    def older_markers(self, process: Process) -> frozenset[bytes]:
        """Which of WORDS were not said since `process` changed a file that was there."""
        return self._records[process].over

    def _record(self, process: Process) -> _Record:
        state = State.UNKNOWN if process == UNKNOWN else State.LIVING
        return self._records.setdefault(process, _Record(state))


def listed(
    writers: Writers, *, open_files: int, quiet_seconds: float, settle_seconds: float
) -> bool:
    """Whether an unsealed checkpoint is listed on this node: while one of its makers lives.

    One without a pid counts as living until nothing was open there for `settle_seconds`.
    """
    if writers.processes(State.LIVING):
        return True
    active = open_files > 0 or quiet_seconds < settle_seconds
    return active and bool(writers.processes(State.UNKNOWN))


def flush_may_seal(writers: Writers, caller_and_ancestors: Collection[int]) -> bool:
    """Whether a flush seals a checkpoint that has no end marker: nobody is left to write it.

    Every process that was there has exited by itself, or is the caller of the flush or an
    ancestor of it (pids). False when none is known, as after a restart of the daemon: then
    nobody can say that they all ended well.
    """
    exited = writers.processes(State.EXITED)
    known = writers.processes()
    return bool(known) and all(
        process in exited or (process != UNKNOWN and process.pid in caller_and_ancestors)
        for process in known
    )


def removal(writers: Writers, caller_and_ancestors: Collection[int] = ()) -> Removal:
    """How the removals since the last write stand, for a flush of that caller (pids)."""
    states = {
        writers.state_of(process) for process in writers.who_removed()
        if process.pid not in caller_and_ancestors or process == UNKNOWN
    }  # fmt: skip
    if State.KILLED in states:
        return Removal.CUT_OFF
    return Removal.UNDER_WAY if states - {State.EXITED} else Removal.NONE


def older_markers(writers: Writers, caller_and_ancestors: Collection[int] = ()) -> frozenset[bytes]:
    """Which of WORDS are older than what was written over, for a flush of that caller.

    Who has ended well has left it as it was meant, and so has who asks for the flush.
    """
    going = (
        writers.older_markers(process)
        for process in writers.processes() - writers.processes(State.EXITED)
        if process.pid not in caller_and_ancestors or process == UNKNOWN
    )
    return frozenset().union(*going)


def followed(writers: Writers, newer: Iterable[Writers]) -> bool:
    """Whether every process that wrote here has closed a file in one of the `newer` siblings.

    A process that was killed, or cannot be told from others, has gone on nowhere.
    """
    wrote = writers.who_wrote()
    if not wrote or UNKNOWN in wrote:
        return False
    return any(wrote <= sibling.who_closed() for sibling in newer)
