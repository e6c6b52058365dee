"""The commit point: one rename, and the fsync of the directory that makes it last."""

from __future__ import annotations

import errno
import os
import stat

from tierfs.errors import DirectoryGone
from tierfs.model import Name, OpKind
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared.jobs import Staged
from tierfs.shared.lookups import Entry, Lookups
from tierfs.shared.places import Place
from tierfs.shared.staging import Staging, lost


class Publishing(Staging, Lookups):
    """Gives what was staged its final name; all calls block.

    Each may be called again after it failed, and goes on where it stopped. They raise
    DirectoryGone if `place` is not there any more, FileNotFoundError if what was staged is gone
    (stage it again), and EXDEV if nothing can be renamed from staging into `place`: that is
    remembered, and what is staged again for that place is staged beside its final name.
    """

    def publish_file(
        self, staged: Staged, place: Place, name: Name, flags: int = 0
    ) -> os.stat_result:
        """Rename a staged file or symlink to `name`, over what is there, and make that durable.

        Returns its attributes after the rename. With RENAME_NOREPLACE raises FileExistsError.
        """
        guard = self.permitted if staged.kind is OpKind.MKDIR else self.visible
        guard(place, name)
        with self.opened(place) as directory:
            fd = self._find(staged, directory, name)
            try:
                self._rename(staged, place, directory, name, flags)
                self.system.fsync_dir(f"{staged.kind}.fsync_dir", directory)
                st = self.system.fstat(f"{staged.kind}.stat", fd)
            finally:
                self.system.close(f"{staged.kind}.close", fd)
        self.forget_marker(staged.row, staged.beside)
        return st

    def publish_directory(self, staged: Staged, place: Place, name: Name) -> Entry:
        """Rename a staged directory to `name`, or adopt the directory that is there already.

        That another node made it is success: what was staged is removed, and the entry is the
        other's. Raises FileExistsError if anything else has the name.
        """
        try:
            self.publish_file(staged, place, name, RENAME_NOREPLACE)
        except FileExistsError:
            entry = self.lookup_staged(place, name)
            if entry is None or not stat.S_ISDIR(entry.st.st_mode):
                raise
            with self.opened(place) as directory:
                self.system.fsync_dir("mkdir.fsync_dir", directory)
            self.discard(staged)
            return entry
        entry = self.lookup_staged(place, name)
        if entry is None:
            raise DirectoryGone(self.shown(place, name))
        return entry

    def _find(self, staged: Staged, directory: int, name: Name) -> int:
        """A descriptor of what was staged, be it still there or, by an earlier try, published."""
        with self.opened_staging(staged.beside) as source:
            for parent, candidate in ((source, staged.name), (directory, name)):
                try:
                    fd = self.system.open_at(f"{staged.kind}.find", parent, candidate, os.O_PATH)
                except FileNotFoundError:
                    continue
                found = False
                try:
                    found = self.system.fstat(f"{staged.kind}.stat", fd).st_ino == staged.inode
                finally:
                    if not found:
                        self.system.close(f"{staged.kind}.close", fd)
                if found:
                    return fd
        raise lost(staged)

    def _rename(self, staged: Staged, place: Place, directory: int, name: Name, flags: int) -> None:
        with self.opened_staging(staged.beside) as source:
            try:
                label = f"{staged.kind}.rename"
                self.system.rename_at(label, source, staged.name, directory, name, flags)
            except FileNotFoundError:
                if not self.has_inode(directory, name, staged.inode):
                    raise DirectoryGone(self.shown(place)) from None
            except OSError as error:
                if error.errno == errno.EXDEV:
                    self.refuses_renames(directory)
                raise

    def has_inode(self, directory: int, name: Name, inode: int) -> bool:
        """Whether `name` is there and is the inode `inode`."""
        try:
            return self.system.stat_at("look.stat", directory, name).st_ino == inode
        except FileNotFoundError:
            return False

    def expect(self, place: Place, directory: int, name: Name, inode: int | None) -> None:
        """Raise ESTALE if `name` is not `inode`, FileNotFoundError if it is gone."""
        found = self.system.stat_at("look.stat", directory, name)
        if inode not in (None, found.st_ino):
            raise DirectoryGone(self.shown(place, name))
