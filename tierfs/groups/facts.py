"""What is known of an unsealed checkpoint, and what follows from it: the value types of `judge`."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tierfs.groups.writers import Removal


@dataclass(frozen=True, slots=True)
class Found:
    """One file that is committed in the staging directory of the checkpoint.

    Attributes:
        stale: it is of an earlier generation: readable, but it counts for nothing.
        linked: it is that of the generation before: it counts, but no end marker is closed yet.
        index: the text of an index of shards (``*.index.json``); None for any other file, and
            for one too large to be read: then its shards are not looked at.
    """

    size: int
    inode: int
    stale: bool = False
    linked: bool = False
    index: bytes | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    """``tierfs commit``: someone says that the checkpoint is whole.

    Attributes:
        count: how many files it must have (``--expect``); None: as many as there are.
    """

    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that counts for one unsealed checkpoint; paths are relative to it, times seconds.

    Attributes:
        profile: what its name proposes (`Patterns.profile_of`).
        content: the files that are committed in staging.
        settle: ``Settings.group_settle``.
        quiet_seconds: since something in it was last opened for writing or changed.
        open_files: files that some process has open for writing.
        pending: files that are closed and not yet committed in staging, and names whose change
            or removal is not.
        negative: the name that says that it is not whole, such as ``step_5-unfinished``.
        stuck: files that cannot be committed: stuck, suspect or torn.
        doubtful: it has files of members of which it is not known whether they live.
        busy: another member that may live has not sent all that it has for it; "" if none has.
        lost: so has one that is gone, and will not.
        broken: another member said that files cannot be committed, and why; "" if none did.
        broken_files: which, as that member said.
        pointer: a pointer names it (also one that a later version has replaced since).
        commit: ``tierfs commit`` was called for it.
        sibling: a newer checkpoint stands beside it.
        followed: in a newer one every process that wrote here has closed a file
            (`writers.followed`).
        flush: ``tierfs flush --wait`` wants it sealed, on every node active in it.
        removal: whether those who removed files of it, and wrote none since, may be removing all.
        older_markers: the end markers that were closed before files of it were written over, by one
            who lives or was killed: they do not say that it is whole. So it is of the pointers, for
            which `writers.POINTER` stands.
        writers_gone: for that flush, nobody is left to write here (`writers.flush_may_seal`).
        sibling_names: the paths of the files in the newest sealed sibling; None: there is none.
    """

    profile: str
    content: Mapping[bytes, Found]
    settle: float
    quiet_seconds: float
    open_files: Collection[bytes] = ()
    pending: Collection[bytes] = ()
    negative: bytes | None = None
    stuck: Collection[bytes] = ()
    doubtful: bool = False
    busy: str = ""
    lost: str = ""
    broken: str = ""
    broken_files: Collection[bytes] = ()
    pointer: bool = False
    commit: Expect | None = None
    sibling: bool = False
    followed: bool = False
    flush: bool = False
    removal: Removal = Removal.NONE
    older_markers: Collection[bytes] = ()
    writers_gone: bool = False
    sibling_names: Collection[bytes] | None = None


class Decision(enum.StrEnum):
    """What is to be done with the checkpoint."""

    SEAL = "seal"  # publish it now
    WAIT = "wait"  # not yet
    UNSETTLED = "unsettled"  # nothing happens in it any more and nothing will seal it by itself
    BROKEN = "broken"  # files of it cannot be committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `judge` says.

    Attributes:
        profile: the name of the profile that counts.
        reason: one sentence for people, without a full stop.
        missing: what a whole checkpoint of this profile has and this one has not; also with
            SEAL, when only ``tierfs commit`` seals it.
        files: those that cannot be committed, with BROKEN.
        until_seconds: with WAIT: look again after so long even if nothing happens; None: only
            when something does.
        will_seal: with WAIT: if nothing happens until then, the answer is SEAL. A flush waits
            for it; False: there is nothing to wait for but somebody's doing.
    """

    decision: Decision
    profile: str
    reason: str
    missing: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    until_seconds: float | None = None
    will_seal: bool = False
