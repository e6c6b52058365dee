"""Changes of what is already on the shared tier: removals, renames, links, attributes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierfs.model import Name, OpKind
from tierfs.shared.attributes import remove_xattr
from tierfs.shared.places import Place
from tierfs.shared.publish import Publishing


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeChange:
    """What to set; None leaves it as it is.

    Attributes:
        xattrs: value of each xattr to set; None removes it.
    """

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    xattrs: Mapping[bytes, bytes | None] = field(default_factory=dict)


class Changes(Publishing):
    """Blocking calls that change names. Each makes its change durable, and may be made again
    after it failed or after a crash. `inode` is the inode that is meant; None: whichever.

    POSIX has no call that removes a name only if it is a certain inode. Between the look and the
    call another node may replace the name; on one node the order of ops excludes that.
    """

    def unlink(self, place: Place, name: Name, inode: int | None) -> bool:
        """Remove `name` if it is `inode`. False: it is gone, or another file's name now."""
        return self._remove(place, name, inode, OpKind.UNLINK)

    def rmdir(self, place: Place, name: Name, inode: int | None) -> bool:
        """Remove the directory `name` if it is `inode`; raises ENOTEMPTY. False: as `unlink`."""
        return self._remove(place, name, inode, OpKind.RMDIR)

    def rename(
        self,
        place: Place,
        name: Name,
        place2: Place,
        name2: Name,
        inode: int | None,
        flags: int = 0,
    ) -> os.stat_result:
        """Rename `name` in `place` to `name2` in `place2`; the attributes afterwards.

        Raises FileNotFoundError if `name` is gone and `name2` is not it, ESTALE if `name` is
        another file now.
        """
        self.permitted(place, name)
        self.permitted(place2, name2)
        with self.opened(place) as source, self.opened(place2) as target:
            if not (inode is not None and self._moved(source, name, target, name2, inode)):
                self.expect(place, source, name, inode)
                self.system.rename_at("rename.rename", source, name, target, name2, flags)
            self.system.fsync_dir("rename.fsync_dir", target)
            self.system.fsync_dir("rename.fsync_source", source)
            return self.system.stat_at("rename.stat", target, name2)

    def link(
        self,
        place: Place,
        name: Name,
        inode: int,
        place2: Place,
        name2: Name,
        *,
        row: int,
        replace: bool = False,
    ) -> os.stat_result:
        """Give the file `name` in `place` the further name `name2` in `place2`.

        With `replace` it takes the place of what is there, by a rename from staging. Raises
        FileExistsError without it, ESTALE if `name` is not `inode`.
        """
        self.visible(place2, name2)
        with self.opened(place) as source, self.opened(place2) as target:
            if not self.has_inode(target, name2, inode):
                self.expect(place, source, name, inode)
                if replace:
                    self._link_over(source, name, place2, target, name2, row)
                else:
                    self.system.link_at("link.link", source, name, target, name2)
            self.system.fsync_dir("link.fsync_dir", target)
            return self.system.stat_at("link.stat", target, name2)

    def set_attributes(
        self,
        place: Place,
        name: Name,
        inode: int | None,
        change: AttributeChange,
        *,
        if_mtime_ns: int | None = None,
    ) -> os.stat_result | None:
        """Apply `change` to `name` itself, also if a symlink; b"" is the directory `place`.

        None: it is gone, another file now, or its mtime is not `if_mtime_ns`, where given.
        """
        self.permitted(place, name)
        with self.opened(place) as directory:
            try:
                fd = self.system.open_at("setattr.open", directory, name or b".", os.O_PATH)
            except FileNotFoundError:
                return None
            try:
                st = self.system.fstat("setattr.stat", fd)
                if inode not in (None, st.st_ino) or if_mtime_ns not in (None, st.st_mtime_ns):
                    return None
                self._apply_change(fd, change, stat.S_ISLNK(st.st_mode))
                self._sync(directory, name, fd, st)
                return self.system.fstat("setattr.stat", fd)
            finally:
                self.system.close("setattr.close", fd)

    def _remove(self, place: Place, name: Name, inode: int | None, kind: OpKind) -> bool:
        guard = self.permitted if kind is OpKind.RMDIR else self.visible
        guard(place, name)
        with self.opened(place) as directory:
            done = False
            try:
                st = self.system.stat_at(f"{kind}.stat", directory, name)
                if inode in (None, st.st_ino):
                    if kind is OpKind.RMDIR:
                        self.system.rmdir_at("rmdir.rmdir", directory, name)
                    else:
                        self.system.unlink_at("unlink.unlink", directory, name)
                    done = True
            except FileNotFoundError:
                done = False
            # Also where it is gone already: by an earlier try that did not come to this call.
            self.system.fsync_dir(f"{kind}.fsync_dir", directory)
        return done

    def _moved(self, source: int, name: Name, target: int, name2: Name, inode: int) -> bool:
        return self.has_inode(target, name2, inode) and not self.has_inode(source, name, inode)

    def _link_over(
        self, source: int, name: Name, place2: Place, target: int, name2: Name, row: int
    ) -> None:
        try:
            with self.staging_of(OpKind.LINK, row, name2, place2) as (staging, temporary, beside):
                self.system.link_at("link.link", source, name, staging, temporary)
                self.system.rename_at("link.rename", staging, temporary, target, name2)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self.refuses_renames(target)
            raise
        self.forget_marker(row, beside)

    def _apply_change(self, fd: int, change: AttributeChange, is_symlink: bool) -> None:
        if change.uid is not None or change.gid is not None:
            uid = -1 if change.uid is None else change.uid
            gid = -1 if change.gid is None else change.gid
            self.system.fchown("setattr.chown", fd, uid, gid)
        for xattr, value in change.xattrs.items():
            if value is None:
                remove_xattr(self.system, "setattr", fd, xattr)
            else:
                self.system.set_xattr("setattr.xattr", fd, xattr, value)
        if change.mode is not None and not is_symlink:
            self.system.fchmod("setattr.chmod", fd, change.mode)
        if change.atime_ns is not None or change.mtime_ns is not None:
            self.system.utime_fd("setattr.times", fd, change.atime_ns, change.mtime_ns)

    def _sync(self, directory: int, name: Name, fd: int, st: os.stat_result) -> None:
        if not (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)):
            # No descriptor of a symlink, fifo or socket can be synced by itself.
            self.system.syncfs("setattr.fsync", directory)
            return
        flags = os.O_RDONLY | os.O_NONBLOCK
        real = self.system.open_at("setattr.open", directory, name or b".", flags)
        try:
            self.system.fsync("setattr.fsync", real)
        finally:
            self.system.close("setattr.close", real)
