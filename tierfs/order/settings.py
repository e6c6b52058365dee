"""The settings of the order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """Times in seconds, sizes in bytes.

    Attributes:
        unlink_settle: an UNLINK in a checkpoint is held until nothing came there for this long.
        unlink_settle_limit: and at most this long, however much comes.
        unlink_open_limit: the same while a file is open for writing there: a new marker may follow.
        group_settle: and in a sealed checkpoint until no other came for this long, without limit.
        temporary_hold: a file under a temporary name is not sent for this long.
        linger: a FLUSH with no RELEASE for this long was no close; the file counts as open.
        small_bytes: files up to this size are small, and can be pointers and flags.
    """

    unlink_settle: float = 2.0
    unlink_settle_limit: float = 20.0
    unlink_open_limit: float = 600.0
    group_settle: float = 30.0
    temporary_hold: float = 30.0
    linger: float = 1.0
    small_bytes: int = 64 * 1024
