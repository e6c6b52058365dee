"""The settings of write-back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WritebackSettings:
    """How much is done at once, and when a failure is tried again.

    Attributes:
        transfer_files: files staged at once.
        small_files: further ones at once if they are small (`OrderSettings.small_bytes`): they do
            not queue behind large ones.
        publishers: names changed at once.
        syncers: objects made durable on the local tier at once.
        first_retry_seconds: pause after a first failure; it doubles with each further one
        last_retry_seconds: up to this.
        stuck_retry_seconds: pause between the attempts of an op that is stuck.
        hang_seconds: so long nothing moves of an op that hangs: another one gets its place.
        progress_seconds: pause between two progress reports of a waiting flush.
        delete_hold: how long a removal that would leave no whole checkpoint is held at most.
        full_hold: the same while the shared tier is full; then other removals do not wait for the
            saves before them any more, either.
    """

    transfer_files: int = 4
    small_files: int = 4
    publishers: int = 8
    syncers: int = 8
    first_retry_seconds: float = 0.2
    last_retry_seconds: float = 30.0
    stuck_retry_seconds: float = 300.0
    hang_seconds: float = 60.0
    progress_seconds: float = 0.2
    delete_hold: float = 3600.0
    full_hold: float = 600.0
