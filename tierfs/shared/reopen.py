"""A sealed checkpoint that is written again: its next generation, staged beside the old one."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from tierfs.model import Attributes, Kind, Name, ObjectId, OpKind
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import layout
from tierfs.shared.attributes import apply_attributes
from tierfs.shared.groups import GroupState, Left, Record
from tierfs.shared.inner import Inner
from tierfs.shared.lookups import Entry
from tierfs.shared.places import Place
from tierfs.shared.presence import Others, busy
from tierfs.shared.seal import Sealing
from tierfs.shared.trash import Trashed
from tierfs.shared.walk import Found, Incarnation

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_PRIVATE_DIR = 0o700
_LEFT = "a node that is gone left it half written, and the checkpoint was changed elsewhere since"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One directory of a new generation.

    Attributes:
        path: from the top of the checkpoint; b"" is the top.
        old_inode: of the same directory of the sealed generation.
        id: its directory id, if it carries one.
    """

    path: bytes
    old_inode: int
    inode: int
    id: ObjectId | None


class Reopening(Sealing, Inner):
    """Blocking calls that begin a new generation of a checkpoint; each may be made again."""

    def reopen_linked(
        self,
        place: Place,
        name: Name,
        group: ObjectId,
        row: int,
        *,
        skip: Collection[bytes] = (),
    ) -> list[Rebuilt]:
        """Stage a new generation of the sealed checkpoint `name` that shares all its files.

        It becomes ``.staging_NAME``: made anew are its directories, with ids, owners, modes, ACLs
        and times; every file in it is a hard link. `skip` are paths from its top, of files and
        directories, that were removed since and are left out. `row` is that of the op.
        One that another node is writing there is gone on with; one that a lost node left goes to
        quarantine, as does another checkpoint that such a one began under the name. Unsealed
        checkpoints in it are no part of it, and move to the new one.

        Returns its directories. Raises FileNotFoundError if `name` is gone, FileExistsError if
        something else is staged, BlockingIOError while another node seals it or may be lost,
        EMLINK, and EXDEV where a file is on another file system.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            old = self.lookup(place, name)
            if old is None:
                raise FileNotFoundError(errno.ENOENT, "gone", self.shown(place, name))
            self._put_left_away(place, directory, name, group)
            self._put_another_away(place, directory, name, group)
            staged = self._free_staging(place, name)
            last = self.last_record(group)
            if staged is None:
                self._stage_next(place, directory, name, group, row, frozenset(skip), old)
            elif last is None or last.state is GroupState.SEALED or last.inode != staged:
                shown = self.shown(place, layout.staging_name(name))
                raise FileExistsError(errno.EEXIST, "another checkpoint is staged there", shown)
            elif last.state is GroupState.SEALING:
                self.begin(group, replace(last, state=GroupState.OPEN, replaces=None))
            else:
                self.begin(group, last)
            self.system.fsync_dir("reopen.fsync_dir", directory)
            return self._compare(directory, name)

    def join_group(self, place: Place, name: Name, group: ObjectId, inode: int) -> Record:
        """Take part in `group`, which another member has made in the directory `inode` just now.

        BlockingIOError while that publishes it.
        """
        last = self.last_record(group)
        if last is None or last.inode != inode:  # made by one that says so only afterwards
            return self.open_group(place, name, group, inode)
        staged = os.path.join(place.path, layout.staging_name(name))
        return self.reopen_unlisted(Place(staged, inode, group), group)

    def trash(self, place: Place, name: Name, inode: int, group: ObjectId) -> Trashed:
        """As above; a next generation that a lost node left staged goes to quarantine with it.

        BlockingIOError while it is not known whether it is lost.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            self._put_left_away(place, directory, name, group)
        return super().trash(place, name, inode, group)

    def reopen_whole(self, place: Place, name: Name, group: ObjectId, inode: int) -> Record:
        """Rename the sealed checkpoint `name` back to ``.staging_NAME``: it is not whole any more.

        What is in it belongs to the next generation, but an end marker in it says nothing of that.
        A next generation that another node left half written goes to quarantine.
        Raises FileNotFoundError if it is gone, ESTALE if it is not `inode`, FileExistsError if
        another checkpoint is staged, BlockingIOError while another node seals it.
        """
        self.visible(place, name)
        staged = layout.staging_name(name)
        with self.opened(place) as directory:
            if not self.has_inode(directory, staged, inode):
                self._put_left_away(place, directory, name, group, own=True)
                self._put_another_away(place, directory, name, group)
            last = self.last_record(group)
            if not self.has_inode(directory, staged, inode):
                self.expect(place, directory, name, inode)
                record = self._next(group, last, place, name, inode)
                self.write_linked(group, record.generation - 1, self._files(directory, name))
                last = self.begin(group, record)
                step = "reopen.rename"
                self.system.rename_at(step, directory, name, directory, staged, RENAME_NOREPLACE)
            elif last is None or last.state is not GroupState.OPEN:
                last = self.begin(group, self._next(group, last, place, name, inode))
            self.system.fsync_dir("reopen.fsync_dir", directory)
        return last

    def reopen_unlisted(self, place: Place, group: ObjectId) -> Record:
        """Begin to write the unsealed checkpoint `place` again, which dead writers left.

        The record says which files are in it now: they do not count (`Record.stale`), but if
        another member lives that takes part. Where that is not known yet, `settle_doubts` decides
        it later. To be called before anything is written to it.

        If it is the next generation of one that is sealed, what it shares with that counts. Raises
        BlockingIOError while another member may be lost that takes part in such a one.
        """
        parent, name = os.path.split(place.path)
        final = Place(parent), layout.unstaged_name(name) or name
        last = self.last_record(group)
        if last is not None and self._is_published_elsewhere(group, last):
            raise busy(last)
        shared = self._shared_with_sealed(*final, group, last)
        with self.opened(place) as top:
            files = (
                frozenset(
                    found.incarnation
                    for found in self.walk_at(top)
                    if found.kind is not Kind.DIRECTORY
                )
                - shared
            )
            inode = self.system.fstat("reopen.stat", top).st_ino
        if last is not None and last.is_unsealed:
            match self.others(group, last):
                case Others.LIVING:
                    return self.begin(group, last)
                case Others.UNKNOWN if shared:
                    raise busy(last)
                case Others.UNKNOWN:
                    left = Left(last.members - {self.member}, files)
                    doubtful = dict.fromkeys((*last.doubtful, left))
                    return self.begin(group, replace(last, doubtful=tuple(doubtful)))
            self.forget_others(group, last.members)
            if last.state is GroupState.OPEN and last.stale == files:
                return self.begin(group, replace(last, members=frozenset(), doubtful=()))
        record = self._next(group, last, *final, inode, files)
        if last is None or not shared or record.generation == last.generation:
            return self.begin(group, record)
        self.write_linked(group, record.generation - 1, shared)
        begun = self.begin(group, record)
        self.forget_linked(group, last.generation - 1)
        return begun

    def _is_published_elsewhere(self, group: ObjectId, last: Record) -> bool:
        """Whether another member that may live publishes it, which it does at once."""
        if last.state is not GroupState.SEALING or last.member == self.member:
            return False
        return self.others(group, last) is not Others.GONE

    def _shared_with_sealed(
        self, place: Place, name: Name, group: ObjectId, last: Record | None
    ) -> frozenset[Incarnation]:
        """The files of the sealed generation that stands as `name` while `group` has a next one."""
        if last is None or last.state is GroupState.SEALED:
            return frozenset()
        sealed = self.lookup(place, name)
        if sealed is None or sealed.directory_id not in (group, None):
            return frozenset()
        return self.read_linked(group, last.generation - 1)

    def settle_doubts(self, group: ObjectId, last: Record) -> Record:
        """Decide what of `last`, the state of `group`, is decided by now: whether those live who
        may have left files in it. The state after that.

        Raises BlockingIOError when another node changed the state at this moment.
        """
        rest, stale, gone = [], last.stale, frozenset[str]()
        for left in last.doubtful:
            if self.member in left.members and self.takes_part(group):
                continue
            match self.standing(group, left.members - {self.member}):
                case Others.UNKNOWN:
                    rest.append(left)
                case Others.GONE:
                    stale, gone = stale | left.files, gone | left.members
        if len(rest) == len(last.doubtful):
            return last
        record = replace(last, doubtful=tuple(rest))
        if gone:
            self.forget_others(group, gone)
            record = replace(
                record, state=GroupState.OPEN, generation=last.generation + 1, stale=stale,
                members=last.members - gone, why="", files=(),
            )  # fmt: skip
        return self.advance(group, record, after=last.number)

    def _files(self, directory: int, name: Name) -> list[Incarnation]:
        top = self.system.open_at("reopen.open", directory, name, _DIRECTORY)
        try:
            return [
                found.incarnation for found in self.walk_at(top) if found.kind is not Kind.DIRECTORY
            ]
        finally:
            self.system.close("reopen.close", top)

    def _next(
        self,
        group: ObjectId,
        last: Record | None,
        place: Place,
        name: Name,
        inode: int,
        stale: frozenset[Incarnation] = frozenset(),
    ) -> Record:
        """The record OPEN of the generation after the one that was sealed, or is abandoned."""
        generation = 2 if last is None else last.generation + 1
        if last is not None and last.is_unsealed and not stale:
            generation = last.generation  # an attempt that did not come to its rename
        return Record(
            state=GroupState.OPEN,
            inode=inode,
            path=os.path.join(place.path, name),
            generation=generation,
            stale=stale,
        )

    def _free_staging(self, place: Place, name: Name) -> int | None:
        """The inode of ``.staging_NAME``; None when there is none, or none any more."""
        entry = self.lookup_staged(place, layout.staging_name(name))
        if entry is not None and self.finish_any_seal(place, name):
            entry = self.lookup_staged(place, layout.staging_name(name))
        return None if entry is None else entry.st.st_ino

    def _put_left_away(
        self, place: Place, directory: int, name: Name, group: ObjectId, *, own: bool = False
    ) -> None:
        """Free ``.staging_NAME`` of a next generation of the sealed `group` that was left there.

        What others write there who live stays; what this member left goes if it is its `own` that
        is meant. Raises BlockingIOError while it is not known whether they live.
        """
        left, last = self._free_staging(place, name), self.last_record(group)
        if left is None or last is None or last.inode != left or last.state is GroupState.SEALED:
            return
        if self.member not in last.writers:
            match self.others(group, last):
                case Others.LIVING:
                    return
                case Others.UNKNOWN:
                    raise busy(last)
        elif not own:
            return
        self.quarantine_at(place, directory, layout.staging_name(name), left, _LEFT)
        self.forget_others(group, last.members)

    def _put_another_away(self, place: Place, directory: int, name: Name, group: ObjectId) -> None:
        """Free ``.staging_NAME`` of a checkpoint that is not `group`, begun by who is gone.

        It had removed `group`, and was lost before that came here. Raises BlockingIOError while
        another node writes it, or may do so; what this member writes stays.
        """
        entry = self.lookup_staged(place, layout.staging_name(name))
        another = None if entry is None else entry.directory_id
        if entry is None or another is None or another == group:
            return
        last = self.last_record(another)
        if last is None or last.inode != entry.st.st_ino or self.member in last.writers:
            return
        if self.others(another, last) is not Others.GONE:
            raise busy(last)
        self.quarantine_at(place, directory, layout.staging_name(name), last.inode, _LEFT)
        self.forget_others(another, last.members)

    def _stage_next(
        self,
        place: Place,
        directory: int,
        name: Name,
        group: ObjectId,
        row: int,
        skip: frozenset[bytes],
        old: Entry,
    ) -> None:
        try:
            self._link_and_publish(place, directory, name, group, row, skip, old)
        except OSError as error:
            if error.errno != errno.EXDEV or self.is_refused(directory):
                raise
            self.refuses_renames(directory)
            self._link_and_publish(place, directory, name, group, row, skip, old)

    def _link_and_publish(
        self,
        place: Place,
        directory: int,
        name: Name,
        group: ObjectId,
        row: int,
        skip: frozenset[bytes],
        old: Entry,
    ) -> None:
        last = self.last_record(group)
        with self.staging_of(OpKind.MKDIR, row, name, place) as (staging, temporary, beside):
            source = self.system.open_at("reopen.open", directory, name, _DIRECTORY)
            try:
                files = self._link_tree(source, staging, temporary, group, skip)
            finally:
                self.system.close("reopen.close", source)
            inode = self.system.stat_at("reopen.stat", staging, temporary).st_ino
            record = self._next(group, last, place, name, inode)
            self.write_linked(group, record.generation - 1, files)
            self.begin(group, record)
            staged = layout.staging_name(name)
            step = "reopen.rename"
            self.system.rename_at(step, staging, temporary, directory, staged, RENAME_NOREPLACE)
        self.system.fsync_dir("reopen.fsync_dir", directory)
        self.forget_marker(row, beside)

    def _link_tree(
        self, source: int, staging: int, temporary: Name, group: ObjectId, skip: frozenset[bytes]
    ) -> list[Incarnation]:
        """Make the new tree; every file of the old one, those that are left out included."""
        files, folders = [], [b""]
        self.system.mkdir_at("reopen.mkdir", staging, temporary, _PRIVATE_DIR)
        target = self.system.open_at("reopen.open", staging, temporary, _DIRECTORY)
        try:
            for found in self.walk_at(source):
                skipped = _within(found.path, skip)
                if found.kind is not Kind.DIRECTORY:
                    files.append(found.incarnation)
                    if not skipped:
                        self._link_one(source, target, found)
                elif not skipped:
                    self._make_one(target, found.path)
                    folders.append(found.path)
            for path in reversed(folders):  # the times of a directory, after what is put in it
                self._dress(source, target, path, group if not path else None)
        finally:
            self.system.close("reopen.close", target)
        return files

    def _link_one(self, source: int, target: int, found: Found) -> None:
        folder, name = os.path.split(found.path)
        with self.below_at(source, folder) as old, self.below_at(target, folder) as new:
            self.system.link_at("reopen.link", old, name, new, name)

    def _make_one(self, target: int, path: bytes) -> None:
        folder, name = os.path.split(path)
        with self.below_at(target, folder) as new:
            self.system.mkdir_at("reopen.mkdir", new, name, _PRIVATE_DIR)

    def _dress(self, source: int, target: int, path: bytes, id: ObjectId | None) -> None:
        """Give a new directory all that the old one has; `id`: that of the top."""
        with self.below_at(source, path) as old, self.below_at(target, path) as new:
            st = self.system.fstat("reopen.stat", old)
            tag = layout.encode_id(id) if id is not None else self.tag(old)
            if tag:
                self.system.set_xattr("reopen.id", new, layout.XATTR_ID, tag)
            xattrs = self.read_xattrs(old)
            apply_attributes(self.system, "reopen", new, Attributes.of(st), xattrs)
            self.system.fsync_dir("reopen.fsync_new", new)

    def _compare(self, directory: int, name: Name) -> list[Rebuilt]:
        """What is in both generations; what is in the old one and none of it goes along."""
        with (
            self.below_at(directory, name) as old,
            self.below_at(directory, layout.staging_name(name)) as new,
        ):
            inodes = {found.path: found.inode for found in self.walk_at(old)}
            inodes[b""] = self.system.fstat("reopen.stat", old).st_ino
            top = self.system.fstat("reopen.stat", new).st_ino
            id = layout.decode_id(self.tag(new))
            rebuilt = [Rebuilt(b"", inodes[b""], top, id)]
            for found in self.walk_at(new):
                if found.kind is Kind.DIRECTORY and found.path in inodes:
                    old_inode = inodes[found.path]
                    rebuilt.append(Rebuilt(found.path, old_inode, found.inode, found.directory_id))
            self.take_along(old, new)
        return rebuilt


def _within(path: bytes, tops: frozenset[bytes]) -> bool:
    """Whether `path` is one of `tops` or below one."""
    while path:
        if path in tops:
            return True
        path = os.path.dirname(path)
    return False
