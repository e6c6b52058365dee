"""Where each object lies: on the local tier, or, *spilled*, in the staging area of the shared one.

Both sides look alike (``objects/ab/ID``), so an object is what it is wherever it lies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from tierfs.local import labels
from tierfs.local.fanout import FanOut, file_name
from tierfs.model import ObjectId
from tierfs.osio import OS

_MOVING = b".moving"
"""Ends the name of a copy that is not whole."""

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Spread:
    """The directories of objects of both sides. All methods but `is_spilled` block.

    An object that lies on both sides is being moved out, or its move was just over when the daemon
    died: it counts as spilled once its copy there has its name.

    Attributes:
        only_far: the local drive has failed.
        published: spilled objects whose file has its final name, too.
    """

    def __init__(self, system: OS, near: FanOut) -> None:
        self._system = system
        self._near: FanOut | None = near
        self.only_far = False
        self._far: FanOut | None = None
        self._spilled: set[ObjectId] = set()
        self.published: set[ObjectId] = set()

    def attach(self, root: int) -> None:
        """`root` holds the spilled objects. Takes stock of them and settles unfinished moves."""
        self._far = FanOut(self._system, root)
        for directory, name in self._far.others(_MOVING):
            self._system.unlink_at("spill.remove", self._far.at(directory), name)
        for object_id in list(self._far.ids()):
            self._spilled.add(object_id)
            _unlink(self._system, self.near, object_id)

    @property
    def far(self) -> FanOut:
        """The side on the shared tier. OSError(ENOSPC) where there is none."""
        if self._far is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._far

    @property
    def near(self) -> FanOut:
        """The side on the local tier. OSError(EIO) when its drive is gone."""
        if self._near is None:
            raise OSError(errno.EIO, "the local drive has failed")
        return self._near

    def let_go(self) -> None:
        """The drive of the local tier is gone: close all descriptors of it."""
        near, self._near = self._near, None
        if near is not None:
            near.close()

    def is_spilled(self, object_id: ObjectId) -> bool:
        """Whether the object lies on the shared tier."""
        return object_id in self._spilled

    def is_gone(self, object_id: ObjectId) -> bool:
        """Whether the object went with the local drive."""
        return self.only_far and object_id not in self._spilled

    def place_far(self, object_id: ObjectId) -> None:
        """An object of this id is, or will be made, on the shared tier."""
        assert self._far is not None
        self._spilled.add(object_id)

    def forget(self, object_id: ObjectId) -> None:
        """The object is removed."""
        self._spilled.discard(object_id)
        self.published.discard(object_id)

    def place(self, object_id: ObjectId) -> tuple[int, bytes] | None:
        """Directory and name of a spilled object; None of any other."""
        if object_id not in self._spilled:
            return None
        return self.far.directory(object_id), file_name(object_id)

    def directory(self, object_id: ObjectId, *, make: bool = False) -> int:
        """Descriptor of the directory that holds the object. ENOENT unless it exists or `make`."""
        fan = self.far if object_id in self._spilled else self.near
        return fan.directory(object_id, make=make)

    def ids(self) -> Iterator[ObjectId]:
        """Every object of both sides."""
        for object_id in self.near.ids():
            if object_id not in self._spilled:
                yield object_id
        yield from list(self._spilled)

    def foreign(self) -> Iterator[bytes]:
        """Paths below the local tier that are no objects."""
        return self.near.foreign()

    def close(self) -> None:
        """Close all descriptors."""
        self.let_go()
        if self._far is not None:
            self._far.close()

    # -- moving an object out --------------------------------------------------------------------

    def begin_move(self, object_id: ObjectId) -> int:
        """An empty file that is to be the object on the shared tier: its descriptor."""
        directory, name = self.far.directory(object_id, make=True), file_name(object_id) + _MOVING
        with contextlib.suppress(FileNotFoundError):
            self._system.unlink_at("spill.remove", directory, name)
        return self._system.open_at("spill.create", directory, name, _CREATE, 0o600)

    def abandon_move(self, object_id: ObjectId, fd: int) -> None:
        """The object stays where it is."""
        self._system.close("spill.close", fd)
        name = file_name(object_id) + _MOVING
        self._system.unlink_at("spill.remove", self.far.directory(object_id), name)

    def finish_move(self, object_id: ObjectId, source: int, fd: int) -> None:
        """All content of `source`, the object, is in `fd`: from here on it lies there.

        What was durable stays durable: the copy is on the shared drive before it has its name,
        and has its name there before the object goes from the local one.
        """
        system, directory, name = self._system, self.far.directory(object_id), file_name(object_id)
        copy_attributes(system, source, fd)
        system.fsync("spill.fsync", fd)
        system.rename_at("spill.complete", directory, name + _MOVING, directory, name)
        system.fsync_dir("spill.fsync_dir", directory)
        self._spilled.add(object_id)
        _unlink(system, self.near, object_id)

    def remove_published(self, object_id: ObjectId) -> list[tuple[int, int, int]]:
        """Remove the object; (inode, ctime_ns before, ctime_ns after) of the file if it was there.

        It lives on under its final name.
        """
        system, directory, name = self._system, self.far.directory(object_id), file_name(object_id)
        try:
            fd = system.open_at("spill.open", directory, name, os.O_PATH)
        except FileNotFoundError:
            return []
        try:
            before = system.fstat("spill.stat", fd)
            system.unlink_at("spill.remove", directory, name)
            after = system.fstat("spill.stat", fd)
        finally:
            system.close("spill.close", fd)
        return [(after.st_ino, before.st_ctime_ns, after.st_ctime_ns)]


def _unlink(system: OS, fan: FanOut, object_id: ObjectId) -> None:
    with contextlib.suppress(FileNotFoundError):
        system.unlink_at("spill.remove", fan.directory(object_id), file_name(object_id))


def copy_attributes(system: OS, source: int, target: int) -> None:
    """Give the descriptor `target` owner, mode, times and all xattrs of `source`."""
    st = system.fstat("local.clone", source)
    system.fchown("local.clone", target, st.st_uid, st.st_gid)
    for name in system.list_xattr("local.clone", source):
        value = labels.get(system, source, name)
        if value is not None:
            system.set_xattr("local.clone", target, name, value)
    system.fchmod("local.clone", target, stat.S_IMODE(st.st_mode))
    system.utime_fd("local.clone", target, st.st_atime_ns, st.st_mtime_ns)
