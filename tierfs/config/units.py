"""Numbers with units as people write them: ``10GiB``, ``30s``, ``500MB/s``."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

_BYTES = {
    "": 1,
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes that `text` stands for: ``512``, ``64KiB``, ``1.5GB``.

    Raises:
        ValueError: with the rule that `text` breaks.
    """
    number, unit = _split(text)
    scale = {name.lower(): value for name, value in _BYTES.items()}.get(unit.lower())
    if number is None or scale is None:
        raise ValueError('must be a size such as "512", "64KiB" or "1.5GB"')
    return int(number * scale)


def parse_duration(text: str) -> float:
    """Seconds that `text` stands for: ``30``, ``200ms``, ``30s``, ``10min``, ``1h``, ``7d``.

    Raises:
        ValueError: with the rule that `text` breaks.
    """
    number, unit = _split(text)
    scale = _SECONDS.get(unit)
    if number is None or scale is None:
        raise ValueError('must be a duration such as "200ms", "30s", "10min" or "1h"')
    return number * scale


def parse_rate(text: str) -> int:
    """Bytes a second that `text` stands for: ``500MB/s``, ``1GiB/s``.

    Raises:
        ValueError: with the rule that `text` breaks.
    """
    rule = 'must be a rate such as "500MB/s" or "1GiB/s"'
    amount, slash, per = text.rpartition("/")
    if not slash or per.strip() != "s":
        raise ValueError(rule)
    try:
        return parse_size(amount)
    except ValueError:
        raise ValueError(rule) from None


def format_size(count: float) -> str:
    """`count` bytes for people: three significant digits and a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
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


def _split(text: str) -> tuple[float | None, str]:
    match = _QUANTITY.fullmatch(text)
    return (float(match[1]), match[2]) if match else (None, "")
