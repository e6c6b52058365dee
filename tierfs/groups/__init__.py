"""Checkpoint groups (DESIGN 6): which directory is one, when it is whole, who writes in it.

Pure: no I/O, no await; time is an argument.
"""

from tierfs.groups.explain import rules_met
from tierfs.groups.facts import Decision, Expect, Facts, Found, Verdict
from tierfs.groups.finished import Removed, is_finished, may_be_finished
from tierfs.groups.judge import judge
from tierfs.groups.patterns import Patterns, number_of
from tierfs.groups.profiles import END_MARKERS, PROFILES, Profile, in_force
from tierfs.groups.writers import (
    POINTER,
    UNKNOWN,
    WORDS,
    Process,
    Removal,
    State,
    Writers,
    flush_may_seal,
    followed,
    listed,
    older_markers,
    removal,
)

__all__ = [
    "END_MARKERS",
    "POINTER",
    "PROFILES",
    "UNKNOWN",
    "WORDS",
    "Decision",
    "Expect",
    "Facts",
    "Found",
    "Patterns",
    "Process",
    "Profile",
    "Removal",
    "Removed",
    "State",
    "Verdict",
    "Writers",
    "flush_may_seal",
    "followed",
    "in_force",
    "is_finished",
    "judge",
    "listed",
    "may_be_finished",
    "number_of",
    "older_markers",
    "removal",
    "rules_met",
]
