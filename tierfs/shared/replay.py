"""After a crash: whether the last call of an op happened. docs/FORMAT.md has the table."""

from __future__ import annotations

from tierfs.model import REMOVALS, Name, ObjectId, OpKind
from tierfs.shared.places import Place
from tierfs.shared.seal import Sealing

AGAIN = frozenset({OpKind.SETATTR, OpKind.REOPEN})
"""Ops that are never taken for done: making them again does no harm."""


class Replay(Sealing):
    """The inode under the name is the evidence; xattrs are information and never looked at."""

    def happened(
        self,
        kind: OpKind,
        place: Place,
        name: Name,
        inode: int | None,
        group: ObjectId | None = None,
    ) -> bool:
        """Whether an op's change of (place, name) is there; if so, it is durable. Blocks.

        `inode` is the staged inode of PUT, MKDIR and SYMLINK, that of the source of RENAME and
        LINK, that of what UNLINK, RMDIR and TRASH remove, that of the directory of SEAL. `group`
        is the checkpoint of SEAL and TRASH; a seal that has changed the name is finished first.
        Raises DirectoryGone.
        """
        if kind is OpKind.TRASH and inode is not None and group is not None:
            return self.trashed(place, inode, group) is not None
        if kind is OpKind.SEAL and group is not None:
            self.finish_seal(place, name, group)
        with self.opened(place) as directory:
            if inode is None or kind in AGAIN:
                return False
            there = self.has_inode(directory, name, inode)
            done = not there if kind in REMOVALS else there
            if done:
                self.system.fsync_dir("replay.fsync_dir", directory)
        return done
