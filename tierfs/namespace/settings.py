"""The settings of the namespace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """Times in seconds.

    Attributes:
        mountpoint: where absolute symbolic links into the mount begin.
        open_hold: after how long a closed file that is still open somewhere is sent as a snapshot.
        mkdir_wait: how long mkdir waits for the shared tier before it is queued (DESIGN 4).
        tier_wait: how long an application waits for an answer of the shared tier (DESIGN 4).
        watermark: share of the local tier above which clean copies are evicted.
        reserve: share of the local tier that is kept from writes past the daemon.
        group_settle: how long nothing may change in a checkpoint until it is quiet there.
        incomplete_keep: how long what nobody removed stays in quarantine.
        keep_last, keep_every: which sealed checkpoints stay (`groups.retention`); 0: all.
    """

    mountpoint: bytes = b""
    open_hold: float = 600.0
    mkdir_wait: float = 0.2
    tier_wait: float = 30.0
    watermark: float = 0.85
    reserve: float = 0.05
    group_settle: float = 30.0
    incomplete_keep: float = 7 * 24 * 3600.0
    keep_last: int = 0
    keep_every: int = 0
