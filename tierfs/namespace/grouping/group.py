"""One unsealed checkpoint that this member writes in."""

from __future__ import annotations

from dataclasses import dataclass, field

from tierfs.groups import Verdict, Writers
from tierfs.model import GroupRecord, Name, ObjectId, Op


@dataclass(slots=True, eq=False)
class Group:
    """An unsealed checkpoint that this member writes in.

    Attributes:
        record: what the journal knows of it; its id is the directory id.
        parent, name: its place in the mount.
        writers: who made it, or wrote in it.
        seal: the SEAL that is pending.
        version: counts what may change the answer to "is it whole"; who awaited compares it.
        touched: monotonic time of the last of these changes.
        verdict: the last answer, None before the first.
        flushing: `tierfs flush --wait` asks for its seal on behalf of these processes.
        names: the files in it when one who wrote it began to remove it.
        leaving: it was finished then, so its removals are collected until all of it is removed.
    """

    record: GroupRecord
    parent: ObjectId
    name: Name
    writers: Writers = field(default_factory=Writers)
    seal: Op | None = None
    version: int = 0
    touched: float = 0.0
    verdict: Verdict | None = None
    flushing: frozenset[int] | None = None
    names: frozenset[Name] | None = None
    leaving: bool = False

    @property
    def id(self) -> ObjectId:
        """Its directory id."""
        return self.record.id
