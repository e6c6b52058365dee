"""Whether content gets to a tier: by what moves, and where nothing does, by small writes.

How long one write takes says little: a piece of a large file may need a minute on a tier that is
slow. So nothing is concluded from that. When no byte moved for a while, the tier is asked to take
a few of ours, and only if it does not take these either it is called failing.
"""

from __future__ import annotations

from tierfs.health.health import Hysteresis, Limits, Reading, State

MOST_QUESTIONS = 4

PAUSE_SECONDS = 2.0
"""Between an answer and the next question, while still nothing moves."""

AGAIN_SECONDS = 10.0
"""After so long another question is put beside one that is not answered."""

SYNC_SECONDS = 30.0
"""A write that was taken may wait for so long until it is durable, behind all that was sent before
it: from then on the tier does not answer."""

_LIMITS = Limits()


class Content:
    """`now` is any clock that only goes forward. `quiet`, of several methods: for how many seconds
    something is on its way to the tier and nothing of it has moved, 0.0 if nothing is on its way.
    """

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._limits = limits
        self._asked = float("-inf")
        self._since: float | None = None
        self._taken = False
        self._error = ""
        self._shown = Hysteresis(limits.calm)

    def is_due(self, now: float, quiet: float, under_way: int) -> bool:
        """Whether the tier is to be asked now; `under_way` questions are not answered yet."""
        if quiet < self._limits.slow:
            self._since, self._error = None, ""
            return False
        pause = AGAIN_SECONDS if under_way else PAUSE_SECONDS
        if under_way >= MOST_QUESTIONS or now - self._asked < pause:
            return False
        self._asked = now
        if self._since is None:
            self._since, self._taken = now, False
        return True

    def taken(self) -> None:
        """What was written by a question is taken, and not durable yet."""
        self._taken = True

    def answered(self) -> None:
        """A question is answered, also by an error that a tier which works may give."""
        self._since, self._error = None, ""

    def failed(self, error: str) -> None:
        """A question was answered as a broken tier does."""
        self._since, self._error = None, error

    def read(self, now: float, quiet: float) -> Reading:
        """How the tier is, as far as content tells."""
        return self._shown.settle(now, self._judge(now, quiet))

    def _judge(self, now: float, quiet: float) -> Reading:
        limits = self._limits
        if quiet < limits.slow:
            return Reading(State.HEALTHY)
        if self._error:
            return Reading(State.FAILING, f"content: small writes fail: {self._error}")
        silent = 0.0 if self._since is None else now - self._since
        if silent >= (SYNC_SECONDS if self._taken else limits.hangs):
            return Reading(State.FAILING, f"content: nothing was taken for {quiet:.0f} s")
        if silent >= limits.slow or quiet >= limits.hangs:
            return Reading(State.SLOW, f"content: nothing has moved for {quiet:.0f} s")
        return Reading(State.HEALTHY)
