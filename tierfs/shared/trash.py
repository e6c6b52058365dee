"""Removal of a checkpoint: it leaves its name in one rename, and is emptied out of sight."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from tierfs.model import Kind, Name, ObjectId
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import layout
from tierfs.shared.places import Place
from tierfs.shared.presence import Presence
from tierfs.shared.quarantine import Quarantine

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_LEFT = "it was in a checkpoint that was removed, and nobody removed it itself"


@dataclass(frozen=True, slots=True)
class Trashed:
    """Where a removed checkpoint stands now.

    Attributes:
        beside: under `name` in its old parent, because nothing can be renamed from there into the
            trash (EXDEV); else in the trash.
    """

    st: os.stat_result
    name: Name
    beside: bool


class Trash(Quarantine, Presence):
    """Blocking calls on ``.tierfs/trash``."""

    def trash(self, place: Place, name: Name, inode: int, group: ObjectId) -> Trashed:
        """Take the sealed checkpoint `name` away; may be called again after it failed.

        What is in it stays in it. Raises FileNotFoundError if it is gone, ESTALE if `name` is
        another one now.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            there = self.trashed(place, inode, group)
            if there is None:
                self.expect(place, directory, name, inode)
                self._discard(directory, name, layout.encode_id(group))
                there = self.trashed(place, inode, group)
            self.system.fsync_dir("trash.fsync_dir", directory)
        if there is None:
            raise FileNotFoundError(errno.ENOENT, "taken out of the trash", self.shown(place, name))
        return there

    def trash_older(self, place: Place, name: Name, inode: int, group: ObjectId) -> None:
        """Take away the sealed generation `inode` of `group`, of which a newer one is staged.

        May be called again; its being gone is fine.
        """
        self.visible(place, name)
        last = self.last_record(group)
        generation = 1 if last is None else max(1, last.generation - 1)
        with self.opened(place) as directory:
            trash = layout.superseded_name(group, generation)
            self.put_away(place, directory, name, inode, trash)
            self.system.fsync_dir("trash.fsync_dir", directory)

    def trashed(self, place: Place, inode: int, group: ObjectId) -> Trashed | None:
        """Where the directory `inode` of the removed `group`, once in `place`, stands; durable."""
        name = layout.encode_id(group)
        with self.control(layout.TRASH, make=True) as trash:
            if self.has_inode(trash, name, inode):
                self.system.fsync_dir("trash.fsync_trash", trash)
                return Trashed(self.system.stat_at("trash.stat", trash, name), name, False)
        name = layout.trash_beside(name)
        with self.opened(place) as directory:
            if self.has_inode(directory, name, inode):
                self.system.fsync_dir("trash.fsync_dir", directory)
                return Trashed(self.system.stat_at("trash.stat", directory, name), name, True)
        return None

    def sealed_groups(self, place: Place, is_group: Callable[[Name], bool]) -> list[Name]:
        """The checkpoints in `place` that stand under their final names."""
        with self.opened(place) as directory:
            found = self.system.list_dir("look.list", directory)
        return sorted(
            item.name
            for item in found
            if item.kind is Kind.DIRECTORY
            and not layout.hidden(place.path, item.name)
            and is_group(item.name)
        )

    def staged_groups(self, place: Place) -> list[Name]:
        """The final names of the directories in `place` that are staged like checkpoints."""
        with self.opened(place) as directory:
            found = self.system.list_dir("look.list", directory)
        named = [layout.unstaged_name(item.name) for item in found if item.kind is Kind.DIRECTORY]
        return sorted(name for name in named if name)

    def forget_group(self, group: ObjectId) -> None:
        """`group` is removed, and its directory is gone: remove its records and its manifest."""
        self._sweep_superseded(group)
        name = layout.encode_id(group)
        try:
            with self.control(layout.GROUPS, name) as directory:
                for item in self.system.list_dir("forget.list", directory):
                    if layout.is_group_file(item.name):
                        self.remove(directory, item.name)
            with self.control(layout.GROUPS) as groups:
                self.system.rmdir_at("forget.rmdir", groups, name)
                self.system.fsync_dir("forget.fsync_dir", groups)
        except FileNotFoundError:
            return

    def forget_removed(self, place: Place, name: Name, group: ObjectId) -> None:
        """As `forget_group`, when no generation of `group` stands as `name` in `place`, nor is
        staged there.
        """
        for there in (name, layout.staging_name(name)):
            found = self.lookup_staged(place, there)
            if found is not None and found.directory_id == group:
                return
        self.forget_group(group)

    def sweep_trash(self, keep_seconds: float) -> int:
        """Delete what nobody will empty: older generations, and empty directories.

        What has been there for longer than `keep_seconds`, and is not empty, holds files that
        nobody removed: it goes to quarantine. Returns how many checkpoints left the trash.
        """
        count = self._sweep_superseded(None)
        limit_ns = time.time_ns() - int(keep_seconds * 1_000_000_000)
        try:
            with self.control(layout.TRASH) as trash:
                for item in self.system.list_dir("trash.list", trash):
                    if not layout.is_id(item.name):
                        continue
                    st = self.system.stat_at("trash.stat", trash, item.name)
                    if st.st_ctime_ns < limit_ns:
                        count += self._remove_or_keep(trash, item.name, st.st_ino)
        except FileNotFoundError:
            return count
        return count

    def put_away(self, place: Place, directory: int, name: Name, inode: int, trash: Name) -> None:
        """Move what is `inode` under `name` into the trash as `trash`; none being there is fine."""
        if not self.has_inode(directory, name, inode):
            return
        self._discard(directory, name, trash)
        known = layout.trashed(trash)
        if known is not None and known[1] is not None:
            beside = layout.trash_beside(trash)
            if self.has_inode(directory, beside, inode):  # no sweep would find it there
                self._delete_superseded(place, directory, beside, known[0], known[1])

    def _discard(self, directory: int, name: Name, trash_name: Name) -> None:
        """The one rename, into the trash or, where that is another file system, beside it."""
        with self.control(layout.TRASH, make=True) as trash:
            target, new = trash, trash_name
            try:
                self.system.rename_at(
                    "trash.rename", directory, name, target, new, RENAME_NOREPLACE
                )
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                target, new = directory, layout.trash_beside(trash_name)
                self.system.rename_at(
                    "trash.rename", directory, name, target, new, RENAME_NOREPLACE
                )
            self.system.fsync_dir("trash.fsync_trash", trash)
            self.system.fsync_dir("trash.fsync_dir", directory)

    def _remove_or_keep(self, trash: int, name: Name, inode: int) -> bool:
        try:
            self.system.rmdir_at("trash.rmdir", trash, name)
            return True
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
        place = Place(layout.TRASH_PATH)
        return self.quarantine_at(place, trash, name, inode, _LEFT) is not None

    def _sweep_superseded(self, group: ObjectId | None) -> int:
        """Delete the older generations of `group`, or of all."""
        count = 0
        place = Place(layout.TRASH_PATH)
        try:
            with self.control(layout.TRASH) as trash:
                for item in self.system.list_dir("trash.list", trash):
                    known = layout.trashed(item.name)
                    if known is None or known[1] is None or group not in (None, known[0]):
                        continue
                    self._delete_superseded(place, trash, item.name, known[0], known[1])
                    count += 1
        except FileNotFoundError:
            return count
        return count

    def _delete_superseded(
        self, place: Place, directory: int, name: Name, group: ObjectId, generation: int
    ) -> None:
        """Delete an older generation, but for files that the newer one does not know of."""
        linked = self.read_linked(group, generation)
        top = self.system.open_at("trash.open", directory, name, _DIRECTORY)
        try:
            for found in self.walk_at(top):
                if found.kind is Kind.DIRECTORY or found.incarnation in linked:
                    continue
                folder, last = os.path.split(found.path)
                here = Place(os.path.join(place.path, name, folder).rstrip(b"/"))
                with self.opened(here) as parent:
                    self.quarantine_at(here, parent, last, found.inode, _LEFT)
        finally:
            self.system.close("trash.close", top)
        self.delete_tree(directory, name)
        self.forget_linked(group, generation)
