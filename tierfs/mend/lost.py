"""A mount whose journal is lost: what its local tier holds is salvaged first, then it begins anew.

Only what is on the shared tier, under its name or beside, may be swept from the local one: so the
journal is set aside when nothing failed, and until then nothing was changed here.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tierfs.config.groups import GroupRule
from tierfs.errors import TierfsError
from tierfs.journal import Journal
from tierfs.local import ObjectStore, note_salvage
from tierfs.mend.salvage import Salvaged, salvage
from tierfs.osio import OS, make_os

JOURNAL = "journal.db"
MEMBER_FILE = b"MEMBER"
_PARTS = ("", "-wal", "-shm")
"""The database first: without it, what is left of it counts as lost, too."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A local tier with a fresh journal.

    Attributes:
        journal: where the lost one is kept, None if there was none.
    """

    salvaged: Salvaged
    journal: Path | None


def is_missing(local: Path) -> bool:
    """Whether `local` has been used and has no journal. Blocks; OSError."""
    system = make_os()
    try:
        directory = system.open_root("lost.open", os.fspath(local))
    except FileNotFoundError:
        return False
    try:
        names = {item.name for item in system.list_dir("lost.list", directory)}
    finally:
        system.close("lost.open", directory)
    if MEMBER_FILE not in names or JOURNAL.encode() in names:
        return False
    store = ObjectStore.open(local, system)
    try:
        return not store.is_empty()
    finally:
        store.close()


def begin_anew(local: Path, shared: Path, groups: tuple[GroupRule, ...]) -> Begun:
    """Salvage `local` and give it a fresh journal. Blocks; may be called again after a crash.

    Raises TierError or OSError, and TierfsError if something could not be kept: `local` is then
    as it was.
    """
    system = make_os()
    done = salvage(local, shared, None, all_closed=False, groups=groups, everything=True)
    if done.failed:
        first = done.failed[0]
        raise TierfsError(
            f"{len(done.failed)} files of {local} could not be brought to {shared}, {first['path']}"
            f" for one: {first['why']}. Nothing was changed in {local}: mend that, and mount again"
        )
    store = ObjectStore.open(local, system)
    try:
        note_salvage(system, local, _summary(done))
        kept = _set_aside(system, local)
        Journal.open(local / JOURNAL, system, create=True).close()
    finally:
        store.close()
    return Begun(done, kept)


def _summary(done: Salvaged) -> bytes:
    counts = {
        "format": 1,
        "time_ns": time.time_ns(),
        "committed": len(done.committed),
        "same": done.same,
        "beside": len(done.beside),
        "unsealed": done.unsealed[:8],
        "attribute_changes_lost": done.stubs,
        "special_files_lost": done.special,
    }
    return json.dumps(counts).encode() + b"\n"


def _set_aside(system: OS, local: Path) -> Path | None:
    kept = None
    suffix = f".lost-{time.time_ns()}"
    directory = system.open_root("lost.open", os.fspath(local))
    try:
        for part in _PARTS:
            name = JOURNAL + part
            try:
                system.rename_at(
                    "lost.rename", directory, name.encode(), directory, (name + suffix).encode()
                )
            except FileNotFoundError:
                continue
            kept = kept or local / (name + suffix)
        system.fsync_dir("lost.fsync", directory)
    finally:
        system.close("lost.open", directory)
    return kept
