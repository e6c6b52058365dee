"""What a command that waits is told meanwhile, beside `results.Progress`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Event of a waiting Settled or Commit, when it has changed, at most once a second.

    Attributes:
        open: files that are open for writing.
        pending: changes that are not committed; `pending_bytes` is what they are to send.
        sealing: checkpoints that are about to be published.
    """

    event: ClassVar[str] = "waiting"
    open: int
    pending: int
    pending_bytes: int
    sealing: int
