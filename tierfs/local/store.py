"""The objects of the local tier. All methods block, raise OSError, and may run in any thread."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tierfs.errors import TierError
from tierfs.local import labels
from tierfs.local.fanout import FanOut, file_name
from tierfs.local.identity import VERSION, Identity
from tierfs.local.reserve import Reserve
from tierfs.local.spread import Spread, copy_attributes
from tierfs.model import DEVICES, Attributes, Kind, Name, ObjectId
from tierfs.osio import OS, RENAME_EXCHANGE

# Whitelisted: appending is decided by the caller's offsets, direct I/O would need aligned buffers,
# truncation may concern another object, and the kernel passes flags that open(2) does not know.
_OPEN_FLAGS = os.O_ACCMODE | os.O_SYNC | os.O_DSYNC | os.O_NOATIME
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NO_LEASES = frozenset({errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})
_TARGET_BYTES = 4096

T = TypeVar("T")


class ObjectStore:
    """Content and attributes by object id, below one local directory that this process holds.

    Attributes:
        member: random id made with the local directory, 32 hex digits.
        boot_changed: see `remember_boot`.
        reserve: space that is kept for small files.
        spread: which objects lie on the shared tier instead.
    """

    def __init__(self, system: OS, root: int, identity: Identity, fan: FanOut) -> None:
        self._system = system
        self._root = root
        self._identity = identity
        self._fan = self.spread = Spread(system, fan)
        self.member = identity.member
        self.reserve = Reserve(system, root)

    @classmethod
    def open(cls, path: Path | str, system: OS) -> ObjectStore:
        """Lock the local tier `path` and set it up if it is empty.

        TierError, in one line, if it is missing, neither empty nor ours, of another format, in use
        (names the process), or cannot be written; nothing is made in it then.
        """
        name = os.fspath(path)
        with contextlib.ExitStack() as stack:
            try:
                root = system.open_root("local.open", name)
                stack.callback(system.close, "local.open", root)
                identity = stack.enter_context(Identity(system, name, root))
                fan = FanOut(system, root)
            except OSError as error:
                raise TierError(
                    f"local tier {name}: {error.strerror}: name a directory that exists and that "
                    "tierfs may write to"
                ) from error
            stack.pop_all()
        return cls(system, root, identity, fan)

    @property
    def boot_changed(self) -> bool:
        """Whether this is another boot, or another mount, than `remember_boot` last saw."""
        return self._identity.boot_changed

    def remember_boot(self) -> None:
        """Durably note this boot and mount: all that the last one left in doubt is marked."""
        self._identity.remember_boot()

    def note_end(self) -> None:
        """Tell who wants the tier next that it will be free soon: the mount is gone."""
        self._identity.note_end()

    # Making and removing

    def create(
        self,
        object_id: ObjectId,
        kind: Kind,
        *,
        mode: int,
        uid: int,
        gid: int,
        parent: ObjectId,
        name: Name,
        target: bytes = b"",
        rdev: int = 0,
    ) -> int:
        """Make an object; returns a descriptor open for reading and writing if a FILE, else -1.

        `target` is that of a SYMLINK, `rdev` the number of a device. EEXIST if the id is taken;
        after any error nothing is left.
        """
        with self._making(object_id, kind) as fd:
            labels.set_name(self._system, fd, parent, name)
            labels.set_kind(self._system, fd, kind)
            labels.set_device(self._system, fd, rdev)
            if target:
                self._system.pwrite_all("local.create", fd, target, 0)
            self._own(fd, mode, uid, gid)
        if kind is Kind.FILE:
            return fd
        self._system.close("local.create", fd)
        return -1

    def create_stub(
        self,
        object_id: ObjectId,
        attributes: Attributes,
        xattrs: dict[bytes, bytes],
        parent: ObjectId,
        name: Name,
        target: bytes = b"",
    ) -> None:
        """Make an object that has all but the content: a FILE is one hole of the right size.

        A SYMLINK has its `target`: its size is that of it. What has the id is replaced: a daemon
        that was killed before it wrote the row left it, perhaps half made.
        """
        self._unlink(object_id)
        system = self._system
        with self._making(object_id, attributes.kind) as fd:
            labels.set_name(system, fd, parent, name)
            labels.set_kind(system, fd, attributes.kind)
            labels.set_device(system, fd, attributes.rdev)
            if attributes.kind is Kind.FILE:
                system.set_xattr("local.create", fd, labels.STUB, b"")
                system.ftruncate("local.create", fd, attributes.size)
            if target:
                system.pwrite_all("local.create", fd, target, 0)
            for key, value in xattrs.items():
                system.set_xattr("local.create", fd, key, value)
            self._own(fd, attributes.mode, attributes.uid, attributes.gid)
            system.utime_fd("local.create", fd, attributes.atime_ns, attributes.mtime_ns)
        system.close("local.create", fd)

    def clone(self, source: ObjectId, target: ObjectId) -> bool:
        """Make `target` a reflink of the FILE `source`, attributes, xattrs and labels included.

        False where the file system cannot share blocks; nothing is left behind then.
        """
        system = self._system
        if self.spread.is_spilled(source):
            self.spread.place_far(target)
        elif self.spread.is_spilled(target):
            return False
        with self._opened(source, os.O_RDONLY) as source_fd:
            with self._making(target, Kind.FILE) as fd:
                cloned = system.clone("local.clone", source_fd, fd)
                if cloned:
                    copy_attributes(system, source_fd, fd)
            system.close("local.clone", fd)
        if not cloned:
            self.remove(target)
        return cloned

    def exchange(self, one: ObjectId, other: ObjectId) -> None:
        """Let two objects change ids, atomically: open descriptors stay with their files."""
        self._system.rename_at(
            "local.exchange", self._fan.directory(one), file_name(one),
            self._fan.directory(other), file_name(other), RENAME_EXCHANGE,
        )  # fmt: skip

    def remove(self, object_id: ObjectId) -> None:
        """Remove an object; no error if there is none. Open descriptors go on working."""
        self._unlink(object_id)
        self.spread.forget(object_id)

    def _unlink(self, object_id: ObjectId) -> None:
        name = file_name(object_id)
        with contextlib.suppress(FileNotFoundError):
            directory = self._fan.directory(object_id)
            try:
                self._system.unlink_at("local.remove", directory, name)
            except IsADirectoryError:
                self._system.rmdir_at("local.remove", directory, name)

    # Content

    def open_object(self, object_id: ObjectId, flags: int) -> int:
        """Open with the access mode, sync flags and O_NOATIME of `flags`; others are dropped."""
        return self._open(object_id, flags & _OPEN_FLAGS)

    def close_object(self, fd: int) -> None:
        """Close what `open_object` opened."""
        self._system.close("local.close", fd)

    def has_no_writer(self, fd: int) -> bool:
        """Whether nobody has the file open for writing or mapped; `fd` is read-only.

        True where the file system has no leases: there the daemon alone writes.
        """
        try:
            return self._system.has_no_writer("local.lease", fd)
        except OSError as error:
            if error.errno in _NO_LEASES:
                return True
            raise

    def is_idle(self, object_id: ObjectId) -> bool:
        """Whether nobody has the FILE open or mapped, through a passthrough file either.

        True of one that is missing, and where the file system has no leases.
        """
        try:
            with self._opened(object_id, os.O_RDONLY | os.O_NOATIME) as fd:
                return self._system.is_alone("local.idle", fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _NO_LEASES:
                return True
            raise

    def target(self, object_id: ObjectId) -> bytes:
        """The target of a SYMLINK."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            buffer = bytearray(_TARGET_BYTES)
            return bytes(buffer[: self._system.pread_into("local.target", fd, buffer, 0)])

    def is_stub(self, object_id: ObjectId) -> bool:
        """Whether its content is missing here."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            return labels.get(self._system, fd, labels.STUB) is not None

    def mark_complete(self, object_id: ObjectId) -> None:
        """The content of a stub has been fetched: it is a data object now."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            if labels.get(self._system, fd, labels.STUB) is not None:
                self._system.remove_xattr("local.complete", fd, labels.STUB)

    def sync(self, object_id: ObjectId) -> None:
        """Make content, attributes, xattrs and the entry of the object durable."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            self._system.fsync("local.fsync", fd)
        self._system.fsync_dir("local.fsync_dir", self._fan.directory(object_id))

    def sync_all(self, object_ids: Iterable[ObjectId]) -> dict[ObjectId, OSError]:
        """As `sync`, for many; returns those that failed."""
        failed: dict[ObjectId, OSError] = {}
        directories: dict[int, list[ObjectId]] = {}
        for object_id in object_ids:
            try:
                with self._opened(object_id, os.O_RDONLY) as fd:
                    self._system.fsync("local.fsync", fd)
                directories.setdefault(self._fan.directory(object_id), []).append(object_id)
            except OSError as error:
                failed[object_id] = error
        for directory, inside in directories.items():
            try:
                self._system.fsync_dir("local.fsync_dir", directory)
            except OSError as error:
                failed.update(dict.fromkeys(inside, error))
        return failed

    @contextmanager
    def own_file(self) -> Iterator[int]:
        """A read-only descriptor of a file of the local tier that is no object, for trials."""
        fd = self._system.open_at("local.open", self._root, VERSION, os.O_RDONLY)
        try:
            yield fd
        finally:
            self._system.close("local.open", fd)

    # Attributes

    def attributes(self, object_id: ObjectId, kind: Kind | None = None) -> Attributes:
        """What stat(2) says, with the kind that the object stands for.

        A caller that knows `kind` saves three system calls.
        """
        rdev = 0
        if kind is None or kind in DEVICES:
            with self._opened(object_id, os.O_RDONLY) as fd:
                st = self._system.fstat("local.stat", fd)
                kind = kind or self._kind(fd, st)
                rdev = labels.device_of(self._system, fd) if kind in DEVICES else 0
        else:
            st = self._where_it_lies(
                object_id, lambda at: self._system.stat_at("local.stat", at, file_name(object_id))
            )
        found = Attributes.of(st)
        return found if found.kind is kind else replace(found, kind=kind, rdev=rdev)

    def attributes_of(self, fd: int) -> Attributes:
        """As `attributes`, of the FILE that `open_object` or `create` opened as `fd`.

        EIO when it is there no more. Waits for no drive: the kernel has the inode of an open file
        in memory.
        """
        found = Attributes.of(self._system.fstat("local.stat", fd))
        if not found.nlink:
            raise OSError(errno.EIO, "the local tier lost a file that it needs")
        return found

    def kind(self, object_id: ObjectId) -> Kind:
        """What the object is."""
        return self.attributes(object_id).kind

    def set_attributes(
        self,
        object_id: ObjectId,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        size: int | None = None,
    ) -> None:
        """Change what is not None: size, owner, mode, times, in this order.

        So a change of the owner clears setuid and setgid, as on Linux, unless `mode` sets them.
        """
        system = self._system
        with self._opened(object_id, os.O_RDONLY if size is None else os.O_RDWR) as fd:
            if size is not None:
                system.ftruncate("local.setattr", fd, size)
            if uid is not None or gid is not None:
                owner = -1 if uid is None else uid
                system.fchown("local.setattr", fd, owner, -1 if gid is None else gid)
            if mode is not None:
                system.fchmod("local.setattr", fd, stat.S_IMODE(mode))
            if atime_ns is not None or mtime_ns is not None:
                system.utime_fd("local.setattr", fd, atime_ns, mtime_ns)

    def relabel(self, object_id: ObjectId, parent: ObjectId, name: Name) -> None:
        """Note the new name of the object, for salvage."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            labels.set_name(self._system, fd, parent, name)

    def get_xattr(self, object_id: ObjectId, name: bytes) -> bytes:
        """The value of `name`; ENODATA if there is none, or if it is one of ours."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            labels.check_readable(self._kind(fd), name)
            return self._system.get_xattr("local.xattr", fd, name)

    def set_xattr(self, object_id: ObjectId, name: bytes, value: bytes, flags: int = 0) -> None:
        """Set `name`; EPERM for our own, and for user.* of what is neither file nor directory.

        ENOSPC where the names could not be listed with it any more (`labels.check_listable`).
        """
        with self._opened(object_id, os.O_RDONLY) as fd:
            labels.check_writable(self._kind(fd), name)
            labels.check_listable(self._system.list_xattr("local.xattr", fd), name)
            self._system.set_xattr("local.xattr", fd, name, value, flags)

    def list_xattrs(self, object_id: ObjectId) -> list[bytes]:
        """The names of all xattrs but ours, trusted.* included (Linux hides those from users)."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            names = self._system.list_xattr("local.xattr", fd)
        return [name for name in names if not name.startswith(labels.UNLISTED)]

    def remove_xattr(self, object_id: ObjectId, name: bytes) -> None:
        """Remove `name`; ENODATA if there is none, EPERM as for `set_xattr`."""
        with self._opened(object_id, os.O_RDONLY) as fd:
            labels.check_writable(self._kind(fd), name)
            self._system.remove_xattr("local.xattr", fd, name)

    # The whole

    def ids(self) -> Iterator[ObjectId]:
        """Every object. One that is made or removed meanwhile may be missing or there."""
        return self._fan.ids()

    def relative_path(self, object_id: ObjectId) -> str:
        """Where the file of an object is below the local tier, for people."""
        return f"objects/{object_id & 0xFF:02x}/{file_name(object_id).decode()}"

    def is_empty(self) -> bool:
        """Whether there is no object: only then may the journal be missing."""
        return next(self._fan.ids(), None) is None

    def usage(self) -> tuple[int, int]:
        """(total, free) bytes of the file system of the local tier."""
        if self._root < 0:
            raise OSError(errno.EIO, "the local drive has failed")
        found = self._system.statvfs("local.usage", self._root)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def foreign(self) -> list[str]:
        """Paths below the local tier that are not ours: left alone."""
        if self._root < 0:
            return []
        return [os.fsdecode(path) for path in (*self._identity.foreign(), *self._fan.foreign())]

    def close(self) -> None:
        """Close all descriptors and give the lock back."""
        self.let_go()
        self._fan.close()

    def has_returned(self) -> bool:
        """Whether the drive that was let go of can be used again, by another store."""
        return self._root < 0 and self._identity.is_back()

    def let_go(self) -> None:
        """The drive is gone, or no longer needed: close all descriptors of it; calls get EIO."""
        root, self._root = self._root, -1
        if root >= 0:
            with contextlib.suppress(OSError):
                self.spread.let_go()
                self._identity.release()
                self._system.close("local.close", root)

    # Inside

    @contextmanager
    def _opened(self, object_id: ObjectId, flags: int) -> Iterator[int]:
        fd = self._open(object_id, flags)
        try:
            yield fd
        finally:
            self._system.close("local.open", fd)

    def _open(self, object_id: ObjectId, flags: int) -> int:
        return self._where_it_lies(
            object_id,
            lambda at: self._system.open_at("local.open", at, file_name(object_id), flags),
        )

    def _where_it_lies(self, object_id: ObjectId, call: Callable[[int], T]) -> T:
        """`call` with the directory of the object, once more if it was moved out meanwhile."""
        was_spilled = self.spread.is_spilled(object_id)
        try:
            return call(self._fan.directory(object_id))
        except FileNotFoundError:
            if was_spilled or not self.spread.is_spilled(object_id):
                raise
            return call(self._fan.directory(object_id))

    @contextmanager
    def _making(self, object_id: ObjectId, kind: Kind) -> Iterator[int]:
        """A new, still bare object; it is gone again if the block fails, else `fd` stays open."""
        directory = self._fan.directory(object_id, make=True)
        name = file_name(object_id)
        if kind is Kind.DIRECTORY:
            self._system.mkdir_at("local.create", directory, name, 0o700)
        fd = -1
        try:
            flags = _DIRECTORY if kind is Kind.DIRECTORY else _CREATE
            fd = self._system.open_at("local.create", directory, name, flags, 0o600)
            yield fd
        except BaseException:
            if fd >= 0:
                self._system.close("local.create", fd)
            # An open that failed has made nothing; the file there, if any, is another's.
            if fd >= 0 or kind is Kind.DIRECTORY:
                self.remove(object_id)
            raise

    def _own(self, fd: int, mode: int, uid: int, gid: int) -> None:
        # Objects are made as the daemon's own; setuid and setgid would not outlive a later chown.
        if (uid, gid) != (os.geteuid(), os.getegid()):
            self._system.fchown("local.create", fd, uid, gid)
        self._system.fchmod("local.create", fd, stat.S_IMODE(mode))

    def _kind(self, fd: int, st: os.stat_result | None = None) -> Kind:
        found = Kind.of_mode((st or self._system.fstat("local.stat", fd)).st_mode)
        return labels.kind_of(self._system, fd) if found is Kind.FILE else found
