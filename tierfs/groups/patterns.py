"""Which directory names are checkpoints, and the profile that each name proposes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from tierfs.config import NO_PROFILE, GroupRule
from tierfs.model import staging_name

NAME_BYTES = 255
"""The longest name (NAME_MAX): what leaves no room for the prefix of its staging is no checkpoint.
"""

BUILT_IN = (
    GroupRule(r"^checkpoint_step_\d+$", "checkpoint_step"),
    GroupRule(r"^checkpoint-\d+$", "hf-trainer"),
    GroupRule(r"^checkpoint_\d+$", "accelerate"),
    GroupRule(r"^global_step\d+$", "deepspeed"),
    GroupRule(r"^iter_\d{7}$", "megatron"),
    GroupRule(r"^step[-_]\d+$", "dcp"),
    GroupRule(r"^epoch=.*step=\d+\.ckpt$", "lightning-sharded"),
    GroupRule(r"^epoch_\d+_step_\d+$", "others"),
)
"""The patterns of DESIGN 6. Each ends in the number: what is added to a name, such as
``-unfinished`` or ``.orbax-checkpoint-tmp``, makes it no checkpoint. Bare numbers never are one:
too much else is called so."""


class Patterns:
    """The patterns in force: those of the configuration, then the built-in ones; the first that
    matches a name counts.

    Args:
        rules: ``Settings.groups``. The profile ``none`` makes the names that it matches no
            checkpoints; so a rule with a built-in pattern turns that one off.
    """

    def __init__(self, rules: Iterable[GroupRule] = ()) -> None:
        self._rules = [(re.compile(rule.pattern.encode()), rule) for rule in (*rules, *BUILT_IN)]
        self._tops = functools.lru_cache(maxsize=1024)(self._top)
        self._cached = functools.lru_cache(maxsize=8192)(self._look_up)

    def profile_of(self, name: bytes) -> str | None:
        """The profile that the directory name `name` proposes; None: it is no checkpoint."""
        return self._cached(name)

    def rule_of(self, name: bytes) -> GroupRule | None:
        """The rule that decides about the directory name `name`; None: no pattern matches it."""
        if len(staging_name(name)) > NAME_BYTES:
            return None
        # Not match(): `$` is content with a newline behind it.
        return next((rule for pattern, rule in self._rules if pattern.fullmatch(name)), None)

    def top(self, path: Sequence[bytes]) -> int | None:
        """Index in `path` (directory names from the root down) of the topmost checkpoint.

        What lies inside a checkpoint is part of it, whatever its name. None: there is none.
        """
        return self._tops(tuple(path))

    def _top(self, path: tuple[bytes, ...]) -> int | None:
        indexes = (index for index, name in enumerate(path) if self._cached(name) is not None)
        return next(indexes, None)

    def _look_up(self, name: bytes) -> str | None:
        rule = self.rule_of(name)
        return None if rule is None or rule.profile == NO_PROFILE else rule.profile


def number_of(name: bytes) -> tuple[int, ...]:
    """What orders checkpoints by their names: the numbers in `name`, the last first."""
    return tuple(int(digits) for digits in reversed(re.findall(rb"\d+", name)))
