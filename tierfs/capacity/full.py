"""What a write does that finds the local tier full (G9)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Next(enum.Enum):
    """What is to be done."""

    RETRY = "retry"  # there is room now
    WAIT = "wait"  # something will become free in time
    SPILL = "spill"  # go on in the staging area of the shared tier
    REFUSE = "refuse"  # ENOSPC


@dataclass(frozen=True, slots=True)
class Full:
    """How it stands when no clean copy is left that could go.

    Attributes:
        coming: bytes that are pending and can still be committed: they become clean then.
        can_spill: whether the shared tier can take what does not fit.
    """

    coming: int
    can_spill: bool


def what_now(full: Full) -> Next:
    """WAIT, SPILL or REFUSE: waiting is better while something can become free by it.

    How long is for who waits to say: `full_wait`, after which it spills or is refused.
    """
    if full.coming > 0:
        return Next.WAIT
    return Next.SPILL if full.can_spill else Next.REFUSE
