"""One unsealed checkpoint that this member writes in, and who else did, as the journal has it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from tierfs.groups import Decision, Process, State, Verdict, Writers, listed
from tierfs.model import GroupRecord, Name, ObjectId, Op, OpKind, WriterRecord
from tierfs.namespace.grouping.processes import Processes


@dataclass(slots=True, eq=False)
class Group:
    """An unsealed checkpoint that this member writes in.

    Attributes:
        record: what the journal knows of it; its id is the directory id.
        parent, name: its place in the mount.
        writers: who made it, or wrote in it.
        seal: the SEAL that is pending, or the REOPEN that gives this generation up.
        version: counts what may change the answer to "is it whole"; who awaited compares it.
        touched: monotonic time of the last of these changes.
        begun: monotonic time since when it is known here.
        acted: monotonic time of the last thing that an application did in it.
        verdict: the last answer, None before the first.
        flushing: `tierfs flush --wait` asks for its seal on behalf of these processes.
        names: the files in it when one who wrote it began to remove it.
        leaving: it was finished then, so its removals are collected until all of it is removed.
        stays: what dead writers left of it could not be given up.
    """

    record: GroupRecord
    parent: ObjectId
    name: Name
    writers: Writers = field(default_factory=Writers)
    seal: Op | None = None
    version: int = 0
    touched: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    acted: float = -math.inf
    verdict: Verdict | None = None
    flushing: frozenset[int] | None = None
    names: frozenset[Name] | None = None
    leaving: bool = False
    stays: bool = False

    @property
    def id(self) -> ObjectId:
        """Its directory id."""
        return self.record.id

    @property
    def is_given_up(self) -> bool:
        """Whether what dead writers left of this generation is about to go."""
        return self.seal is not None and self.seal.kind is OpKind.REOPEN

    @property
    def word(self) -> str:
        """How it stands: unsealed, unsettled or broken."""
        if self.verdict is None:
            return "unsealed"
        said = self.verdict.decision
        return said.value if said in (Decision.UNSETTLED, Decision.BROKEN) else "unsealed"

    def is_written(self, open_files: int, settle: float) -> bool:
        """Whether one who made it, or wrote there, lives; so many files of it are open."""
        return listed(
            self.writers, open_files=open_files,
            quiet_seconds=time.monotonic() - self.touched, settle_seconds=settle,
        )  # fmt: skip

    def act(self) -> None:
        """An application does something in it: what a flush said before was not about that."""
        self.version += 1
        self.touched = self.acted = time.monotonic()
        self.flushing = None

    def is_later(self, than: float) -> bool:
        """Whether it was begun `than` that monotonic time, by an application."""
        return self.begun > than and self.acted > than


def records_of(writers: Writers) -> tuple[WriterRecord, ...]:
    """What the journal has to know of `writers`."""
    wrote, closed, removed = writers.who_wrote(), writers.who_closed(), writers.who_removed()
    return tuple(
        WriterRecord(
            each.pid, each.start, state.value, each in wrote, each in closed, each in removed,
            tuple(sorted(writers.older_markers(each))),
        )
        for state in State
        for each in writers.processes(state)
    )  # fmt: skip


def know(writers: Writers, each: WriterRecord, processes: Processes) -> None:
    """A process that the journal knows of: its number may be another's by now."""
    process = Process(each.process, each.started)
    writers.made(process)
    if each.wrote:
        writers.wrote(process)
    if each.closed:
        writers.closed(process)
    if each.removed:
        writers.removed(process)
    writers.wrote_over(process, older=each.over)
    if each.process and processes.follow(each.process) != each.started:
        writers.ended(process, killed=each.state != State.EXITED.value)
