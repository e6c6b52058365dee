"""The blocking part of each action: what runs in a thread, given immutable values only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tierfs.local import ObjectStore
from tierfs.model import OLDER, STAGED, XATTR_FIELD, Attributes, Kind, Name, ObjectId, Op, OpKind
from tierfs.osio import RENAME_EXCHANGE
from tierfs.shared import (
    TRASH_PATH,
    AttributeChange,
    Place,
    Places,
    SharedTier,
    Staged,
    staging_name,
    unstaged_name,
)
from tierfs.writeback.results import Applied, NothingToDo

UNLISTED = "it was never whole, no listing showed it, and the directory that held it was removed"

FROM_RECORD = frozenset({OpKind.RMDIR, OpKind.RENAME, OpKind.SEAL, OpKind.TRASH, OpKind.REOPEN})
"""Ops on a directory, which is found where it stands now."""


@dataclass(frozen=True, slots=True)
class Look:
    """A local object as it is now: what goes to the shared tier with, or without, its content."""

    attributes: Attributes
    xattrs: dict[bytes, bytes]
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class Call:
    """One op, with the directories that it concerns as they stood when the call was made.

    Attributes:
        group: what other nodes call the directory `object`, if it is one.
        place, place2: of `name` and `name2`; b"" as the name is the directory itself. Of REOPEN
            `place2` is the directory that it is about.
        inode: what is meant: by `name` of UNLINK, RMDIR and SETATTR, by `name2` of RENAME and
            LINK, and of the others what was staged. None: it is not on the shared tier.
        taken: the published checkpoint, as other nodes call it, that UNLINK or RENAME takes a
            name from, or in which PUT sends a log, and what leads to that in it.
    """

    row: int
    kind: OpKind
    object: ObjectId
    group: ObjectId
    place: Place
    name: Name
    place2: Place | None
    name2: Name
    inode: int | None
    flags: int
    replace: bool
    fields: tuple[str, ...]
    directories: dict[ObjectId, Place] = field(default_factory=dict)
    taken: tuple[ObjectId, bytes] | None = None

    @classmethod
    def of(cls, places: Places, op: Op, directories: tuple[ObjectId, ...]) -> Call:
        """What `op` says now; `directories` are those that it changes. Raises DirectoryGone."""
        place, name = places.place(op.parent), op.name
        place2, name2 = None if op.parent2 is None else places.place(op.parent2), op.name2 or b""
        record = places.record(op.object)
        if op.kind is OpKind.SETATTR and places.exists(op.object):
            place, name = places.place(op.object), b""
        elif op.kind is OpKind.RMDIR and record is not None:
            place, name = places.place(record.parent), record.name  # a checkpoint is in the trash
        elif op.kind is OpKind.RENAME and record is not None:
            place2, name2 = places.place(record.parent), record.name
        elif op.kind is OpKind.REOPEN:
            place2 = places.place(op.object)
        inode = op.staged_inode or op.base_inode
        older = op.kind is OpKind.TRASH and OLDER in op.fields
        if op.kind in FROM_RECORD and record is not None and not older:
            # a new generation since has made another one of it
            inode = op.staged_inode or record.inode or inode
        return cls(
            op.row, op.kind, op.object, places.group(op.object), place, name, place2, name2,
            place.inode if name == b"" else inode, op.flags, op.overwrites, op.fields,
            {directory: places.place(directory) for directory in directories},
            _taken_from(places, op, (place, name) if place2 is None else (place2, name2)),
        )  # fmt: skip

    @property
    def there(self) -> Name:
        """The name that it makes on the shared tier."""
        staged = self.kind is OpKind.MKDIR and STAGED in self.fields
        return staging_name(self.name) if staged else self.name

    @property
    def meant(self) -> int | None:
        """The inode that is to go; None: whichever has the name, it was never looked at."""
        return self.inode or None

    @property
    def source(self) -> Place:
        """The directory of `name2`."""
        assert self.place2 is not None
        return self.place2


def _taken_from(
    places: Places, op: Op, source: tuple[Place, Name]
) -> tuple[ObjectId, bytes] | None:
    if op.group is None or not (op.log or op.kind in (OpKind.UNLINK, OpKind.RENAME)):
        return None
    top = places.path(op.group)
    published = unstaged_name(os.path.basename(top)) is None
    above, name = source
    path = b"/".join((above.path, name))
    if not published or above.path.startswith(TRASH_PATH) or not path.startswith(top + b"/"):
        return None  # its manifest is made anew, or goes with it
    return places.group(op.group), path[len(top) + 1 :]


FinalCall = Callable[[SharedTier, Call], Applied]


def look(store: ObjectStore, object_id: ObjectId, kind: Kind | None) -> Look:
    """The attributes, xattrs and target of a local object."""
    attributes = store.attributes(object_id, kind)
    xattrs = {}
    for name in store.list_xattrs(object_id):
        try:
            xattrs[name] = store.get_xattr(object_id, name)
        except OSError as error:
            if error.errno != errno.ENODATA:  # removed since it was listed
                raise
    return Look(
        attributes,
        xattrs,
        store.target(object_id) if attributes.kind is Kind.SYMLINK else b"",
    )


def open_source(store: ObjectStore, object_id: ObjectId) -> tuple[int, Look, bool]:
    """A descriptor of a local file, its attributes, and whether somebody may still write to it."""
    # our own reading is no access of the application: its atime is sent, too
    fd = store.open_object(object_id, os.O_RDONLY | os.O_NOATIME)
    try:
        # of what is spilled the daemon alone has a descriptor
        written = not (store.spread.is_spilled(object_id) or store.has_no_writer(fd))
        return fd, look(store, object_id, Kind.FILE), written
    except BaseException:
        store.close_object(fd)
        raise


def stage(shared: SharedTier, call: Call, found: Look) -> Staged:
    """Stage the directory or the symlink of `call`."""
    if call.kind is OpKind.MKDIR:
        return shared.stage_directory(
            call.row, call.name, found.attributes, found.xattrs, call.object, place=call.place
        )
    return shared.stage_symlink(
        call.row, call.name, found.target, found.attributes, place=call.place
    )


def observed(final: FinalCall, shared: SharedTier, call: Call) -> Applied:
    """Make the final call of an op, and note the mtimes of its directories around it."""
    before = _mtimes(shared, call)
    applied = final(shared, call)
    return replace(applied, before=before, after=_mtimes(shared, call))


def publish(staged: Staged, shared: SharedTier, call: Call) -> Applied:
    """Give what was staged its final name."""
    if call.taken is not None:
        shared.strike(*call.taken)
    if call.kind is not OpKind.MKDIR:
        st = shared.publish_file(staged, call.place, call.name)
        return Applied(st)
    entry = shared.publish_directory(staged, call.place, call.there)
    tagged = entry.directory_id == call.object
    return Applied(
        entry.st,
        adopted=entry.st.st_ino != staged.inode,
        tagged=tagged,
        tag=None if tagged else entry.directory_id,
        xattrs=_xattrs(shared, call.place, call.there, entry.st),
    )


def rename(shared: SharedTier, call: Call) -> Applied:
    """Rename what stands under (place2, name2)."""
    if call.taken is not None:
        shared.strike(*call.taken)
    try:
        st = shared.rename(call.source, call.name2, call.place, call.name, call.inode, call.flags)
    except FileNotFoundError:
        raise NothingToDo("it was removed or renamed outside this mount") from None
    return Applied(st, other=_other(shared, call))


def link(shared: SharedTier, call: Call) -> Applied:
    """Give the file under (place2, name2) its further name."""
    assert call.inode is not None
    try:
        st = shared.link(
            call.source, call.name2, call.inode, call.place, call.name,
            row=call.row, replace=call.replace,
        )  # fmt: skip
    except FileNotFoundError:
        raise NothingToDo("its source was removed or renamed outside this mount") from None
    return Applied(st)


def remove(shared: SharedTier, call: Call) -> Applied:
    """Remove a name, if it still is what was meant."""
    if call.kind is OpKind.UNLINK:
        if call.taken is not None:
            shared.strike(*call.taken)
        shared.unlink(call.place, call.name, call.meant)
        return Applied(None)
    if not _rmdir(shared, call) and not (_give_up(shared, call) and _rmdir(shared, call)):
        raise NothingToDo("files that were not removed here are in it")
    if STAGED in call.fields and OLDER in call.fields:
        shared.forget_removed(call.place, unstaged_name(call.name) or call.name, call.group)
    elif STAGED in call.fields or call.place.path == TRASH_PATH:
        shared.forget_group(call.group)
    return Applied(None)


def _rmdir(shared: SharedTier, call: Call) -> bool:
    """False: the directory is not empty."""
    try:
        shared.rmdir(call.place, call.name, call.meant)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _give_up(shared: SharedTier, call: Call) -> bool:
    """Put the unlisted checkpoints in a removed directory away; False: it holds something else."""
    path = b"/".join(filter(None, (call.place.path, call.name)))
    return shared.quarantine_staged(Place(path, call.inode), UNLISTED)


def set_attributes(shared: SharedTier, call: Call, found: Look) -> Applied:
    """Give a committed entry those attributes of its local object that `fields` names."""
    st = shared.set_attributes(call.place, call.name, call.inode, _change(call.fields, found))
    if st is None:
        raise NothingToDo("it was removed or replaced outside this mount")
    if not any(field.startswith(XATTR_FIELD) for field in call.fields):
        return Applied(st)
    return Applied(st, xattrs=_xattrs(shared, call.place, call.name, st))


def _xattrs(
    shared: SharedTier, place: Place, name: Name, st: os.stat_result
) -> dict[bytes, bytes] | None:
    """What a directory has now: it is needed where the tier does not answer any more.

    That it cannot be read changes nothing: the op is on the tier.
    """
    if not stat.S_ISDIR(st.st_mode):
        return None
    path = b"/".join(filter(None, (place.path, name)))
    try:
        return shared.xattrs(Place(path, st.st_ino), b"")
    except OSError:
        return None


def outcome(shared: SharedTier, call: Call) -> Applied | None:
    """What became of an op whose final call may have happened: None when it has not."""
    if not shared.happened(call.kind, call.place, call.there, call.meant, call.group):
        return None
    entry = shared.lookup_staged(call.place, call.there)
    return Applied(
        None if entry is None else entry.st,
        after=_mtimes(shared, call),
        tagged=entry is not None and entry.directory_id == call.object,
        other=_other(shared, call),
    )


def _other(shared: SharedTier, call: Call) -> os.stat_result | None:
    """What an exchange left under the name that it came from."""
    if call.flags != RENAME_EXCHANGE:
        return None
    entry = shared.lookup(call.source, call.name2)
    return None if entry is None else entry.st


def _mtimes(shared: SharedTier, call: Call) -> dict[ObjectId, int]:
    """The mtime of each directory that `call` changes; one that cannot be seen is left out."""
    found = {}
    for directory, place in call.directories.items():
        try:
            entry = shared.lookup(place, b"")
        except OSError:
            continue
        if entry is not None:
            found[directory] = entry.st.st_mtime_ns
    return found


def set_directory_time(
    shared: SharedTier, place: Place, mtime_ns: int, expected_ns: int | None
) -> None:
    """Give a directory its mtime, unless it was changed since; None: unless it is as new."""
    if expected_ns is None:
        found = shared.lookup(place, b"")
        if found is None or found.st.st_mtime_ns >= mtime_ns:
            return
        expected_ns = found.st.st_mtime_ns
    change = AttributeChange(mtime_ns=mtime_ns)
    shared.set_attributes(place, b"", place.inode, change, if_mtime_ns=expected_ns)


def _change(fields: tuple[str, ...], found: Look) -> AttributeChange:
    attributes = found.attributes
    xattrs = [os.fsencode(f[len(XATTR_FIELD) :]) for f in fields if f.startswith(XATTR_FIELD)]
    owner, times = "owner" in fields, "times" in fields
    return AttributeChange(
        # a change of owner clears setuid and setgid on the shared tier too: say the mode again
        mode=attributes.mode if owner or "mode" in fields else None,
        uid=attributes.uid if owner else None,
        gid=attributes.gid if owner else None,
        atime_ns=attributes.atime_ns if times else None,
        mtime_ns=attributes.mtime_ns if times else None,
        xattrs={name: found.xattrs.get(name) for name in xattrs},
    )
