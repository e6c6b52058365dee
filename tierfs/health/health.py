"""The state of a tier that people see: it gets worse at once and better only after a while."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.IntEnum):
    """How a tier is, from good to bad."""

    HEALTHY = 0
    SLOW = 1  # it answers, and takes long
    FAILING = 2  # some calls fail or hang, others are answered
    DOWN = 3  # nothing was answered for a while

    @property
    def label(self) -> str:
        """The word for it in status, log and documents."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds.

    Attributes:
        slow: a usual call that takes longer is slow.
        hangs: one that lasts longer hangs.
        down: so long nothing is answered until the tier is down.
        calm: so long nothing may go wrong until the state gets better.
    """

    slow: float = 1.0
    hangs: float = 5.0
    down: float = 5.0
    calm: float = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The state at one time, and one line that says why; "" if there is nothing to say."""

    state: State
    reason: str = ""


class Hysteresis:
    """Shows what is worse at once, and what is better after `calm` seconds without trouble."""

    def __init__(self, calm: float) -> None:
        self._calm = calm
        self._shown = Reading(State.HEALTHY)
        self._worst_at = float("-inf")

    def settle(self, now: float, found: Reading) -> Reading:
        """What to show at `now`, when it is as `found` says."""
        if found.state >= self._shown.state:
            self._worst_at = now
            self._shown = found
        elif now - self._worst_at >= self._calm:
            self._shown = found
        return self._shown


_WEIGHT = 0.2
"""Of the newest call in the running mean of seconds."""


class Health:
    """Judges one kind of calls. `now` is any clock that only goes forward, in seconds."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self._mean = 0.0
        self._answered = float("-inf")
        self._failing_since: float | None = None
        self._error = ""
        self._shown = Hysteresis(limits.calm)

    def answered(self, now: float, seconds: float) -> None:
        """A call was answered at `now`, a missing name and the like included."""
        self._mean += _WEIGHT * (seconds - self._mean)
        self._answered = now
        self._failing_since = None

    def failed(self, now: float, error: str) -> None:
        """A call failed at `now` as calls on a broken tier do."""
        self._error = error
        if self._failing_since is None:
            self._failing_since = now

    def read(self, now: float, oldest: float = 0.0, hanging: int = 0) -> Reading:
        """The state now. `oldest`: seconds that the oldest call under way has lasted; `hanging`:
        how many have lasted longer than `Limits.hangs`.
        """
        return self._shown.settle(now, self._judge(now, oldest, hanging))

    def _judge(self, now: float, oldest: float, hanging: int) -> Reading:
        limits = self._limits
        unanswered = min(oldest, now - self._answered)
        if unanswered >= limits.down:
            return Reading(State.DOWN, f"nothing was answered for {unanswered:.0f} s")
        if self._failing_since is not None:
            if now - self._failing_since >= limits.down:
                return Reading(State.DOWN, f"every call fails: {self._error}")
            return Reading(State.FAILING, f"calls fail: {self._error}")
        if hanging:
            calls = "1 call hangs" if hanging == 1 else f"{hanging} calls hang"
            return Reading(State.FAILING, f"{calls}, the oldest for {oldest:.0f} s")
        if max(self._mean, unanswered) > limits.slow:
            return Reading(State.SLOW, f"calls take {max(self._mean, unanswered):.1f} s")
        return Reading(State.HEALTHY)


def worse(left: Reading, right: Reading) -> Reading:
    """The worse of two readings; `left` of two that are as bad."""
    return right if right.state > left.state else left
