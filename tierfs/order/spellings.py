"""What the content of a pointer, or the target of a link, names (DESIGN 5, R2)."""

from __future__ import annotations

import re

MAX_NAMES = 32
_WORD = re.compile(rb"[^\s\0\"',:;{}\[\]()]+")


def spellings_in(content: bytes) -> list[list[bytes]]:
    """For each word of a pointer the directory names that it may stand for."""
    return [_spellings(word) for word in list(dict.fromkeys(_WORD.findall(content)))[:MAX_NAMES]]


def names_it(content: bytes, name: bytes) -> bool:
    """Whether a pointer that holds `content` leads to the directory `name` beside it."""
    return any(name in spellings for spellings in spellings_in(content))


def _spellings(word: bytes) -> list[bytes]:
    """The directory names that a word of a pointer may stand for."""
    first = word.strip(b"/").partition(b"/")[0]
    if not 0 < len(first) <= 255 or first in (b".", b".."):
        return []
    if first.isdigit():
        return [first, b"iter_" + first.lstrip(b"0").zfill(7)[:250]]
    return [first]
