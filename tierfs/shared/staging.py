"""The staging area of this member: one directory for each start of the daemon."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tierfs.errors import DirectoryGone
from tierfs.model import Attributes, Name, ObjectId, OpKind
from tierfs.shared import layout
from tierfs.shared.attributes import apply_attributes
from tierfs.shared.jobs import Staged
from tierfs.shared.places import Place
from tierfs.shared.walk import Walks

_PRIVATE_DIR = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class Staging(Walks):
    """What is made here becomes visible by one rename, or is removed; all calls block.

    `staging_fd` is the directory of this generation, from :meth:`start_generation` on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.staging_fd = -1
        self.generation: Name = b""
        self._beside: set[int] = set()  # inodes of directories that refuse renames from staging
        self._left: set[Name] = set()  # names in staging whose removal failed

    def start_generation(self) -> None:
        """Make the staging directory of this start: its number is higher than any there.

        A worker of an earlier generation that hangs in the kernel never meets our names.
        """
        with self.member_staging() as directory:
            numbers = [
                layout.generation_number(item.name) or 0
                for item in self.system.list_dir("staging.list", directory)
            ]
            number = max(numbers, default=0) + 1
            self.generation = b"%08d-%s" % (number, secrets.token_hex(4).encode())
            self.system.mkdir_at("staging.mkdir", directory, self.generation, _PRIVATE_DIR)
            self.system.fsync_dir("staging.fsync_dir", directory)
            self.staging_fd = self.system.open_at(
                "staging.open", directory, self.generation, _DIRECTORY
            )

    def end_generation(self) -> None:
        """Remove the staging directory of this start if nothing is left in it."""
        with self.member_staging() as directory:
            try:
                self.system.rmdir_at("staging.end", directory, self.generation)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def leave_generation(self) -> None:
        """Let go of the staging directory of this start, which stays."""
        if self.staging_fd >= 0:
            self.system.close("tier.close", self.staging_fd)
            self.staging_fd = -1

    def close(self) -> None:
        """Let go of the tier. What is still staged is swept after the next start."""
        self.leave_generation()
        super().close()

    def stage_directory(
        self,
        row: int,
        name: Name,
        attributes: Attributes,
        xattrs: Mapping[bytes, bytes],
        id: ObjectId,
        *,
        place: Place | None = None,
    ) -> Staged:
        """An empty directory with all its attributes and its id, durable in staging."""
        with self.staging_of(OpKind.MKDIR, row, name, place) as (directory, temporary, beside):
            self.system.mkdir_at("mkdir.create", directory, temporary, _PRIVATE_DIR)
            fd = self.system.open_at("mkdir.open", directory, temporary, _DIRECTORY)
            try:
                value = layout.encode_id(id)
                self.system.set_xattr("mkdir.id", fd, layout.XATTR_ID, value)
                apply_attributes(self.system, "mkdir", fd, attributes, xattrs)
                self.system.fsync_dir("mkdir.fsync", fd)
                inode = self.system.fstat("mkdir.stat", fd).st_ino
            finally:
                self.system.close("mkdir.close", fd)
        return Staged(OpKind.MKDIR, row, temporary, inode, beside=beside)

    def stage_symlink(
        self,
        row: int,
        name: Name,
        target: bytes,
        attributes: Attributes,
        *,
        place: Place | None = None,
    ) -> Staged:
        """A symlink with owner and times, in staging; durable with the fsync after its rename."""
        with self.staging_of(OpKind.SYMLINK, row, name, place) as (directory, temporary, beside):
            self.system.symlink_at("symlink.create", directory, temporary, target)
            owner = attributes.uid, attributes.gid
            self.system.chown_at("symlink.chown", directory, temporary, *owner)
            times = attributes.atime_ns, attributes.mtime_ns
            self.system.utime_at("symlink.times", directory, temporary, *times)
            inode = self.system.stat_at("symlink.stat", directory, temporary).st_ino
        return Staged(OpKind.SYMLINK, row, temporary, inode, beside=beside)

    def ask(self, written: Callable[[], None]) -> None:
        """A few bytes written durably, and removed: the tier takes content. `written` is called
        when only their sync is left, which waits for what was sent before.
        """
        self.guard()
        name = layout.staged_name(0, b"ask-" + secrets.token_hex(4).encode())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        directory = self.staging_fd
        fd = self.system.open_at("ask.create", directory, name, flags, 0o600)
        try:
            try:
                self.system.pwrite_all("ask.write", fd, name, 0)
                written()
                self.system.fsync("ask.fsync", fd)
            finally:
                self.system.close("ask.close", fd)
        finally:
            self.remove(directory, name)

    def discard(self, staged: Staged) -> None:
        """Remove what was staged and will not be published; it may be gone already."""
        with self.opened_staging(staged.beside) as directory:
            self.remove(directory, staged.name, directory_there=staged.kind is OpKind.MKDIR)
        self.forget_marker(staged.row, staged.beside)

    def forget_marker(self, row: int, beside: Place | None) -> None:
        """What op `row` had staged beside its final name is not there any more."""
        if beside is not None:
            self.remove(self.staging_fd, layout.beside_marker(row))

    @contextmanager
    def staging_of(
        self, kind: OpKind, row: int, name: Name, place: Place | None
    ) -> Iterator[tuple[int, Name, Place | None]]:
        """Where to make what op `row` publishes: (directory, free name in it, `Staged.beside`).

        Whatever error leaves the block, nothing stays behind in staging.
        """
        beside = place if place is not None and self._needs_beside(place) else None
        is_directory = kind is OpKind.MKDIR
        temporary = layout.staged_name(row, name)
        if beside is not None:
            temporary = layout.beside_name(self.member, row)
            self._mark_beside(row, os.path.join(beside.path, temporary))
        with self.opened_staging(beside) as directory:
            if beside is not None or temporary in self._left:
                self.remove(directory, temporary, directory_there=is_directory)
            try:
                yield directory, temporary, beside
            except BaseException:
                self._clean_up(directory, temporary, is_directory)
                if beside is not None:
                    self._clean_up(self.staging_fd, layout.beside_marker(row), False)
                raise

    @contextmanager
    def opened_staging(self, beside: Place | None) -> Iterator[int]:
        """The staging directory of this generation, or the directory `beside`."""
        if beside is None:
            self.guard()
            yield self.staging_fd
        else:
            with self.opened(beside) as directory:
                yield directory

    @contextmanager
    def member_staging(self) -> Iterator[int]:
        """The directory that holds the generations of this member, made when it is missing."""
        self.guard()
        path = layout.CONTROL
        for name in (layout.STAGING, self.member.encode()):
            parent = self.system.open_beneath("staging.open", self.root_fd, path, _DIRECTORY)
            try:
                self.make_private(parent, name)
            finally:
                self.system.close("staging.close", parent)
            path = path + b"/" + name
        fd = self.system.open_beneath("staging.open", self.root_fd, path, _DIRECTORY)
        try:
            yield fd
        finally:
            self.system.close("staging.close", fd)

    def make_private(self, parent: int, name: Name) -> None:
        """Make a directory of tierfs' own, for root alone; its being there is fine."""
        try:
            self.system.mkdir_at("control.mkdir", parent, name, _PRIVATE_DIR)
        except FileExistsError:
            return
        self.system.fsync_dir("control.fsync_dir", parent)

    def remove(self, directory: int, name: Name, *, directory_there: bool = False) -> None:
        """Remove one thing of our own, a whole tree if it is one; none being there is fine."""
        try:
            if directory_there:
                self._remove_directory(directory, name)
            else:
                self.system.unlink_at("staging.remove", directory, name)
        except FileNotFoundError:
            pass
        self._left.discard(name)

    def _remove_directory(self, directory: int, name: Name) -> None:
        try:
            self.system.rmdir_at("staging.remove", directory, name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.delete_tree(directory, name)  # the next generation of a checkpoint

    def refuses_renames(self, directory: int) -> None:
        """Remember that nothing can be renamed from staging into this directory (EXDEV)."""
        self._beside.add(self.system.fstat("place.stat", directory).st_ino)

    def is_refused(self, directory: int) -> bool:
        """Whether `refuses_renames` was called for this directory."""
        return self.system.fstat("place.stat", directory).st_ino in self._beside

    def _needs_beside(self, place: Place) -> bool:
        try:
            with self.opened(place) as directory:
                st = self.system.fstat("place.stat", directory)
        except DirectoryGone:  # its MKDIR may be pending, or its rename
            return False
        staging = self.system.fstat("staging.stat", self.staging_fd)
        return st.st_dev != staging.st_dev or st.st_ino in self._beside

    def _mark_beside(self, row: int, path: bytes) -> None:
        # Tells the sweep after a crash where to look, so it is durable before there is anything.
        marker = layout.beside_marker(row)
        self.remove(self.staging_fd, marker)
        self.system.symlink_at("staging.marker", self.staging_fd, marker, path)
        self.system.fsync_dir("staging.marker_fsync", self.staging_fd)

    def _clean_up(self, directory: int, name: Name, is_directory: bool) -> None:
        try:
            self.remove(directory, name, directory_there=is_directory)
        except OSError:  # the first error is the one to report
            self._left.add(name)


def lost(staged: Staged) -> FileNotFoundError:
    """The error for something staged that is not where it was: a sweep or a fence took it."""
    message = "what was staged is gone: it is to be staged again"
    return FileNotFoundError(errno.ENOENT, message, os.fsdecode(staged.name))
