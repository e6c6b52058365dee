"""Where objects lie: ``objects/ab/ID``, `ab` being the last two of the 16 hex digits of the id."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator

from tierfs.local.identity import OBJECTS
from tierfs.model import ObjectId
from tierfs.osio import OS, DirItem

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_ACL_DEFAULT = b"system.posix_acl_default"
_NO_ACL = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
_FAN = re.compile(rb"[0-9a-f]{2}")
_OBJECT = re.compile(rb"[0-9a-f]{16}")


def file_name(object_id: ObjectId) -> bytes:
    """The file name of an object."""
    return b"%016x" % object_id


class FanOut:
    """The up to 256 directories that hold the objects: made when needed, then kept open."""

    def __init__(self, system: OS, root: int, *, read_only: bool = False) -> None:
        self._system = system
        self._objects = system.open_at("local.open", root, OBJECTS, _DIRECTORY)
        self._fds: dict[int, int] = {}
        self._leads_nowhere = False
        self._lock = threading.Lock()
        try:
            if not read_only:
                self._make_neutral()
        except BaseException:
            system.close("local.open", self._objects)
            raise

    def directory(self, object_id: ObjectId, *, make: bool = False) -> int:
        """Descriptor of the directory that holds the object. ENOENT unless it exists or `make`;
        ENODEV while the descriptors lead nowhere.
        """
        if self._leads_nowhere:
            raise OSError(errno.ENODEV, "the shared tier is not mounted under its path")
        key = object_id & 0xFF
        fd = self._fds.get(key)
        if fd is None:
            with self._lock:
                fd = self._fds.get(key)
                if fd is None:
                    fd = self._fds[key] = self._open(b"%02x" % key, make)
        return fd

    def ids(self) -> Iterator[ObjectId]:
        """Every object, in the order of the disk."""
        for fan, item in self._items():
            if fan is not None and _is_object(fan, item.name):
                yield ObjectId(int(item.name, 16))

    def others(self, suffix: bytes) -> list[tuple[bytes, bytes]]:
        """(fan-out directory, name) of each file beside the objects whose name ends so."""
        items = list(self._items())
        return [(fan, item.name) for fan, item in items if fan and item.name.endswith(suffix)]

    def at(self, fan: bytes) -> int:
        """Descriptor of the fan-out directory of that name, which is there."""
        return self.directory(ObjectId(int(fan, 16)))

    def foreign(self) -> Iterator[bytes]:
        """Paths below the local tier that are no objects."""
        for fan, item in self._items():
            if fan is None:
                yield b"/".join((OBJECTS, item.name))
            elif not _is_object(fan, item.name):
                yield b"/".join((OBJECTS, fan, item.name))

    def turn(self, root: int | None) -> None:
        """All descriptors lead below directory `root` from now on; None: nowhere."""
        system = self._system
        with self._lock:
            if root is None:
                self._leads_nowhere = True
                nothing = system.open_nothing("local.nothing")
                for held in (*self._fds.values(), self._objects):
                    system.replace("local.replace", nothing, held)
                system.close("local.close", nothing)
                return
            self._lead(root, OBJECTS, self._objects)
            for key, held in self._fds.items():
                self._lead(self._objects, b"%02x" % key, held)
            self._leads_nowhere = False

    def _lead(self, directory: int, name: bytes, held: int) -> None:
        fd = self._system.open_at("local.open", directory, name, _DIRECTORY)
        try:
            self._system.replace("local.replace", fd, held)
        finally:
            self._system.close("local.close", fd)

    def close(self) -> None:
        """Close all descriptors; nothing the second time, when their numbers may be others'."""
        held, self._objects = self._objects, -1
        if held >= 0:
            for fd in (*self._fds.values(), held):
                self._system.close("local.close", fd)
            self._fds.clear()

    def _make_neutral(self) -> None:
        # Objects have owners and modes of their own: nothing may be inherited from where the
        # administrator put the tier (setgid, mount option grpid, a default ACL).
        system, fd = self._system, self._objects
        system.fchown("local.open", fd, os.geteuid(), os.getegid())
        system.fchmod("local.open", fd, 0o700)
        try:
            system.remove_xattr("local.open", fd, _ACL_DEFAULT)
        except OSError as error:
            if error.errno not in _NO_ACL:
                raise

    def _open(self, name: bytes, make: bool) -> int:
        try:
            return self._system.open_at("local.fan", self._objects, name, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        self._system.mkdir_at("local.fan", self._objects, name, 0o700)
        # Once for each of the 256, so that no sync of an object has to think of it.
        self._system.fsync_dir("local.fan", self._objects)
        return self._system.open_at("local.fan", self._objects, name, _DIRECTORY)

    def _items(self) -> Iterator[tuple[bytes | None, DirItem]]:
        """(fan-out directory or None, entry in it or what is no such directory)."""
        for top in self._list(b"."):
            if not _FAN.fullmatch(top.name):
                yield None, top
                continue
            try:
                items = self._list(top.name)
            except NotADirectoryError:
                yield None, top
                continue
            for item in items:
                yield top.name, item

    def _list(self, name: bytes) -> list[DirItem]:
        fd = self._system.open_at("local.list", self._objects, name, _DIRECTORY)
        try:
            return self._system.list_dir("local.list", fd)
        finally:
            self._system.close("local.list", fd)


def _is_object(fan: bytes, name: bytes) -> bool:
    return bool(_OBJECT.fullmatch(name)) and name.endswith(fan)
