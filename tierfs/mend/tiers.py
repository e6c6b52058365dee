"""The shared tier as a command uses it: no mount, no write-back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tierfs.errors import TierError
from tierfs.osio import make_os
from tierfs.shared import SharedTier
from tierfs.threads import Pool

FIRST_ROW = 1 << 62
"""Names in staging carry row ids; those of journals never come near."""

_NOBODY = "0" * 32


@dataclass(frozen=True, slots=True)
class Sending:
    """How files are sent (`SharedSettings`)."""

    digest: str = "sha256"
    lease: float = 60.0
    sha256sums: bool = False
    transfer_chunks: int = 4
    small_file: int = 0
    small_reserve: int = 0


def looked_at(root: Path) -> SharedTier:
    """The tier `root`, to be read only. Raises TierError."""
    return _tier(root, _NOBODY)


@contextmanager
def written_to(root: Path, member: str) -> Iterator[SharedTier]:
    """The tier `root` with a staging directory of its own, in that of the local tier `member`.

    So whatever a crash leaves there is swept by the next mount of that local tier. Raises
    TierError if `member` was never mounted with `root`.
    """
    tier = _tier(root, member)
    try:
        if not tier.knows_member(member):
            raise TierError(
                f"{root}: the local tier was never mounted with this shared tier: name the "
                "directory that was given to the mount as --shared"
            )
        tier.start_generation()
        try:
            yield tier
        finally:
            tier.end_generation()
    finally:
        tier.close()


def _tier(root: Path, member: str) -> SharedTier:
    return SharedTier(
        root, member, make_os(), Sending(),
        shared_threads=Pool("shared", 1), transfer_threads=Pool("transfer", 4),
    )  # fmt: skip
