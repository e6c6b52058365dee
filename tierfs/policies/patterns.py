"""Shell patterns of paths as regular expressions."""

from __future__ import annotations

import fnmatch

_ANYWHERE = rb"(?:.*/)?"
_BELOW = rb".+"


def matcher(pattern: str) -> bytes:
    """A regular expression (to be matched with DOTALL, as a whole) for paths without a leading
    slash.
    """
    if "/" not in pattern:
        return _ANYWHERE + _component(pattern)
    parts = pattern.strip("/").split("/")
    if pattern.endswith("/"):
        parts.append("**")
    return b"".join(_part(part, last=index == len(parts) - 1) for index, part in enumerate(parts))


def _part(part: str, *, last: bool) -> bytes:
    if part == "**":
        return _BELOW if last else _ANYWHERE
    return _component(part) if last else _component(part) + b"/"


def _component(part: str) -> bytes:
    r"""`part` as an expression that matches no slash.

    ``fnmatch.translate`` gives ``(?s:…)\Z``, with ``.`` for what may be any character.
    """
    pieces, index = [], 0
    while index < len(part):
        char = part[index]
        close = part.find("]", index + 2) if char == "[" else -1
        if char == "*":
            pieces.append(b"[^/]*")
        elif char == "?":
            pieces.append(b"[^/]")
        elif close > 0:
            pieces.append(b"(?!/)" + _class(part[index : close + 1]))
            index = close
        else:
            pieces.append(_escaped(char))
        index += 1
    return b"".join(pieces)


def _class(text: str) -> bytes:
    translated = fnmatch.translate(text)
    return translated.removeprefix("(?s:").removesuffix(r")\Z").encode(errors="surrogateescape")


def _escaped(char: str) -> bytes:
    raw = char.encode(errors="surrogateescape")
    return raw if raw.isalnum() or raw[0] >= 0x80 else b"\\" + raw
