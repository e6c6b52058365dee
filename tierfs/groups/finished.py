"""Whether a checkpoint was finished that the job itself removes before it was sealed.

A job that keeps one checkpoint removes it before it saves the next one. What it removes may be
what it keeps, or what is left of a save that failed; and once published that would look whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tierfs.groups.profiles import in_force
from tierfs.groups.writers import Process, State, Writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What is known of an unsealed checkpoint when its removal begins.

    Attributes:
        profile: what its name proposes.
        names: the paths of all files in it, committed or not; none is open or stuck.
        writers: who wrote in it; `remover` is who removes it.
        quiet_seconds: since something in it was last changed; `settle`: ``group_settle``.
        before: the files of the one before it, which is sealed or was removed; None: unknown.
    """

    profile: str
    names: frozenset[bytes]
    writers: Writers
    remover: Process
    quiet_seconds: float
    settle: float
    before: Collection[bytes] | None


def may_be_finished(removed: Removed) -> bool:
    """Whether one who wrote it removes it, all of them have closed what they wrote, and none died.

    And it holds what its profile requires.
    """
    writers = removed.writers
    if removed.remover not in writers.who_closed() or writers.who_wrote() != writers.who_closed():
        return False
    if writers.processes(State.KILLED, State.UNKNOWN):
        return False
    profile = in_force(removed.profile, removed.names)
    return all(need.met_by(removed.names) for need in profile.required)


def is_finished(removed: Removed) -> bool:
    """Whether something says, too, that nothing was to come: a save that failed is removed at once.

    Its end marker, the same files as in the one before it, or that it was left in peace.
    """
    if not may_be_finished(removed):
        return False
    marker = in_force(removed.profile, removed.names).end_marker.encode()
    return (
        (bool(marker) and marker in removed.names)
        or (removed.before is not None and removed.names == frozenset(removed.before))
        or removed.quiet_seconds >= removed.settle
    )
