"""The settings of one mount: every key, its default, its meaning and its rule, in one place."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from tierfs.config.groups import GroupRule, parse_groups
from tierfs.config.policies import PolicyRule, parse_policies
from tierfs.config.units import parse_duration, parse_size

DIGESTS = ("sha256", "xxh3_128")
LOWEST_RATE = 64 << 10
"""Bytes a second: below that one block would be under way for more than a minute."""

LOG_LEVELS = ("debug", "info", "warning", "error")


RESERVE_SHARE = 0.02
"""Most of a tier that is kept for small files, however small the tier."""


def reserve_bytes(small_reserve: int, total: int) -> int:
    """What of a tier of `total` bytes is kept for small files, by that setting."""
    return min(small_reserve, int(total * RESERVE_SHARE))


def default_node() -> str:
    """The label of this node when none is given: its host name."""
    return socket.gethostname()


def _directory(value: object) -> Path:
    if not isinstance(value, str | Path) or not Path(value).is_absolute():
        raise ValueError("must be an absolute path")
    return Path(value)


def _node(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise ValueError("must be a text of 1 to 64 characters")
    if not value.isprintable() or "/" in value:
        raise ValueError("must be printable and without '/'")
    return value


def _choice(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return str(value)

    return parse


def _count(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return parse


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of paths such as ["run1/checkpoints"]')
    for path in value:
        if not isinstance(path, str) or {"", ".", ".."} & set(path.strip("/").split("/")):
            raise ValueError("must be paths from the root of the mount, without '.' and '..'")
    return tuple(path.strip("/") for path in value)


def _fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError("must be a fraction above 0 and at most 1, such as 0.85")
    return float(value)


def _seconds(low: float, high: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError('must be a duration such as "30s"')
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
        if not math.isfinite(seconds) or not low <= seconds <= high:
            raise ValueError(f"must lie between {low:g} s and {high:g} s")
        return seconds

    return parse


def _rate(value: object) -> int:
    if value == "off":
        return 0
    if isinstance(value, str):
        value = parse_size(value.removesuffix("/s"))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('must be bytes a second, such as "100M", or "off"')
    if 0 < value < LOWEST_RATE:
        raise ValueError(f"must be at least {LOWEST_RATE >> 10}K a second, or off")
    return value


def _bytes(value: object) -> int:
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 60:
        raise ValueError('must be a size such as "512K", "100M" or "1.5GiB"')
    return size


def _key(parse: Callable[[object], Any], doc: str, *, live: bool = False) -> dict[str, Any]:
    """`live`: it can be changed while a mount runs (``tierfs set``)."""
    return {"parse": parse, "doc": doc, "live": live}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one mount was told; the metadata of each field carries its meaning and its rule.

    Durations are seconds, paths absolute.
    """

    local: Path = field(
        metadata=_key(
            _directory,
            "Directory of this node's local tier, on node-local NVMe (XFS with reflink is best; "
            "ext4 works). It must exist and be empty or ours.",
        )
    )
    shared: Path = field(
        metadata=_key(
            _directory,
            "Directory of the shared tier, on a POSIX file system that every node mounts and that "
            "does not squash root.",
        )
    )
    node: str = field(
        metadata=_key(
            _node, "Label of this node in status and messages; the host name when it is not set."
        ),
        default_factory=default_node,
    )
    digest: str = field(
        metadata=_key(
            _choice(*DIGESTS),
            "What verification compares: sha256 (cryptographic) or xxh3_128 (faster; finds "
            "accidents, not attacks).",
        ),
        default="sha256",
    )
    transfer_files: int = field(
        metadata=_key(_count(1, 64), "How many files are sent to the shared tier at once."),
        default=4,
    )
    transfer_chunks: int = field(
        metadata=_key(
            _count(1, 64), "How many 64 MiB chunks of one file are sent at once.", live=True
        ),
        default=4,
    )
    bwlimit: int = field(
        metadata=_key(
            _rate,
            "How many bytes a second write-back may move to and from the shared tier, all files "
            "together: what is written counts, and what is read back to verify it, so content is "
            'committed at half of this rate. "100M", "1.5GiB"; "off" or 0: no limit. What '
            "applications read is never held back.",
            live=True,
        ),
        default=0,
    )
    temporary_hold: float = field(
        metadata=_key(
            _seconds(0, 86400),
            "How long a file under a temporary name (*.tmp and the like) is kept back: most are "
            "renamed within moments.",
        ),
        default=30.0,
    )
    unlink_settle: float = field(
        metadata=_key(
            _seconds(0, 3600),
            "How long removals inside a checkpoint wait for the removal of its marker, so that "
            "the marker can go first.",
        ),
        default=2.0,
    )
    groups: tuple[GroupRule, ...] = field(
        metadata=_key(
            parse_groups,
            "Directories that are checkpoints and are published whole, beside those that tierfs "
            "knows by their names: tables of a pattern, a regular expression from ^ to $, and a "
            "profile, which says what makes one whole: hf-trainer, dcp, lightning-sharded, "
            "megatron, deepspeed, accelerate, checkpoint_step, others; none: they are no "
            "checkpoints. The first pattern that matches a name counts, these before the "
            "built-in ones.",
        ),
        default=(),
    )
    policies: tuple[PolicyRule, ...] = field(
        metadata=_key(
            parse_policies,
            "What happens with files, by their paths: tables of a pattern and a policy: writeback "
            "(committed behind the application's back; what holds where no pattern matches), "
            "writethrough (close and fsync return when the file is committed), scratch (stays on "
            "this node), cache (read-only; "
            "the first read brings it to the local tier), direct (written to the shared tier, "
            "not to the local one), log (sent now and then while it is open; nothing waits for "
            "it). With writeback, writethrough and direct, close and fsync can be set to local or "
            "committed, each by itself. A "
            "pattern without a slash is for names of files, one with a slash for paths from the "
            "root of the mount, one that ends in a slash for all that is below; * stays in one "
            "directory, ** does not. The first pattern that matches counts, these before the "
            "built-in ones, which make *.log, *.out, *.err and events.out.tfevents.* logs.",
        ),
        default=(),
    )
    log_interval: float = field(
        metadata=_key(
            _seconds(1, 86400),
            "How often a file of policy log that is open and has grown is sent.",
            live=True,
        ),
        default=30.0,
    )
    group_settle: float = field(
        metadata=_key(
            _seconds(0, 86400),
            "How long nothing may change in a checkpoint before its end marker is believed, or "
            "status says that nothing will publish it.",
        ),
        default=30.0,
    )
    delete_hold: float = field(
        metadata=_key(
            _seconds(0, 2592000),
            "How long the removal of the last whole checkpoint of a directory is held back from "
            "the shared tier at most, for the next one to be published first.",
            live=True,
        ),
        default=3600.0,
    )
    full_hold: float = field(
        metadata=_key(
            _seconds(0, 2592000),
            "The same while the shared tier has no space left.",
            live=True,
        ),
        default=600.0,
    )
    keep_last: int = field(
        metadata=_key(
            _count(0, 1_000_000),
            "How many of the newest whole checkpoints of a directory stay; older ones are removed "
            "whenever a newer one is published, as if a program did it. What a symbolic link or "
            "pointer beside them names stays. 0: tierfs removes none by itself.",
            live=True,
        ),
        default=0,
    )
    keep_every: int = field(
        metadata=_key(
            _count(0, 1_000_000_000),
            "With keep_last: checkpoints whose number can be divided by this stay, too. 0: no.",
            live=True,
        ),
        default=0,
    )
    incomplete_keep: float = field(
        metadata=_key(
            _seconds(0, 31536000),
            "How long what was left of checkpoints that never became whole is kept on the shared "
            "tier once a newer one is.",
            live=True,
        ),
        default=604800.0,
    )
    open_hold: float = field(
        metadata=_key(
            _seconds(1, 604800),
            "After how long a file that is still open for writing is named in status; what its "
            "opener closed of it, and nobody changed since, is then sent as a snapshot (forked "
            "processes keep files open for hours).",
            live=True,
        ),
        default=600.0,
    )
    linger: float = field(
        metadata=_key(
            _seconds(0, 60),
            "A close() that is not followed by the release of the file within this time came from "
            "a duplicate descriptor (shell redirection, fork): the file counts as open.",
        ),
        default=1.0,
    )
    tier_wait: float = field(
        metadata=_key(
            _seconds(0.1, 86400),
            "How long an application waits for a shared tier that does not answer before its call "
            "fails with EIO. What is local, and saving into directories that are in use, does not "
            "wait.",
            live=True,
        ),
        default=30.0,
    )
    components: tuple[str, ...] = field(
        metadata=_key(
            _paths,
            "Directories that jobs save into, as paths from the root of the mount. In them, and in "
            "those that were used of late, files are made, renamed and removed at local speed also "
            "while the shared tier does not answer.",
        ),
        default=(),
    )
    outage_reads: bool = field(
        metadata=_key(
            _switch,
            "While the shared tier does not answer, committed files of which there is a local copy "
            "are opened although nobody can tell whether another node has replaced them.",
            live=True,
        ),
        default=True,
    )
    watermark: float = field(
        metadata=_key(
            _fraction,
            "Fraction of the local tier's file system above which clean copies of committed files "
            "are evicted, least recently used first. Nothing pending is ever evicted.",
            live=True,
        ),
        default=0.85,
    )
    watermark_low: float = field(
        metadata=_key(
            _fraction,
            "Fraction that is still taken when that eviction stops; watermark if that is less.",
            live=True,
        ),
        default=0.8,
    )
    small_file: int = field(
        metadata=_key(
            _bytes, "Files of at most this size are small: they get the reserve.", live=True
        ),
        default=1 << 20,
    )
    small_reserve: int = field(
        metadata=_key(
            _bytes,
            "What is kept for small files (pointers, indexes) on the local tier, and left to them "
            "on the shared tier, when large ones have filled it; at most 2 % of the tier.",
            live=True,
        ),
        default=64 << 20,
    )
    expect_bytes: int = field(
        metadata=_key(
            _bytes,
            "What a file opened for writing is expected to take when none of the same name was "
            "closed before in a sibling directory. While that is not free on the local tier, it "
            "is written through the daemon.",
            live=True,
        ),
        default=256 << 20,
    )
    full_wait: float = field(
        metadata=_key(
            _seconds(0, 86400),
            "How long a write that finds the local tier full waits at the most for what is "
            "pending to be committed and to make room.",
            live=True,
        ),
        default=30.0,
    )
    max_pending_bytes: int = field(
        metadata=_key(
            _bytes,
            "While more than this is closed and waits to be sent, close() waits. 0: it never does.",
            live=True,
        ),
        default=0,
    )
    max_pending_age: float = field(
        metadata=_key(
            _seconds(0, 2592000),
            "While something that was closed has waited for longer to be sent, close() waits. "
            "0: it never does.",
            live=True,
        ),
        default=0.0,
    )
    supervisor: bool = field(
        metadata=_key(
            _switch,
            "Run under a supervisor, which starts the daemon again when it dies and lets it be "
            "replaced (tierfs reload) while the mount goes on.",
        ),
        default=True,
    )
    passthrough: bool = field(
        metadata=_key(
            _switch,
            "Let the kernel read and write open files by itself where it can (Linux 6.9 and "
            "later). false sends every byte through the daemon.",
        ),
        default=True,
    )
    passthrough_reserve: float = field(
        metadata=_key(
            _fraction,
            "While less than this fraction of the local tier is free, files opened for writing "
            "are written through the daemon, which makes room before it fails with ENOSPC.",
            live=True,
        ),
        default=0.05,
    )
    log_level: str = field(
        metadata=_key(
            _choice(*LOG_LEVELS),
            "debug (one line for each step of a commit), info, warning or error.",
            live=True,
        ),
        default="info",
    )


def keys() -> dict[str, Field[Any]]:
    """Every key in the order of its definition."""
    return {key.name: key for key in fields(Settings)}
