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
    """One op that is not in its turn: what it needs is stuck, or not published; or a removal that
    would leave no whole checkpoint.
    """

    path: str
    reason: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """A checkpoint in which nothing happens any more and that nothing will publish by itself."""

    path: str
    reason: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """One request of an application that has not been answered for a while."""

    operation: str
    path: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A tier as it is now.

    Attributes:
        state: of the local tier "ok", or one line that says what is wrong with it; of the shared
            tier healthy, slow, failing or down.
        reason: why a shared tier is not healthy.
        total_bytes, free_bytes: what the tier said last.
    """

    path: str
    state: str
    total_bytes: int
    free_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How the local tier is used.

    Attributes:
        clean_files, clean_bytes: local copies of committed files: they can go at any time.
        pinned_files, pinned_bytes: files that are pinned, and what they take here.
        evicted_files, evicted_bytes: that went since the daemon started.
        reserve_bytes: kept for small files.
        promised_bytes: what open files that the kernel writes by itself are expected to take yet.
        outgrown_files: how many of them are larger than expected, while that is not free.
        waiting_writes: writes that wait for room.
        waiting_closes: closes that wait because too much is pending.
    """

    clean_files: int
    clean_bytes: int
    pinned_files: int
    pinned_bytes: int
    evicted_files: int
    evicted_bytes: int
    reserve_bytes: int
    promised_bytes: int
    outgrown_files: int
    waiting_writes: int
    waiting_closes: int


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
    bwlimit_bytes: int
    local: Tier
    shared: Tier
    capacity: Capacity
    retrying: tuple[Retrying, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()
    held: tuple[Held, ...] = ()
    held_bytes: int = 0
    open_long: tuple[str, ...] = ()
    hanging: tuple[Hanging, ...] = ()
    foreign: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()
    salvaged: dict[str, object] | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        files, bytes: what is on the shared tier, published or staged; None: it was made without
            tierfs, and nobody counted.
        mtime: of its directory, seconds since 1970.
        manifest: its files were verified and recorded when it was published.
        pending_files, pending_bytes, open_files: of this node.
        members: the local tiers that write it, as far as they are known here.
        age_seconds: since it was begun; None: not known.
        reason: why it is not published, "" if it is.
        missing: what a whole one of its kind has and this one has not.
        broken_files: those that cannot be committed.
    """

    path: str
    files: int | None
    bytes: int | None
    mtime: float
    manifest: bool = False
    pending_files: int = 0
    pending_bytes: int = 0
    open_files: int = 0
    members: tuple[str, ...] = ()
    age_seconds: float | None = None
    reason: str = ""
    missing: tuple[str, ...] = ()
    broken_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A removal of a checkpoint that is held because it would leave no whole one.

    Attributes:
        bytes: what it will free on the shared tier; None: that tier did not say in time.
    """

    path: str
    reason: str
    bytes: int | None
    held_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsResult:
    """The checkpoints below a directory, each list by path.

    Attributes:
        latest: of `whole`, the one with the highest number in its name, then the youngest.
        whole: published.
        in_flight: written, sent or published now, or soon.
        unsettled: not whole, or nothing says that they are; only somebody's doing changes that.
        broken: files of them cannot be committed.
        removals: removals that are held.
        hidden: how many more there are that the caller may not see.
    """

    path: str
    latest: str | None
    whole: tuple[Checkpoint, ...]
    in_flight: tuple[Checkpoint, ...]
    unsettled: tuple[Checkpoint, ...]
    broken: tuple[Checkpoint, ...]
    removals: tuple[Removal, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledResult:
    """What is open, pending, about to be published, or stuck below a directory.

    Attributes:
        latest: the newest whole checkpoint there; None: there is none, or it timed out.
        broken: the checkpoints there of which another member says that files cannot be committed.
        hidden: how many more there are in these lists that the caller may not see.
    """

    latest: str | None = None
    timed_out: bool = False
    open: tuple[Problem, ...] = ()
    pending: tuple[Problem, ...] = ()
    sealing: tuple[Problem, ...] = ()
    stuck: tuple[Problem, ...] = ()
    broken: tuple[Problem, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of a Commit.

    Attributes:
        published: it stands under its name on the shared tier.
        files: how many it has.
        missing: what a whole one of its kind has and this one has not.
        reason: why it is not published, "" if it is.
    """

    path: str
    published: bool
    files: int
    missing: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """The removals that are not held any more."""

    purged: tuple[Removal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """What Warm, Pin or Evict did.

    Attributes:
        files, bytes: copied, pinned, not pinned any more, or evicted now.
        already: files that were so before.
        left: those with which it was not done, and why.
    """

    files: int
    bytes: int
    already: int = 0
    left: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What one file of a checkpoint counts for; `path` is absolute."""

    path: str
    size: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A process that made a checkpoint or wrote in it; `state` as in `groups.State`."""

    pid: int
    state: str
    wrote: bool
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """Why a checkpoint is published, or is not.

    Attributes:
        pattern: that its name matches; None: it is no checkpoint.
        proposed: the profile that the pattern proposes; `profile`: the one that counts, since
            names typical of it are there.
        required: what must be there, and whether it is.
        decision: published, publishing, seal, wait, unsettled, broken; none: it is no checkpoint.
        said: the facts that let it be published, or keep it from it.
    """

    path: str
    pattern: str | None = None
    proposed: str | None = None
    profile: str | None = None
    decision: str = "none"
    reason: str = ""
    missing: tuple[str, ...] = ()
    required: dict[str, bool]
    end_marker: str = ""
    pointer: str = ""
    said: dict[str, str]
    writers: tuple[Writer, ...] = ()
    files: tuple[FileRules, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """The settings that can be changed while the mount runs, as they are now."""

    settings: dict[str, bool | int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What holds for a path.

    Attributes:
        pattern: of the rule that says so; "": none does, it is what holds by default.
        fsync, close: local or committed: what the call waits for.
    """

    path: str
    policy: str
    pattern: str
    fsync: str
    close: str


Result = (
    FlushResult | StatusResult | ListResult | LocateResult | Decided | CheckpointsResult
    | SettledResult | CommitResult | PurgeResult | KeptResult | ProfileResult | SetResult
    | PolicyResult
)  # fmt: skip
