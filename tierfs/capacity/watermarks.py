"""How full the local tier may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a file system: all, and those that can still be written."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of the tier: above `high` clean copies go, until no more than `low` is taken."""

    high: float
    low: float


def to_evict(usage: Usage, marks: Marks, wanted: int = 0) -> int:
    """Bytes of clean copies that should go; `wanted`: what must be free afterwards."""
    used = usage.total - usage.free
    missing = wanted - usage.free
    if used > marks.high * usage.total:
        missing = max(missing, used - int(min(marks.low, marks.high) * usage.total))
    return max(0, missing)


def beyond(usage: Usage, marks: Marks, wanted: int) -> int:
    """Bytes of clean copies that have to go, for `wanted` more to stay below the high mark."""
    return max(0, usage.total - usage.free + wanted - int(marks.high * usage.total))


def fits(usage: Usage, marks: Marks, may_go: int, wanted: int) -> bool:
    """Whether `wanted` bytes stay below the high mark when `may_go` bytes of clean copies go."""
    return beyond(usage, marks, wanted) <= may_go
