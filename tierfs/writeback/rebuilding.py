"""Which known directories are those of a checkpoint of which another generation stands now."""

from __future__ import annotations

from tierfs.errors import DirectoryGone
from tierfs.journal import Change, SaveDirectory
from tierfs.model import ObjectId
from tierfs.shared import Places, Rebuilt


def rebuilt(places: Places, top: ObjectId, directory: Rebuilt) -> list[Change]:
    """`directory` is one of the checkpoint `top`: learns its inode; what the journal has to note.

    Inodes come again, and ids are copied, or moved out of one generation while another keeps them:
    it is the one that is known to stand there.
    """
    id = directory.id if directory.path else top
    found = [] if id is None else places.carrying(id)
    found += filter(None, [places.at_inode(directory.old_inode)])
    record = next((each for each in found if _is_at(places, each.id, top, directory.path)), None)
    if record is None:
        return []
    tagged = directory.id == record.id
    places.made(record.id, directory.inode, tagged, None if tagged else directory.id)
    return [SaveDirectory(record)]


def _is_at(places: Places, directory: ObjectId, top: ObjectId, path: bytes) -> bool:
    """Whether `directory` is `path` below `top`."""
    try:
        return places.path(directory) == b"/".join(filter(None, (places.path(top), path)))
    except DirectoryGone:
        return False
