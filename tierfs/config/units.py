"""Numbers with units: durations as people write them, sizes and durations for people."""

from __future__ import annotations

import re

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTPkmgtp]?)(iB|ib|B|b)?\s*")

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds that `text` stands for: ``30``, ``200ms``, ``30s``, ``10min``, ``1h``, ``7d``.

    Raises:
        ValueError: with the rule that `text` breaks.
    """
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in _SECONDS:
        raise ValueError('must be a duration such as "200ms", "30s", "10min" or "1h"')
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """Bytes that `text` stands for: ``4096``, ``64K``, ``100M`` or ``100MiB``, ``1.5GB``.

    Letters alone and those with ``iB`` are powers of 1024, those with ``B`` of 1000.

    Raises:
        ValueError: with the rule that `text` breaks.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError('must be a size such as "512K", "100M" or "1.5GiB"')
    letter, unit = match[2].upper(), (match[3] or "").lower()
    base = 1000 if letter and unit == "b" else 1024
    return int(float(match[1]) * base ** " KMGTP".index(letter or " "))


def format_size(count: float) -> str:
    """`count` bytes for people: three significant digits and a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def format_duration(seconds: float) -> str:
    """`seconds` for people: the two largest units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
