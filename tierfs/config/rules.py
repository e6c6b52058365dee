"""What the value of a setting has to be: each rule returns the value as it is used.

Every rule raises ValueError with what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from tierfs.config.units import parse_duration, parse_size

LOWEST_RATE = 64 << 10
"""Bytes a second: below that one block would be under way for more than a minute."""


def directory(value: object) -> Path:
    """An absolute path."""
    if not isinstance(value, str | Path) or not Path(value).is_absolute():
        raise ValueError("must be an absolute path")
    return Path(value)


def label(value: object) -> str:
    """A printable word for a node."""
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise ValueError("must be a text of 1 to 64 characters")
    if not value.isprintable() or "/" in value:
        raise ValueError("must be printable and without '/'")
    return value


def choice(*allowed: str) -> Callable[[object], str]:
    """One of `allowed`."""

    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return str(value)

    return parse


def count(low: int, high: int) -> Callable[[object], int]:
    """A whole number from `low` to `high`."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return parse


def switch(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def paths(value: object) -> tuple[str, ...]:
    """Paths from the root of the mount, without slashes at their ends."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of paths such as ["run1/checkpoints"]')
    for path in value:
        if not isinstance(path, str) or {"", ".", ".."} & set(path.strip("/").split("/")):
            raise ValueError("must be paths from the root of the mount, without '.' and '..'")
    return tuple(path.strip("/") for path in value)


def fraction(value: object) -> float:
    """Above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError("must be a fraction above 0 and at most 1, such as 0.85")
    return float(value)


def seconds(low: float, high: float) -> Callable[[object], float]:
    """A number of seconds, or a text with a unit, from `low` to `high` seconds."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError('must be a duration such as "30s"')
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
        if not math.isfinite(seconds) or not low <= seconds <= high:
            raise ValueError(f"must lie between {low:g} s and {high:g} s")
        return seconds

    return parse


def rate(value: object) -> int:
    """Bytes a second; 0: no limit."""
    if value == "off":
        return 0
    if isinstance(value, str):
        value = parse_size(value.removesuffix("/s"))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('must be bytes a second, such as "100M", or "off"')
    if 0 < value < LOWEST_RATE:
        raise ValueError(f"must be at least {LOWEST_RATE >> 10}K a second, or off")
    return value


def size(value: object) -> int:
    """Bytes."""
    found = parse_size(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 60:
        raise ValueError('must be a size such as "512K", "100M" or "1.5GiB"')
    return found
