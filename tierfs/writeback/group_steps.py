"""The blocking part of the actions on checkpoints: what runs in a thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tierfs.errors import DirectoryGone
from tierfs.model import AS_IS, OLDER, TRASH, Kind, Name, ObjectId, Reopen
from tierfs.order import names
from tierfs.order.classify import SMALL_BYTES
from tierfs.order.spellings import names_it
from tierfs.shared import Entry, Found, ManifestLine, Place, SharedTier, staging_name
from tierfs.writeback.results import Applied, NothingToDo
from tierfs.writeback.steps import Call, FinalCall


def seal(replaced: ObjectId | None) -> FinalCall:
    """The call that publishes a staged checkpoint.

    `replaced`: directory id of the removed checkpoint that may still stand under its name.
    """
    return partial(_seal, replaced)


def _seal(replaced: ObjectId | None, shared: SharedTier, call: Call) -> Applied:
    assert call.inode is not None
    record = shared.last_record(call.group)
    stale = record.stale if record is not None else frozenset()
    try:
        st = shared.seal(
            call.place, call.name, call.group, call.inode,
            manifest=_manifest(shared, call, stale), replaced=replaced, stale=stale, row=call.row,
            alone=call.flags != AS_IS,
        )  # fmt: skip
    except FileNotFoundError:
        raise NothingToDo("it was removed or renamed outside this mount") from None
    return Applied(st)


def _manifest(
    shared: SharedTier, call: Call, stale: frozenset[tuple[int, int]]
) -> list[ManifestLine]:
    staged = Place(b"/".join(filter(None, (call.place.path, staging_name(call.name)))), call.inode)
    try:
        found = shared.walk(staged)
        back = shared.taken_back(call.place, call.name, call.group, stale)
    except DirectoryGone:
        return []  # it is published already, by an attempt that did not come to its end
    return [
        _line(back.get(each.path, each))
        for each in found
        if _counts(each) and (each.incarnation not in stale or each.path in back)
    ]


def _counts(found: Found) -> bool:
    return found.kind is not Kind.DIRECTORY


def _line(found: Found) -> ManifestLine:
    return ManifestLine(found.path, found.size, found.mode, found.digest)


def trash(shared: SharedTier, call: Call) -> Applied:
    """Take a sealed checkpoint away in one rename."""
    assert call.inode is not None
    if OLDER in call.fields:
        shared.trash_older(call.place, call.name, call.inode, call.group)
        shared.forget_removed(call.place, call.name, call.group)
        return Applied(None)
    try:
        there = shared.trash(call.place, call.name, call.inode, call.group)
    except FileNotFoundError:
        raise NothingToDo("it was removed or renamed outside this mount") from None
    return Applied(None, stands=(None if there.beside else TRASH, there.name))


def reopen(skip: tuple[bytes, ...]) -> FinalCall:
    """The call that begins a new generation; `skip`: paths in it that were removed since."""
    return partial(_reopen, skip)


def _reopen(skip: tuple[bytes, ...], shared: SharedTier, call: Call) -> Applied:
    try:
        match Reopen(call.flags):
            case Reopen.LINKED:
                rebuilt = shared.reopen_linked(
                    call.place, call.name, call.group, call.row, skip=skip
                )
                return Applied(None, rebuilt=tuple(rebuilt), stands=(None, staging_name(call.name)))
            case Reopen.WHOLE:
                assert call.inode is not None
                shared.reopen_whole(call.place, call.name, call.group, call.inode)
                return Applied(None, stands=(None, staging_name(call.name)))
            case Reopen.UNLISTED:
                shared.reopen_unlisted(call.source, call.group)
                return Applied(None)
            case Reopen.GIVEN_UP:
                return _give_up(shared, call)
    except FileNotFoundError:
        raise NothingToDo("it was removed or renamed outside this mount") from None


def _give_up(shared: SharedTier, call: Call) -> Applied:
    standing = tuple(shared.give_up_next(call.place, call.name, call.group))
    sealed = shared.lookup(call.place, call.name)
    if not standing or sealed is None:
        raise NothingToDo("another node writes it")
    return Applied(sealed.st, rebuilt=standing, stands=(None, call.name))


def record_open(shared: SharedTier, call: Call, inode: int) -> None:
    """Say on the shared tier that a checkpoint is being written."""
    shared.open_group(call.place, call.name, call.object, inode)


def take_part(made: Applied, fresh: bool, shared: SharedTier, call: Call) -> Applied:
    """Say that this member writes the checkpoint that the MKDIR `call` has `made`, or found.

    Another node may have made it at the same moment: all write as one what is one directory,
    whatever each calls it. It may have published it, too; where nothing of that name was known here
    (`fresh`) that is the directory which is meant, and what was made beside it is taken back.
    """
    assert made.st is not None
    standing = shared.lookup(call.place, call.name) if fresh and made.tag is None else None
    published = standing is not None and standing.directory_id not in (None, call.object)
    if published and _taken_back(shared, call, made.st.st_ino):
        assert standing is not None
        shared.forget_group(call.object)
        return replace(
            made, st=standing.st, adopted=True, tagged=False, tag=standing.directory_id,
            stands=(None, call.name), xattrs=None,
        )  # fmt: skip
    if made.tag is None:
        shared.open_group(call.place, call.name, call.object, made.st.st_ino)
    else:
        shared.forget_group(call.object)
        shared.join_group(call.place, call.name, made.tag, made.st.st_ino)
    return made


def _taken_back(shared: SharedTier, call: Call, inode: int) -> bool:
    """Whether the directory that was just made could be removed: nobody has used it."""
    try:
        return shared.rmdir(call.place, call.there, inode)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def published_elsewhere(shared: SharedTier, place: Place, name: Name, inode: int) -> Entry | None:
    """What stands as `name` in `place`, if it is the staged checkpoint `inode`."""
    found = shared.lookup(place, name)
    return found if found is not None and found.st.st_ino == inode else None


def other_sealed(
    is_group: Callable[[Name], bool],
    going: frozenset[tuple[Name, int | None]],
    shared: SharedTier,
    place: Place,
) -> bool:
    """Whether a sealed checkpoint stands in `place` that is not one of `going`: name, inode."""
    for name in shared.sealed_groups(place, is_group):
        found = shared.lookup(place, name)
        if found is not None and (name, found.st.st_ino) not in going:
            return True
    return False


def leading_to(name: Name, shared: SharedTier, place: Place) -> list[Name]:
    """The pointers and symbolic links in `place` that lead to `name` now."""
    return [
        each for each, (kind, _) in shared.listing(place).items()
        if (kind is Kind.SYMLINK and name in _target(shared, place, each).split(b"/"))
        or (kind is Kind.FILE and names_it(_content(shared, place, each), name))
    ]  # fmt: skip


def _target(shared: SharedTier, place: Place, name: Name) -> bytes:
    entry = shared.lookup(place, name)
    return b"" if entry is None or entry.target is None else entry.target


def _content(shared: SharedTier, place: Place, name: Name) -> bytes:
    """The content of a pointer; none where it is no pointer, too large to be one, or gone."""
    if names.role(name) is not names.Role.POINTER:
        return b""
    try:
        fd, st = shared.open_file(place, name, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        if st.st_size > SMALL_BYTES:
            return b""
        return shared.system.pread("pointer.read", fd, SMALL_BYTES, 0)
    finally:
        shared.system.close("pointer.close", fd)
