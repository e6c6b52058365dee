"""The setting ``groups``: names of directories that are checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tierfs.config.nearest import nearest
from tierfs.config.tables import parse_tables

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
    return parse_tables(value, "groups", GroupRule, _parsed, required=("pattern", "profile"))


def _parsed(number: int, table: Mapping[str, Any]) -> GroupRule:
    return GroupRule(_pattern(number, table["pattern"]), _profile(number, table["profile"]))


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
