"""How a tier is, judged by what its calls answer and how fast. Pure: time is an argument."""

from tierfs.health.content import MOST_QUESTIONS, Content
from tierfs.health.failures import FAILURES, is_failure, name_of
from tierfs.health.health import Health, Limits, Reading, State, worse
from tierfs.health.silence import Silence

__all__ = [
    "FAILURES",
    "MOST_QUESTIONS",
    "Content",
    "Health",
    "Limits",
    "Reading",
    "Silence",
    "State",
    "is_failure",
    "name_of",
    "worse",
]
