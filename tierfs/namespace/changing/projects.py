"""Renames and links that the shared file system refuses: between projects of XFS (EXDEV)."""

from __future__ import annotations

import errno
import os

from tierfs.model import Name
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import DirectoryState


async def check_projects(core: Core, old: DirectoryState, name: Name, new: DirectoryState) -> None:
    """OSError(EXDEV) if the committed entry `name` of `old` can get no name in `new`.

    Programs then copy it (mv(1) does), as on a local file system. What is pending is staged where
    it is to be, and can.
    """
    places = core.places
    if old is new or name in old.entries or not (places.exists(old.id) and places.exists(new.id)):
        return
    if not await core.at(new.id, core.shared.takes, core.place(old.id), name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(name))
