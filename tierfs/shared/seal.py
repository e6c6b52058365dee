"""Publication of a whole checkpoint: one rename, and what has to be right before and after it.

Every step can be made again. What must survive the process between two steps is in the record
SEALING: the directory that is published, what stands under the final name and where that goes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence

from tierfs.model import Kind, Name, ObjectId, OpKind
from tierfs.osio import RENAME_EXCHANGE, RENAME_NOREPLACE
from tierfs.shared import layout
from tierfs.shared.groups import GroupState, ManifestLine, Record, Replaced
from tierfs.shared.places import Place
from tierfs.shared.presence import busy
from tierfs.shared.sums import Sums
from tierfs.shared.walk import Found, Incarnation

NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What renameat2(2) says where the file system knows no RENAME_EXCHANGE."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_TRIES = 5
_STALE = "an earlier run left it in a checkpoint that was written again, and did not write it again"
_REPLACED = "a checkpoint of the same name was saved over it"


class Sealing(Sums):
    """Blocking calls that publish a checkpoint. `name` is always the final name, `place` its
    parent.

    Attributes:
        can_exchange: the file system can exchange two names in one step (RENAME_EXCHANGE).
    """

    can_exchange = True

    def open_group(self, place: Place, name: Name, group: ObjectId, inode: int) -> Record:
        """Record that `group` is being written in the directory `inode`; may be called again.

        Others may have begun, or come to the end: then this member takes part, or comes too late.
        """
        last = self.last_record(group)
        if last is None or last.inode != inode:
            last = Record(state=GroupState.OPEN, inode=inode, path=_path(place, name))
        return self.begin(group, last) if last.is_unsealed else last

    def seal(
        self,
        place: Place,
        name: Name,
        group: ObjectId,
        inode: int,
        *,
        manifest: Sequence[ManifestLine],
        replaced: ObjectId | None = None,
        stale: Collection[Incarnation] = (),
        row: int = 0,
        alone: bool = False,
    ) -> os.stat_result:
        """Publish the directory `inode`, staged as ``.staging_NAME``, as `name`.

        Args:
            replaced: the removed checkpoint that may still stand under `name`: it goes where its
                TRASH would bring it. An older generation of `group` is deleted later. Anything
                else that stands there goes to quarantine.
            stale: files in it that go to quarantine before; those of `taken_back` take their place.
            row: that of the op.
            alone: only while no other member writes it; else BlockingIOError, however late that
                one began: before the record SEALING.

        Returns the attributes of `name`. Under `name` there is a whole checkpoint at any moment
        if there was one; only where the file system cannot exchange names there is none for a
        moment, and :meth:`finish_seal` goes on from there. Raises FileNotFoundError if it is not
        staged, ESTALE if something else is, BlockingIOError when another node interfered.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            if not self.has_inode(directory, name, inode):
                self.expect(place, directory, layout.staging_name(name), inode)
                back = self.taken_back(place, name, group, stale)
                self._prepare(place, directory, name, frozenset(stale), manifest, back, row)
                self.write_manifest(group, manifest, inode)
                self._publish_group(place, directory, name, group, inode, replaced, alone)
            return self._complete(place, directory, name, group, inode)

    def taken_back(
        self, place: Place, name: Name, group: ObjectId, stale: Collection[Incarnation]
    ) -> dict[bytes, Found]:
        """By path, what a seal of `group` puts in the place of its files `stale`.

        Those of the sealed generation, which stands as `name`: they were written over by one who
        was killed. What was removed or written again since is not among them.
        """
        last = self.last_record(group) if stale else None
        linked = frozenset() if last is None else self.read_linked(group, last.generation - 1)
        standing = self.lookup(place, name) if linked else None
        if standing is None:
            return {}
        staged = self.walk(Place(_path(place, layout.staging_name(name))))
        left = {found.path for found in staged if found.incarnation in stale}
        sealed = self.walk(Place(_path(place, name), standing.st.st_ino))
        return {
            found.path: found
            for found in sealed
            if found.path in left and found.incarnation in linked
        }

    def finish_seal(self, place: Place, name: Name, group: ObjectId) -> bool:
        """Go on with a seal of `group` that ended after it had changed `name`; whether it had.

        Any node may do that. A seal that only began is left to the node that wrote the checkpoint.
        """
        self.visible(place, name)
        record = self.last_record(group)
        if record is None or record.state is not GroupState.SEALING:
            return False
        with self.opened(place) as directory:
            if not self.has_inode(directory, name, record.inode):
                if not self._taken_away(directory, name, record.replaces):
                    return False
                staged = layout.staging_name(name)
                if not self.has_inode(directory, staged, record.inode):
                    return False
                self._rename_into_place(directory, name)
            self._complete(place, directory, name, group, record.inode)
        return True

    def finish_any_seal(self, place: Place, name: Name) -> bool:
        """`finish_seal` of whichever checkpoint stands under `name`, or is staged for it."""
        for candidate in (name, layout.staging_name(name)):
            entry = self.lookup_staged(place, candidate)
            group = None if entry is None else entry.directory_id
            if group is not None and self.finish_seal(place, name, group):
                return True
        return False

    # -- before the rename ------------------------------------------------------------------------

    def _prepare(
        self,
        place: Place,
        directory: int,
        name: Name,
        stale: frozenset[Incarnation],
        manifest: Sequence[ManifestLine],
        back: Mapping[bytes, Found],
        row: int,
    ) -> None:
        """What is staged holds what is to be published, and nothing else."""
        staged = Place(os.path.join(place.path, layout.staging_name(name)))
        step = "seal.open"
        top = self.system.open_at(step, directory, layout.staging_name(name), _DIRECTORY)
        try:
            if stale:
                self._remove_stale(staged, top, stale, Place(_path(place, name)), back, row)
            self.put_sums(Place(_path(place, name)), top, manifest)
        finally:
            self.system.close("seal.close", top)

    def _remove_stale(
        self,
        staged: Place,
        top: int,
        stale: frozenset[Incarnation],
        sealed: Place,
        back: Mapping[bytes, Found],
        row: int,
    ) -> None:
        before = self.system.fstat("seal.stat", top)
        for found in self.walk_at(top):
            if found.kind is Kind.DIRECTORY or found.incarnation not in stale:
                continue
            folder, last = os.path.split(found.path)
            here = Place(os.path.join(staged.path, folder).rstrip(b"/"))
            with self.opened(here) as parent:
                stays = found.path in back
                self.quarantine_at(here, parent, last, found.inode, _STALE, stays=stays)
                if stays:
                    old = Place(os.path.join(sealed.path, folder).rstrip(b"/"))
                    self._take_back(old, here, parent, last, back[found.path].inode, row)
        # frameworks sort checkpoints by the time of their directory
        self.system.utime_fd("seal.times", top, None, before.st_mtime_ns)
        self.system.fsync_dir("seal.fsync_staged", top)

    def _take_back(
        self, sealed: Place, staged: Place, target: int, name: Name, inode: int, row: int
    ) -> None:
        """Put the file `name` of the directory `sealed` over that of `staged`, open as `target`."""
        with self.opened(sealed) as source:
            self.expect(sealed, source, name, inode)
            try:
                with self.staging_of(OpKind.LINK, row, name, staged) as (staging, new, beside):
                    self.system.link_at("seal.link", source, name, staging, new)
                    self.system.rename_at("seal.take_back", staging, new, target, name)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    self.refuses_renames(target)
                raise
            self.system.fsync_dir("seal.fsync_folder", target)
        self.forget_marker(row, beside)

    # -- the rename -------------------------------------------------------------------------------

    def _publish_group(
        self,
        place: Place,
        directory: int,
        name: Name,
        group: ObjectId,
        inode: int,
        replaced: ObjectId | None,
        alone: bool,
    ) -> None:
        for _ in range(_TRIES):
            record = self._intend(place, directory, name, group, inode, replaced, alone)
            try:
                if record.replaces is None:
                    self._rename_into_place(directory, name)
                elif record.replaces.first:
                    self._put_replaced_away(place, directory, name, record.replaces)
                    self._rename_into_place(directory, name)
                else:
                    self._exchange(place, directory, name, record.replaces)
                return
            except (FileExistsError, FileNotFoundError):
                # somebody made or removed `name` since it was looked at
                self.expect(place, directory, layout.staging_name(name), inode)
            except OSError as error:
                if error.errno not in NO_EXCHANGE or not self.can_exchange:
                    raise
                self.can_exchange = False
        message = "its final name changes all the time"
        raise BlockingIOError(errno.EAGAIN, message, self.shown(place, name))

    def _intend(
        self,
        place: Place,
        directory: int,
        name: Name,
        group: ObjectId,
        inode: int,
        replaced: ObjectId | None,
        alone: bool,
    ) -> Record:
        """Record, durably, what is going to happen."""
        last = self.last_record(group)
        if alone and last is not None and last.is_unsealed and self.busy_ones(group, last)[0]:
            raise busy(last)
        generation = 1 if last is None else last.generation
        standing = self.lookup(place, name)
        old: Replaced | None = None
        if standing is not None:
            trash = None
            if standing.directory_id == group:
                trash = layout.superseded_name(group, generation - 1)
            elif replaced is not None and standing.directory_id in (replaced, None):
                trash = self._trash_of(replaced, standing.st.st_ino)
            old = Replaced(inode=standing.st.st_ino, trash=trash, first=not self.can_exchange)
        elif last is not None and last.state is GroupState.SEALING and last.inode == inode:
            old = last.replaces if self._taken_away(directory, name, last.replaces) else None
        return self.advance(
            group,
            Record(
                state=GroupState.SEALING,
                inode=inode,
                path=_path(place, name),
                generation=generation,
                replaces=old,
            ),
            after=0 if last is None else last.number,
        )

    def _trash_of(self, group: ObjectId, inode: int) -> Name:
        """Where the TRASH of `group` brings its directory `inode`."""
        last = self.last_record(group)
        if last is None or not last.is_unsealed or last.inode == inode:
            return layout.encode_id(group)
        return layout.superseded_name(group, max(1, last.generation - 1))

    def _exchange(self, place: Place, directory: int, name: Name, replaces: Replaced) -> None:
        staged = layout.staging_name(name)
        step = "seal.exchange"
        self.system.rename_at(step, directory, staged, directory, name, RENAME_EXCHANGE)
        self.system.fsync_dir("seal.fsync_dir", directory)
        out = self.system.stat_at("seal.stat", directory, staged)
        if out.st_ino != replaces.inode:  # somebody else's, put there since it was looked at
            self.quarantine_at(place, directory, staged, out.st_ino, _REPLACED)

    def _rename_into_place(self, directory: int, name: Name) -> None:
        staged = layout.staging_name(name)
        step = "seal.rename"
        self.system.rename_at(step, directory, staged, directory, name, RENAME_NOREPLACE)
        self.system.fsync_dir("seal.fsync_dir", directory)

    def _taken_away(self, directory: int, name: Name, replaces: Replaced | None) -> bool:
        """Whether an interrupted seal left `name` free after it took away what stood there."""
        if replaces is None or not replaces.first:
            return False
        try:
            self.system.stat_at("seal.stat", directory, name)
        except FileNotFoundError:
            return True
        return False

    # -- after it ---------------------------------------------------------------------------------

    def _complete(
        self, place: Place, directory: int, name: Name, group: ObjectId, inode: int
    ) -> os.stat_result:
        """`name` is the new one: put away what it replaced, and record it."""
        self.system.fsync_dir("seal.fsync_dir", directory)
        last = self.last_record(group)
        if last is not None and last.state is GroupState.SEALING and last.replaces is not None:
            staged = layout.staging_name(name)
            self._put_replaced_away(place, directory, staged, last.replaces)
        done = last is not None and last.state is GroupState.SEALED and last.inode == inode
        if not done:
            self.advance(
                group,
                Record(
                    state=GroupState.SEALED,
                    inode=inode,
                    path=_path(place, name),
                    generation=1 if last is None else last.generation,
                ),
            )
        return self.system.stat_at("seal.stat", directory, name)

    def _put_replaced_away(
        self, place: Place, directory: int, name: Name, replaces: Replaced
    ) -> None:
        if replaces.trash is not None:
            try:
                self.put_away(place, directory, name, replaces.inode, replaces.trash)
                return
            except FileExistsError:
                pass  # a part of it is in the trash already; this is nobody's any more
        self.quarantine_at(place, directory, name, replaces.inode, _REPLACED)


def _path(place: Place, name: Name) -> bytes:
    return os.path.join(place.path, name)
