"""Looking: names, listings, attributes, open files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from tierfs.model import Kind, Name, ObjectId
from tierfs.shared import layout
from tierfs.shared.places import Place
from tierfs.shared.tree import Tree

_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO})
"""What the open of a symlink, and of a socket, says."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands under a name.

    Attributes:
        directory_id: of a directory that carries one.
        target: of a symlink.
    """

    st: os.stat_result
    directory_id: ObjectId | None = None
    target: bytes | None = None


class Lookups(Tree):
    """Blocking calls that change nothing. All may raise DirectoryGone, and OSError: an error of
    the tier is never taken for a missing name.
    """

    def lookup(self, place: Place, name: Name) -> Entry | None:
        """What stands under `name`, itself if a symlink; b"" is the directory. None: nothing."""
        with self.opened(place) as directory:
            return self._entry(place, directory, name)

    def lookup_staged(self, place: Place, name: Name) -> Entry | None:
        """As `lookup`, but `name` may be that of an unsealed checkpoint: ``.staging_NAME``."""
        self.permitted(place, name)
        with self.opened(place) as directory:
            return self._look(directory, name)

    def stat_many(self, place: Place, names: Iterable[Name]) -> list[Entry | None]:
        """`lookup` of each of `names`, opening the directory once."""
        with self.opened(place) as directory:
            return [self._entry(place, directory, name) for name in names]

    def listing(self, place: Place) -> dict[Name, tuple[Kind, int]]:
        """Kind and inode of each entry but those of tierfs itself, by name, in no order."""
        with self.opened(place) as directory:
            found = self.system.scan_dir("look.list", directory)
        for name in layout.hidden_among(place.path, found):
            del found[name]
        return found

    def open_file(self, place: Place, name: Name, flags: int) -> tuple[int, os.stat_result]:
        """Open the regular file `name`; the caller closes it.

        Raises FileNotFoundError, also where `name` is something else: then the file that it was is
        not there any more.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            try:
                # O_NONBLOCK: should it have become a fifo, the open must not wait for a writer.
                fd = self.system.open_at("look.open", directory, name, flags | os.O_NONBLOCK)
            except OSError as error:
                if error.errno in _NO_FILE:
                    raise self._no_file(place, name) from error
                raise
        try:
            st = self.system.fstat("look.stat", fd)
            if not stat.S_ISREG(st.st_mode):
                raise self._no_file(place, name)
        except OSError:
            self.system.close("look.close", fd)
            raise
        return fd, st

    def _no_file(self, place: Place, name: Name) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "not a regular file", self.shown(place, name))

    def xattrs(self, place: Place, name: Name, inode: int | None = None) -> dict[bytes, bytes]:
        """The application's xattrs, ACLs included.

        Raises FileNotFoundError, also where `name` is not `inode`, if that is given.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            fd = self.system.open_at("look.xattrs", directory, name or b".", os.O_PATH)
            try:
                if inode not in (None, self.system.fstat("look.stat", fd).st_ino):
                    raise FileNotFoundError(
                        errno.ENOENT, "replaced meanwhile", self.shown(place, name)
                    )
                return self.read_xattrs(fd)
            finally:
                self.system.close("look.close", fd)

    def without_xattrs(self, place: Place, names: Iterable[Name]) -> set[Name]:
        """Those of `names` that have no xattr of the application's, nor an ACL."""
        with self.opened(place) as directory:
            return {name for name in names if self._is_bare(directory, name)}

    def _is_bare(self, directory: int, name: Name) -> bool:
        try:
            found = self.system.list_xattr_at("look.xattrs", directory, name)
        except OSError:
            return False  # whoever asks for it will be told
        return not any(map(layout.carried, found))

    def takes(self, place: Place, source: Place, name: Name) -> bool:
        """Whether the entry `name` of `source` can get a name in `place`, as to their projects.

        A directory of XFS that gives its project to what is in it takes nothing of another one.
        """
        with self.opened(place) as directory:
            project, inherited = self.system.project("look.project", directory)
            if not inherited:
                return True
            with self.opened(source) as other:
                try:
                    fd = self.system.open_at("look.open", other, name, os.O_RDONLY | os.O_NONBLOCK)
                except OSError:
                    return True  # gone, or what has no project that could be asked for
            try:
                return self.system.project("look.project", fd)[0] == project
            finally:
                self.system.close("look.close", fd)

    def recorded_digest(self, place: Place, name: Name) -> str | None:
        """The digest that was recorded when `name` was sent. Raises FileNotFoundError."""
        self.visible(place, name)
        with self.opened(place) as directory:
            fd = self.system.open_at("look.digest", directory, name, os.O_PATH)
            try:
                return self.system.get_xattr("look.digest", fd, layout.XATTR_DIGEST).decode()
            except OSError as error:
                if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                    return None
                raise
            finally:
                self.system.close("look.close", fd)

    def statvfs(self) -> os.statvfs_result:
        """Space and inodes of the shared tier."""
        self.guard()
        return self.system.statvfs("look.statvfs", self.root_fd)

    def read_xattrs(self, fd: int) -> dict[bytes, bytes]:
        """The application's xattrs of the file `fd`."""
        found: dict[bytes, bytes] = {}
        for name in self.system.list_xattr("look.xattrs", fd):
            if layout.carried(name):
                try:
                    found[name] = self.system.get_xattr("look.xattrs", fd, name)
                except OSError as error:
                    if error.errno != errno.ENODATA:  # removed since it was listed
                        raise
        return found

    def _entry(self, place: Place, directory: int, name: Name) -> Entry | None:
        return None if layout.hidden(place.path, name) else self._look(directory, name)

    def _look(self, directory: int, name: Name) -> Entry | None:
        try:
            if name:
                st = self.system.stat_at("look.stat", directory, name)
                if not (stat.S_ISDIR(st.st_mode) or stat.S_ISLNK(st.st_mode)):
                    return Entry(st)
            fd = self.system.open_at("look.open", directory, name or b".", os.O_PATH)
        except FileNotFoundError:
            return None
        try:
            st = self.system.fstat("look.stat", fd)
            if stat.S_ISDIR(st.st_mode):
                return Entry(st, directory_id=layout.decode_id(self.tag(fd)))
            if stat.S_ISLNK(st.st_mode):
                return Entry(st, target=self.system.readlink_at("look.readlink", fd, b""))
            return Entry(st)
        finally:
            self.system.close("look.close", fd)
