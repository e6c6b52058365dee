"""The setting ``policies``: what happens with files, by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tierfs.config.nearest import nearest
from tierfs.config.tables import parse_tables

WRITEBACK, WRITETHROUGH, SCRATCH = "writeback", "writethrough", "scratch"
CACHE, DIRECT, LOG = "cache", "direct", "log"
POLICY_NAMES = (WRITEBACK, WRITETHROUGH, SCRATCH, CACHE, DIRECT, LOG)
LOCAL, COMMITTED = "local", "committed"
_DURABLE = (WRITEBACK, WRITETHROUGH, DIRECT)
"""Policies that may be told what fsync and close are to wait for."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Files whose path matches `pattern` have `policy`.

    Attributes:
        pattern: a shell pattern (:mod:`tierfs.policies`).
        policy: one of POLICY_NAMES.
        fsync, close: LOCAL or COMMITTED: what the call waits for; None: as the policy has it.
    """

    pattern: str
    policy: str
    fsync: str | None = None
    close: str | None = None


def parse_policies(value: object) -> tuple[PolicyRule, ...]:
    """The rules in `value`, the tables ``[[policies]]`` of a configuration file.

    Raises:
        ValueError: with the rule that `value` breaks.
    """
    return parse_tables(
        value, "policies", PolicyRule, _parsed,
        required=("pattern", "policy"), optional=("fsync", "close"),
    )  # fmt: skip


def _parsed(number: int, table: Mapping[str, Any]) -> PolicyRule:
    policy = table["policy"]
    if policy not in POLICY_NAMES:
        near = nearest(str(policy), POLICY_NAMES)
        raise ValueError(f"entry {number}: unknown policy {policy!r}{near}")
    fsync, close = (_durable(number, key, policy, table.get(key)) for key in ("fsync", "close"))
    return PolicyRule(_pattern(number, table["pattern"]), policy, fsync, close)


def _pattern(number: int, value: object) -> str:
    if not isinstance(value, str) or not value.strip("/") or "\0" in value:
        raise ValueError(
            f"entry {number}: pattern must be a shell pattern such as '*.tmp', 'runs/*/plots/' or "
            "'datasets/**'"
        )
    return value


def _durable(number: int, key: str, policy: str, value: object) -> str | None:
    if value is None:
        return None
    if value not in (LOCAL, COMMITTED):
        raise ValueError(f"entry {number}: {key} must be {LOCAL} or {COMMITTED}")
    if policy not in _DURABLE:
        raise ValueError(f"entry {number}: {key} cannot be set with policy {policy}")
    return str(value)
