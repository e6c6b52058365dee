"""Another file under a name that has one: the old one is kept, and nothing newer is lost."""

from __future__ import annotations

import errno
import os

from tierfs.errors import DirectoryGone
from tierfs.model import Name, OpKind
from tierfs.osio import RENAME_EXCHANGE
from tierfs.shared import layout
from tierfs.shared.jobs import Staged
from tierfs.shared.places import Place
from tierfs.shared.quarantine import Quarantine


class Mending(Quarantine):
    """Blocking calls for `tierfs verify --repair` and `tierfs salvage`."""

    def replace_kept(self, staged: Staged, place: Place, name: Name, inode: int, why: str) -> str:
        """Give `name`, which is `inode`, to the staged file; where the old one is kept now.

        The two change places in one step, so that a commit made at this moment is never lost: if
        it was not `inode` that came out, they change back. Raises DirectoryGone then, EINVAL where
        the file system cannot exchange names, EXDEV (remembered: stage again).
        """
        self.visible(place, name)
        with self.opened(place) as directory, self.opened_staging(staged.beside) as source:
            self.expect(place, directory, name, inode)
            self._swap(source, staged, directory, name)
            if not self.has_inode(source, staged.name, inode):
                self._swap(source, staged, directory, name)
                raise DirectoryGone(self.shown(place, name))
            self.system.fsync_dir("mend.fsync_dir", directory)
            path = os.path.join(place.path, name)
            here = place if staged.beside is not None else Place(b"")
            kept = self.quarantine_at(here, source, staged.name, inode, why, path)
        self.forget_marker(staged.row, staged.beside)
        return kept or self.shown(place, name)

    def _swap(self, source: int, staged: Staged, directory: int, name: Name) -> None:
        try:
            self.system.rename_at(
                "mend.exchange", source, staged.name, directory, name, RENAME_EXCHANGE
            )
        except OSError as error:
            if error.errno == errno.EXDEV:
                self.refuses_renames(directory)
            raise

    def stage_link(self, place: Place, name: Name, row: int, target: Place, new: Name) -> Staged:
        """A further link to the file `name`, staged to become `new` in `target`."""
        with (
            self.staging_of(OpKind.PUT, row, new, target) as (directory, temporary, beside),
            self.opened(place) as source,
        ):
            self.system.link_at("mend.link", source, name, directory, temporary)
            st = self.system.stat_at("mend.stat", directory, temporary)
        return Staged(OpKind.PUT, row, temporary, st.st_ino, None, beside)

    def discard_own(self, staged: Staged) -> None:
        """Remove what was staged, unless an exchange has put another file there."""
        with self.opened_staging(staged.beside) as source:
            mine = self.has_inode(source, staged.name, staged.inode)
        if mine:
            self.discard(staged)

    def put_in_quarantine(self, staged: Staged, path: bytes, why: str) -> str | None:
        """Keep what was staged in quarantine, as what could not become `path`; where it is."""
        here = staged.beside or Place(b"")
        with self.opened_staging(staged.beside) as source:
            kept = self.quarantine_at(here, source, staged.name, staged.inode, why, path)
        self.forget_marker(staged.row, staged.beside)
        return kept

    def kept_already(self, path: bytes, size: int, mtime_ns: int) -> str | None:
        """Where the quarantine has a version of `path` with this size and mtime; None: nowhere."""
        for each in self.quarantined():
            if each.path != path:
                continue
            here, name = os.path.split(os.path.relpath(each.shown, self.root))
            with self.opened(Place(os.fsencode(here))) as directory:
                st = self.system.stat_at("mend.stat", directory, os.fsencode(name))
            if (st.st_size, st.st_mtime_ns) == (size, mtime_ns):
                return each.shown
        return None

    def knows_member(self, member: str) -> bool:
        """Whether the local tier `member` was ever mounted with this shared tier."""
        try:
            with self.control(layout.NODES, member.encode()):
                return True
        except FileNotFoundError:
            return False
