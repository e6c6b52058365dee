"""What is known of the directories in use, as text: for a worker that starts in an outage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tierfs.model import Kind, Name, ObjectId
from tierfs.namespace.outage.announced import Announced, Bare, Known
from tierfs.shared import Entry

MOST = 2000
"""Entries that are written down, of the directories used last."""

_TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_blocks", "st_rdev")


def spell(announced: Announced) -> str:
    """All that is known, as far as `MOST` goes."""
    said, count = [], 0
    for directory, known in announced.newest():
        count += len(known.names)
        if count > MOST:
            break
        said.append(
            {
                "id": int(directory), "here": _stat(known.here), "stamp": known.stamp,
                "names": {_text(name): _entry(each) for name, each in known.names.items()},
                "staged": [*map(_text, known.staged)], "removed": [*map(_text, known.removed)],
                "xattrs": {_text(name): value.hex() for name, value in known.xattrs.items()},
            }
        )  # fmt: skip
    return json.dumps(said[::-1])


def read(text: str) -> dict[ObjectId, Known]:
    """What `spell` made of it; ValueError, KeyError or TypeError for anything else."""
    return {
        ObjectId(each["id"]): Known(
            _read_stat(each["here"]),
            {_name(name): _read_entry(entry) for name, entry in each["names"].items()},
            {*map(_name, each["staged"])},
            {_name(name): bytes.fromhex(value) for name, value in each["xattrs"].items()},
            tuple(each["stamp"]),
            {*map(_name, each["removed"])},
        )
        for each in json.loads(text)
    }


def _text(name: Name) -> str:
    return os.fsdecode(name)


def _name(text: str) -> Name:
    return os.fsencode(text)


def _entry(entry: Entry | Bare) -> dict[str, Any]:
    if isinstance(entry, Bare):
        return {"kind": str(entry.kind), "inode": entry.inode}
    target = None if entry.target is None else _text(entry.target)
    return {"st": _stat(entry.st), "id": entry.directory_id, "target": target}


def _read_entry(said: Mapping[str, Any]) -> Entry | Bare:
    if "kind" in said:
        return Bare(Kind(said["kind"]), said["inode"])
    target, id_ = said["target"], said["id"]
    return Entry(
        _read_stat(said["st"]), None if id_ is None else ObjectId(id_),
        None if target is None else _name(target),
    )  # fmt: skip


def _stat(st: os.stat_result) -> list[int]:
    return [*map(int, st[:10]), *(getattr(st, name) for name in _TIMES)]


def _read_stat(said: list[int]) -> os.stat_result:
    return os.stat_result(said[:10], dict(zip(_TIMES, said[10:], strict=True)))
