"""Policies, and the rules that give one to a path."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tierfs.config import PolicyRule
from tierfs.config.policies import COMMITTED, LOG, WRITEBACK, WRITETHROUGH
from tierfs.model import Name
from tierfs.policies.patterns import matcher


class PolicyKind(enum.StrEnum):
    """What happens with a file; the words of the configuration."""

    WRITEBACK = "writeback"  # committed behind the application's back
    WRITETHROUGH = "writethrough"  # close and fsync return when it is committed
    SCRATCH = "scratch"  # stays on this node
    CACHE = "cache"  # read-only; the first read brings it to the local tier
    DIRECT = "direct"  # its content lies on the shared tier only
    LOG = "log"  # sent now and then while it is open; holds nothing


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds for a file.

    Attributes:
        fsync_committed, close_committed: what the call waits for: the commit, or the local tier.
        pattern: of the rule that says so; "": none does.
    """

    kind: PolicyKind
    fsync_committed: bool = False
    close_committed: bool = False
    pattern: str = ""


BUILT_IN = tuple(
    PolicyRule(pattern, LOG) for pattern in ("*.log", "*.out", "*.err", "events.out.tfevents.*")
)
"""Rules that hold where no other one matches."""

_DEFAULT = Policy(PolicyKind(WRITEBACK))


_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
"""Where no rule speaks of digits, paths that differ in their numbers alone are looked at once."""


class Policies:
    """The first of `rules` that matches a path counts, then the first of the built-in ones."""

    def __init__(self, rules: Sequence[PolicyRule] = ()) -> None:
        every = (*rules, *BUILT_IN)
        self._policies = [_policy(rule) for rule in every]
        groups = (b"(" + matcher(rule.pattern) + b")" for rule in every)
        self._pattern = re.compile(b"|".join(groups), re.DOTALL)
        digits = any(char.isdigit() or char == "[" for rule in every for char in rule.pattern)
        self._alike = None if digits else _DIGITS
        self.of_path = functools.lru_cache(maxsize=8192)(self._of_path)

    @property
    def default(self) -> Policy:
        """What holds for a path that no rule matches."""
        return _DEFAULT

    def of(self, path: Sequence[Name]) -> Policy:
        """The policy of the file to which the names in `path` lead from the root."""
        joined = b"/".join(path)
        return self.of_path(joined if self._alike is None else joined.translate(self._alike))

    def _of_path(self, path: bytes) -> Policy:
        found = self._pattern.fullmatch(path)
        if found is None:
            return _DEFAULT
        assert found.lastindex is not None
        return self._policies[found.lastindex - 1]


def _policy(rule: PolicyRule) -> Policy:
    through = rule.policy == WRITETHROUGH
    fsync, close = (
        through if value is None else value == COMMITTED for value in (rule.fsync, rule.close)
    )
    return Policy(PolicyKind(rule.policy), fsync, close, rule.pattern)
