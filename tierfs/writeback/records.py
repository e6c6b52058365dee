"""What write-back tells others: outcomes, states and counts."""

from __future__ import annotations

import enum
import os
from collections import Counter
from dataclasses import dataclass, field

from tierfs.model import Op


class OutcomeKind(enum.Enum):
    """How an op ended."""

    COMMITTED = "committed"
    DROPPED = "dropped"  # the shared tier was changed elsewhere so that there is nothing to do


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an op; it is out of the backlog already.

    Attributes:
        st: what the op left under its name on the shared tier, after all that was done to it;
            None of removals and of what was dropped.
        adopted: a MKDIR found a directory there, made by somebody else.
        reason: one line for people when it was dropped.
        other: what an exchange left under the name that it came from.
        xattrs: of a directory that was made or whose xattrs were changed; None: not known.
    """

    kind: OutcomeKind
    op: Op
    st: os.stat_result | None = None
    adopted: bool = False
    reason: str | None = None
    other: os.stat_result | None = None
    xattrs: dict[bytes, bytes] | None = None


@dataclass(slots=True)
class Transfer:
    """A file on its way: bytes sent of its total, since when, and when it last moved (clock
    seconds).
    """

    op: Op
    path: str
    total: int
    started: float
    sent: int = 0
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """A snapshot of one file on its way."""

    path: str
    sent_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class RetryStatus:
    """An op that failed for a reason that can pass."""

    op: Op
    path: str
    error: str
    attempts: int
    next_retry_seconds: float


@dataclass(frozen=True, slots=True)
class Status:
    """What write-back is doing now; counts are since its start."""

    committed_files: int
    committed_bytes: int
    write_rate_bytes: float
    retrying: tuple[RetryStatus, ...]
    transfers: tuple[TransferStatus, ...]


@dataclass(slots=True)
class Statistics:
    """Counts for metrics, since the start.

    Attributes:
        failures: by errno name, ``verify``, ``directory``, ``journal`` or ``local-`` and errno.
        durable_seconds: sum over `durable_count` files of the time from issue to synced.
    """

    committed_files: int = 0
    committed_bytes: int = 0
    committed_ops: int = 0
    dropped_ops: int = 0
    restaged: int = 0
    verify_mismatches: int = 0
    durable_count: int = 0
    durable_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FlushProgress:
    """How far a waiting flush has come; bytes and files of PUTs only."""

    total_files: int
    done_files: int
    total_bytes: int
    done_bytes: int
    rate_bytes: float
    sending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """An op that waits for something that a flush cannot wait for."""

    op: Op
    reason: str


@dataclass(frozen=True, slots=True)
class FlushResult:
    """How a flush ended.

    Attributes:
        remaining: could have gone on when the time was up.
        stuck: marked stuck, suspect or torn.
        held: waits for what is in `stuck` or `open`.
        open: open for writing.
        dropped: what it was to change was changed or removed outside this mount.
    """

    committed_files: int
    committed_bytes: int
    timed_out: bool
    remaining: tuple[Op, ...] = ()
    stuck: tuple[Op, ...] = ()
    held: tuple[Held, ...] = ()
    open: tuple[Op, ...] = ()
    dropped: tuple[Held, ...] = ()
