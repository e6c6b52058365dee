"""The setting ``groups``: names of directories that are checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tierfs.config.nearest import nearest

NO_PROFILE = "none"
PROFILE_NAMES = (
    "hf-trainer",
    "dcp",
    "lightning-sharded",
    "megatron",
    "deepspeed",
    "accelerate",
    "checkpoint_step",
    "others",
    NO_PROFILE,
)
_KEYS = ("pattern", "profile")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Directories whose whole name matches `pattern` are checkpoints of `profile`.

    Attributes:
        pattern: a regular expression from ``^`` to ``$``.
        profile: one of PROFILE_NAMES; NO_PROFILE: they are no checkpoints.
    """

    pattern: str
    profile: str


def parse_groups(value: object) -> tuple[GroupRule, ...]:
    """The rules in `value`, the tables ``[[groups]]`` of a configuration file.

    Raises:
        ValueError: with the rule that `value` breaks.
    """
    if not isinstance(value, list | tuple):
        raise ValueError("must be [[groups]] tables with pattern and profile")
    return tuple(_parsed(number, entry) for number, entry in enumerate(value, start=1))


def _parsed(number: int, entry: object) -> GroupRule:
    if isinstance(entry, GroupRule):
        entry = {"pattern": entry.pattern, "profile": entry.profile}
    if not isinstance(entry, dict):
        raise ValueError(f"entry {number} must be a table with pattern and profile")
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"entry {number}: unknown key {key!r}{nearest(key, _KEYS)}")
    if missing := [key for key in _KEYS if key not in entry]:
        raise ValueError(f"entry {number}: {missing[0]} is not set")
    return GroupRule(_pattern(number, entry["pattern"]), _profile(number, entry["profile"]))


def _pattern(number: int, value: object) -> str:
    if not isinstance(value, str) or not (value.startswith("^") and value.endswith("$")):
        raise ValueError(
            f"entry {number}: pattern must be a regular expression from ^ to $, such as "
            r"'^model_\d+$'"
        )
    try:
        re.compile(value.encode())
    except (re.error, UnicodeEncodeError) as error:
        raise ValueError(f"entry {number}: pattern is no regular expression: {error}") from None
    return value


def _profile(number: int, value: object) -> str:
    if value not in PROFILE_NAMES:
        near = nearest(str(value), PROFILE_NAMES)
        raise ValueError(f"entry {number}: unknown profile {value!r}{near}")
    return str(value)
