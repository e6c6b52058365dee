"""After a crash: whether the last call of an op happened. docs/FORMAT.md has the table."""

from __future__ import annotations

from tierfs.model import REMOVALS, Name, OpKind
from tierfs.shared.places import Place
from tierfs.shared.publish import Publishing


class Replay(Publishing):
    """The inode under the name is the evidence; xattrs are information and never looked at."""

    def happened(self, kind: OpKind, place: Place, name: Name, inode: int | None) -> bool:
        """Whether an op's change of (place, name) is there; if so, it is durable. Blocks.

        `inode` is the staged inode of PUT, MKDIR and SYMLINK, that of the source of RENAME and
        LINK, and that of what UNLINK and RMDIR remove. SETATTR is never taken for done: making
        it again does no harm. Raises DirectoryGone.
        """
        with self.opened(place) as directory:
            if inode is None or kind is OpKind.SETATTR:
                return False
            there = self.has_inode(directory, name, inode)
            done = not there if kind in REMOVALS else there
            if done:
                self.system.fsync_dir("replay.fsync_dir", directory)
        return done
