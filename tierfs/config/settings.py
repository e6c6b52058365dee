"""The settings of one mount: every key, its default, its meaning and its rule, in one place."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from tierfs.config import rules
from tierfs.config.groups import GroupRule, parse_groups
from tierfs.config.policies import PolicyRule, parse_policies

DIGESTS = ("sha256", "xxh3_128")
LOG_LEVELS = ("debug", "info", "warning", "error")


RESERVE_SHARE = 0.02
"""Most of a tier that is kept for small files, however small the tier."""


def reserve_bytes(small_reserve: int, total: int) -> int:
    """What of a tier of `total` bytes is kept for small files, by that setting."""
    return min(small_reserve, int(total * RESERVE_SHARE))


def default_node() -> str:
    """The label of this node when none is given: its host name."""
    return socket.gethostname()


def _key(parse: Callable[[object], Any], doc: str, *, live: bool = False) -> dict[str, Any]:
    """`live`: it can be changed while a mount runs (``tierfs set``)."""
    return {"parse": parse, "doc": doc, "live": live}


def _setting(
    parse: Callable[[object], Any], doc: str, *, live: bool = False, **default: Any
) -> Any:
    return field(metadata=_key(parse, doc, live=live), **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one mount was told; the metadata of each field carries its meaning and its rule.

    Durations are seconds, paths absolute.
    """

    local: Path = field(
        metadata=_key(
            rules.directory,
            "Directory of this node's local tier, on node-local NVMe (XFS with reflink is best; "
            "ext4 works). It must exist and be empty or ours.",
        )
    )
    shared: Path = field(
        metadata=_key(
            rules.directory,
            "Directory of the shared tier, on a POSIX file system that every node mounts and that "
            "does not squash root.",
        )
    )
    node: str = _setting(
        rules.label,
        "Label of this node in status and messages; the host name when it is not set.",
        default_factory=default_node,
    )
    digest: str = _setting(
        rules.choice(*DIGESTS),
        "What verification compares: sha256 (cryptographic) or xxh3_128 (faster; finds "
        "accidents, not attacks).",
        default="sha256",
    )
    sha256sums: bool = _setting(
        rules.switch,
        "Give each checkpoint a file SHA256SUMS when it is published, for sha256sum -c. Costs one "
        "more hash of what is sent, and large files are sent one chunk after the other.",
        default=False,
    )
    transfer_files: int = _setting(
        rules.count(1, 64),
        "How many files are sent to the shared tier at once.",
        default=4,
    )
    transfer_chunks: int = _setting(
        rules.count(1, 64),
        "How many 64 MiB chunks of one file are sent at once.",
        default=4,
        live=True,
    )
    bwlimit: int = _setting(
        rules.rate,
        "How many bytes a second write-back may move to and from the shared tier, all files "
        "together: what is written counts, and what is read back to verify it, so content is "
        'committed at half of this rate. "100M", "1.5GiB"; "off" or 0: no limit. What '
        "applications read is never held back.",
        default=0,
        live=True,
    )
    temporary_hold: float = _setting(
        rules.seconds(0, 86400),
        "How long a file under a temporary name (*.tmp and the like) is kept back: most are "
        "renamed within moments.",
        default=30.0,
    )
    unlink_settle: float = _setting(
        rules.seconds(0, 3600),
        "How long removals inside a checkpoint wait for the removal of its marker, so that "
        "the marker can go first.",
        default=2.0,
    )
    groups: tuple[GroupRule, ...] = _setting(
        parse_groups,
        "Directories that are checkpoints and are published whole, beside those that tierfs "
        "knows by their names: tables of a pattern, a regular expression from ^ to $, and a "
        "profile, which says what makes one whole: hf-trainer, dcp, lightning-sharded, "
        "megatron, deepspeed, accelerate, checkpoint_step, others; none: they are no "
        "checkpoints. The first pattern that matches a name counts, these before the "
        "built-in ones.",
        default=(),
    )
    policies: tuple[PolicyRule, ...] = _setting(
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
        default=(),
    )
    log_interval: float = _setting(
        rules.seconds(1, 86400),
        "How often a file of policy log that is open and has grown is sent.",
        default=30.0,
        live=True,
    )
    group_settle: float = _setting(
        rules.seconds(0, 86400),
        "How long nothing may change in a checkpoint before its end marker is believed, or "
        "status says that nothing will publish it.",
        default=30.0,
    )
    lease: float = _setting(
        rules.seconds(1, 86400),
        "After how long another node that wrote in a checkpoint, and from which nothing is heard, "
        "is gone: what it left in it does not count when the checkpoint is written again here. "
        "All nodes should have the same.",
        default=60.0,
    )
    delete_hold: float = _setting(
        rules.seconds(0, 2592000),
        "How long the removal of the last whole checkpoint of a directory is held back from "
        "the shared tier at most, for the next one to be published first.",
        default=3600.0,
        live=True,
    )
    full_hold: float = _setting(
        rules.seconds(0, 2592000),
        "The same while the shared tier has no space left. Other removals go then, too, before "
        "saves that do not fit.",
        default=600.0,
        live=True,
    )
    keep_last: int = _setting(
        rules.count(0, 1_000_000),
        "How many of the newest whole checkpoints of a directory stay; older ones are removed "
        "whenever a newer one is published, as if a program did it. What a symbolic link or "
        "pointer beside them names stays. 0: tierfs removes none by itself.",
        default=0,
        live=True,
    )
    keep_every: int = _setting(
        rules.count(0, 1_000_000_000),
        "With keep_last: checkpoints whose number can be divided by this stay, too. 0: no.",
        default=0,
        live=True,
    )
    incomplete_keep: float = _setting(
        rules.seconds(0, 31536000),
        "How long what was left of checkpoints that never became whole is kept on the shared "
        "tier once a newer one is.",
        default=604800.0,
        live=True,
    )
    open_hold: float = _setting(
        rules.seconds(1, 604800),
        "After how long a file that is still open for writing is named in status; what its "
        "opener closed of it, and nobody changed since, is then sent as a snapshot (forked "
        "processes keep files open for hours).",
        default=600.0,
        live=True,
    )
    linger: float = _setting(
        rules.seconds(0, 60),
        "A close() that is not followed by the release of the file within this time came from "
        "a duplicate descriptor (shell redirection, fork): the file counts as open.",
        default=1.0,
    )
    tier_wait: float = _setting(
        rules.seconds(0.1, 86400),
        "How long an application waits for a shared tier that does not answer before its call "
        "fails with EIO. What is local, and saving into directories that are in use, does not "
        "wait.",
        default=30.0,
        live=True,
    )
    components: tuple[str, ...] = _setting(
        rules.paths,
        "Directories that jobs save into, as paths from the root of the mount. In them, and in "
        "those that were used of late, files are made, renamed and removed at local speed also "
        "while the shared tier does not answer.",
        default=(),
    )
    outage_reads: bool = _setting(
        rules.switch,
        "While the shared tier does not answer, committed files of which there is a local copy "
        "are opened although nobody can tell whether another node has replaced them.",
        default=True,
        live=True,
    )
    watermark: float = _setting(
        rules.fraction,
        "Fraction of the local tier's file system above which clean copies of committed files "
        "are evicted, least recently used first. Nothing pending is ever evicted.",
        default=0.85,
        live=True,
    )
    watermark_low: float = _setting(
        rules.fraction,
        "Fraction that is still taken when that eviction stops; watermark if that is less.",
        default=0.8,
        live=True,
    )
    small_file: int = _setting(
        rules.size,
        "Files of at most this size are small: they get the reserve.",
        default=1 << 20,
        live=True,
    )
    small_reserve: int = _setting(
        rules.size,
        "What is kept for small files (pointers, indexes) on the local tier, and left to them "
        "on the shared tier, when large ones have filled it; at most 2 % of the tier.",
        default=64 << 20,
        live=True,
    )
    expect_bytes: int = _setting(
        rules.size,
        "What a file opened for writing is expected to take when none of the same name was "
        "closed before in a sibling directory. While that is not free on the local tier, it "
        "is written through the daemon.",
        default=256 << 20,
        live=True,
    )
    full_wait: float = _setting(
        rules.seconds(0, 86400),
        "How long a write that finds the local tier full waits at the most for what is "
        "pending to be committed and to make room.",
        default=30.0,
        live=True,
    )
    max_pending_bytes: int = _setting(
        rules.size,
        "While more than this is closed and waits to be sent, close() waits. 0: it never does.",
        default=0,
        live=True,
    )
    max_pending_age: float = _setting(
        rules.seconds(0, 2592000),
        "While something that was closed has waited for longer to be sent, close() waits. "
        "0: it never does.",
        default=0.0,
        live=True,
    )
    supervisor: bool = _setting(
        rules.switch,
        "Run under a supervisor, which starts the daemon again when it dies and lets it be "
        "replaced (tierfs reload) while the mount goes on.",
        default=True,
    )
    passthrough: bool = _setting(
        rules.switch,
        "Let the kernel read and write open files by itself where it can (Linux 6.9 and "
        "later). false sends every byte through the daemon.",
        default=True,
    )
    passthrough_reserve: float = _setting(
        rules.fraction,
        "While less than this fraction of the local tier is free, files opened for writing "
        "are written through the daemon, which makes room before it fails with ENOSPC.",
        default=0.05,
        live=True,
    )
    log_level: str = _setting(
        rules.choice(*LOG_LEVELS),
        "debug (one line for each step of a commit), info, warning or error.",
        default="info",
        live=True,
    )


def keys() -> dict[str, Field[Any]]:
    """Every key in the order of its definition."""
    return {key.name: key for key in fields(Settings)}
