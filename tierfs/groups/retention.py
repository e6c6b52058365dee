"""Which sealed checkpoints are removed by tierfs itself (`keep_last`, `keep_every`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tierfs.groups.patterns import number_of

_DIGITS = re.compile(rb"\d+")


def surplus(
    sealed: Iterable[bytes], *, keep_last: int, keep_every: int, keep: Collection[bytes] = ()
) -> list[bytes]:
    """The checkpoints among `sealed` that are to be removed, the oldest first.

    `sealed` are the names in one directory of those that are whole and that nobody removes. Only
    names that differ in nothing but their numbers are compared. The newest is never among the
    answers: a checkpoint is old only beside a newer one that is whole.

    Args:
        keep_last: so many of the newest stay; 0: all stay.
        keep_every: those whose number can be divided by it stay as well; 0: none for that.
        keep: names that stay whatever their number is, and count for nothing.
    """
    if not keep_last:
        return []
    series: dict[bytes, list[bytes]] = {}
    for name in sealed:
        series.setdefault(_DIGITS.sub(b"#", name), []).append(name)
    found: list[bytes] = []
    for names in series.values():
        old = sorted(names, key=_numbers)[:-keep_last]
        found += [
            name for name in old
            if name not in keep and not (keep_every and _numbers(name)[0] % keep_every == 0)
        ]  # fmt: skip
    return sorted(found, key=_numbers)


def _numbers(name: bytes) -> tuple[int, ...]:
    """The numbers in `name`, the last first: that is the step."""
    return number_of(name) or (0,)
