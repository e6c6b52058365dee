"""A name that was made while nobody could be asked, and that turns out taken (DESIGN 4).

The same content settles it. Else the later close wins, and the other version is put away: nothing
is lost, and nobody has to act. What was closed last is told by the mtime of the two.
"""

from __future__ import annotations

import logging
import os
import stat

from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import Entry, SharedTier, Staged
from tierfs.writeback import steps
from tierfs.writeback.results import Applied, NothingToDo
from tierfs.writeback.steps import Call

log = logging.getLogger(__name__)

THEIRS = "another node made the name during an outage here, and closed its version earlier"
OURS = "another node made the name during an outage here, and closed its version later"


def publish(staged: Staged, known: int | None, shared: SharedTier, call: Call) -> Applied:
    """As `steps.publish`, where the name may be taken; `known`: by this inode we know it is.

    NothingToDo where the version there is the later one: what was staged is in quarantine then.
    """
    while True:
        try:
            return Applied(shared.publish_file(staged, call.place, call.name, RENAME_NOREPLACE))
        except FileExistsError:
            there = shared.lookup(call.place, call.name)
        if there is None:
            continue
        if stat.S_ISDIR(there.st.st_mode):
            raise IsADirectoryError(21, os.strerror(21), os.fsdecode(call.name))
        if there.st.st_ino == known or _same(staged, shared, call, there):
            return steps.publish(staged, shared, call)
        if there.st.st_mtime_ns > shared.staged_stat(staged).st_mtime_ns:
            kept = shared.quarantine_unpublished(staged, call.place, call.name, OURS)
            raise NothingToDo(f"{OURS}; ours is {kept}")
        _put_away(shared, call, there)


def rename(shared: SharedTier, call: Call) -> Applied:
    """As `steps.rename` of a file, where the new name may be taken."""
    while True:
        there = shared.lookup(call.place, call.name)
        if there is None or there.st.st_ino == call.inode:
            return steps.rename(shared, call)
        source = shared.lookup(call.source, call.name2)
        if source is None or stat.S_ISDIR(there.st.st_mode) or stat.S_ISDIR(source.st.st_mode):
            return steps.rename(shared, call)  # says what is wrong with that
        if there.st.st_mtime_ns > source.st.st_mtime_ns:
            kept = shared.quarantine(call.source, call.name2, source.st.st_ino, OURS)
            raise NothingToDo(f"{OURS}; ours is {kept}")
        _put_away(shared, call, there)


def _same(staged: Staged, shared: SharedTier, call: Call, there: Entry) -> bool:
    """Whether both hold the same content, as far as the tier has recorded it."""
    if staged.digest is None or not stat.S_ISREG(there.st.st_mode):
        return False
    if there.st.st_size != shared.staged_stat(staged).st_size:
        return False
    try:
        return shared.recorded_digest(call.place, call.name) == staged.digest
    except FileNotFoundError:
        return False


def _put_away(shared: SharedTier, call: Call, there: Entry) -> None:
    kept = shared.quarantine(call.place, call.name, there.st.st_ino, THEIRS)
    if kept is not None:
        log.warning("%s: %s; it is %s", shared.shown(call.place, call.name), THEIRS, kept)
