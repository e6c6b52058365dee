"""Why an op has to wait, for programs and for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tierfs.model import Op


class Reason(enum.Enum):
    """Why an op waits; the value is the sentence that people read, ``{}`` the op waited for."""

    OPEN = "is still open for writing"
    MARKED = "is stuck"
    BACK_OFF = "failed and is tried again"
    TEMPORARY = "has a temporary name, which is not sent before it is renamed or grows old"
    SETTLE = "is held until the removal of its directory has ended"
    SAME_NAME = "waits for an earlier change of the same name or file: {}"
    PARENT = "waits for its directory to be made: {}"
    EARLIER = "waits for what was issued before it: {}"
    LARGER = "waits for a larger file that was closed before it: {}"
    NEGATIVE = "waits for the name that says the directory is not whole: {}"
    OPEN_FILE = "waits for a file of its directory that is open for writing: {}"
    COMMIT_NAME = "waits until the name that makes its directory whole is removed: {}"
    WITHDRAWN = "is withdrawn while a file of its directory is missing: {}"
    REBUILT = "waits until its checkpoint is taken away or begun anew: {}"
    UNSEALED = "is held: {} is not sealed yet"
    REMOVAL = "is held: {}"
    HELD = "is held while what was saved before it is missing: {}"


_HELD = frozenset({Reason.WITHDRAWN, Reason.HELD, Reason.UNSEALED, Reason.REMOVAL})


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an op waits.

    Attributes:
        reason: the rule that holds it.
        by: the op that it waits for, if it waits for one.
        detail: what the sentence speaks of, if that is no op.
        until: when the wait ends by itself (monotonic seconds), if time ends it.
    """

    reason: Reason
    by: Op | None = None
    detail: str = ""
    until: float | None = None

    @property
    def held(self) -> bool:
        """Whether it waits for no op that goes on: accept, discard, a seal or a version ends it."""
        marked = self.by is not None and self.by.mark is not None
        return marked or self.reason in _HELD

    def sentence(self, op: Op, now: float) -> str:
        """One line about `op` for people."""
        spoken_of = self.detail if self.by is None else show(self.by)
        text = f"{show(op)} {self.reason.value.format(spoken_of)}"
        if self.reason is Reason.MARKED:
            return f"{text}: {op.mark}{f', {op.error}' if op.error else ''}"
        if self.by is not None and self.by.mark is not None:
            text += f" ({self.by.mark})"
        if self.until is not None:
            text += f" (for {max(0.0, self.until - now):.1f} s)"
        return text


def show(op: Op) -> str:
    """The path of `op`, quoted, for messages."""
    return repr(b"/".join(op.path).decode(errors="backslashreplace"))
