"""What the daemon answers: events, results, exit codes. Sizes are bytes, times seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# Exit codes of flush and umount (DESIGN 8). Never renumbered.
COMMITTED = 0
FAILED = 1
TIMEOUT = 2
STUCK = 3
OPEN = 4
HELD = 5
UNSEALED = 6

_PRECEDENCE = (TIMEOUT, STUCK, HELD, UNSEALED, OPEN)


def flush_exit_code(
    *, timed_out: bool, stuck: bool, held: bool, still_open: bool, unsealed: bool = False
) -> int:
    """The one exit code when several things kept a flush from its end."""
    reasons = {
        TIMEOUT: timed_out, STUCK: stuck, HELD: held, UNSEALED: unsealed, OPEN: still_open,
    }  # fmt: skip
    return next((code for code in _PRECEDENCE if reasons[code]), COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Event of a waiting Flush or Umount, about once in 0.2 s.

    Attributes:
        rate_bytes: bytes a second, of late.
        seconds_left: None when it cannot be told.
        sending: paths in transfer now.
    """

    event: ClassVar[str] = "progress"
    total_files: int
    done_files: int
    total_bytes: int
    done_bytes: int
    rate_bytes: float = 0.0
    seconds_left: float | None = None
    sending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One file that a flush could not wait for, or could not wait longer for, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedGroup:
    """A checkpoint whose files are committed, and that is not published.

    Attributes:
        missing: what a whole one of its kind has and this one has not.
        command: what publishes it as it is.
    """

    path: str
    reason: str
    missing: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushResult:
    """How a flush ended; `exit_code` counts also what the caller may not see by name.

    Attributes:
        remaining: pending and could have gone on: timed out, or nobody waited.
        stuck: stuck, suspect or torn.
        open: open for writing.
        held: withdrawn or held because of what is in `stuck`.
        unsealed: checkpoints that are not published.
        hidden: how many more there are in these lists that the caller may not see.
    """

    exit_code: int = COMMITTED
    timed_out: bool = False
    committed_files: int = 0
    committed_bytes: int = 0
    remaining: tuple[Problem, ...] = ()
    stuck: tuple[Problem, ...] = ()
    open: tuple[Problem, ...] = ()
    held: tuple[Problem, ...] = ()
    unsealed: tuple[UnsealedGroup, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """One op that failed for a reason that can pass, and is tried again for ever."""

    path: str
    error: str
    attempts: int
    next_retry_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """One file that is not committed by itself; `state` is stuck, suspect or torn."""

    path: str
    error: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One op that is withdrawn while something that it needs is stuck."""

    path: str
    reason: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """One request of an application that has not been answered for a while."""

    operation: str
    path: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A tier as it is now; `state` is "ok", or one line that says what is wrong with it."""

    path: str
    state: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """The keys of ``tierfs status --json`` (docs/OPERATIONS.md says what each means)."""

    node: str
    member: str
    mountpoint: str
    version: str
    worker_pid: int
    supervisor_pid: int | None
    restarts: int
    uptime_seconds: float
    passthrough: bool
    passthrough_reason: str
    fallbacks: dict[str, int]
    pending_files: int
    pending_bytes: int
    pending_ops: int
    open_for_write: int
    oldest_pending_seconds: float
    oldest_unsynced_seconds: float
    committed_files: int
    committed_bytes: int
    write_rate_bytes: float
    local: Tier
    shared: Tier
    retrying: tuple[Retrying, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    unsettled: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    held_bytes: int = 0
    open_long: tuple[str, ...] = ()
    hanging: tuple[Hanging, ...] = ()
    foreign: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """One name of a directory.

    Attributes:
        state: committed, pending, closed, open, stuck, suspect or torn.
        tier: where its content can be read: local, shared, both; "-" of a directory.
    """

    name: str
    kind: str
    size: int
    state: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListResult:
    """The entries that were asked for, sorted by name."""

    path: str
    entries: tuple[ListEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateResult:
    """Where one file is.

    Attributes:
        local_path: the object that holds its content on this node, None if there is none.
        shared_path: its plain file on the shared tier, None while it has none.
        digest: of its committed content, if tierfs committed it.
        explanation: one line: what it waits for, or why it is where it is.
    """

    path: str
    kind: str
    size: int
    state: str
    tier: str
    local_path: str | None
    shared_path: str | None
    digest: str | None
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What became of the file of an Accept or Discard: `state` as in ListEntry, or "absent"."""

    path: str
    state: str


Result = FlushResult | StatusResult | ListResult | LocateResult | Decided
