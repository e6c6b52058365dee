"""The settings of the namespace."""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.capacity import Limits

NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """Times in seconds.

    Attributes:
        mountpoint: where absolute symbolic links into the mount begin.
        open_hold: after how long a closed file that is still open somewhere is sent as a snapshot.
        mkdir_wait: how long mkdir waits for the shared tier before it is queued (DESIGN 4).
        tier_wait: how long an application waits for an answer of the shared tier (DESIGN 4).
        components: directories that jobs save into, by the names from the root.
        outage_reads: clean copies are read while the shared tier does not answer.
        watermark: share of the local tier above which clean copies are evicted.
        watermark_low: share that is still taken when eviction stops.
        reserve: share of the local tier that is kept from writes past the daemon.
        small_file: bytes of a small file; small_reserve: bytes that are kept for them.
        expect_bytes: of a file that is like none before it.
        full_wait: how long a write waits for room on the local tier.
        limits: beyond which closes wait.
        group_settle: how long nothing may change in a checkpoint until it is quiet there.
        incomplete_keep: how long what nobody removed stays in quarantine.
        log_interval: how often a log that is open and has grown is sent.
        keep_last, keep_every: which sealed checkpoints stay (`groups.retention`); 0: all.
    """

    mountpoint: bytes = b""
    open_hold: float = 600.0
    mkdir_wait: float = 0.2
    tier_wait: float = 30.0
    components: tuple[tuple[bytes, ...], ...] = ()
    outage_reads: bool = True
    watermark: float = 0.85
    watermark_low: float = 0.8
    reserve: float = 0.05
    small_file: int = 1 << 20
    small_reserve: int = 0
    expect_bytes: int = 256 << 20
    full_wait: float = 30.0
    limits: Limits = NO_LIMITS
    group_settle: float = 30.0
    incomplete_keep: float = 7 * 24 * 3600.0
    log_interval: float = 30.0
    keep_last: int = 0
    keep_every: int = 0
