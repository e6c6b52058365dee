"""Whole trees: everything below a directory, looked at or deleted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tierfs.model import Kind, Name, ObjectId
from tierfs.osio import DirItem
from tierfs.shared import layout
from tierfs.shared.places import Place
from tierfs.shared.tree import Tree

INDEX_BYTES = 32 * 1024 * 1024
"""An index of shards that is longer is not read; those of the largest models are a few MiB."""

Incarnation = tuple[int, int]
"""An inode and when it was made (ns; 0 where the file system does not say): inodes come again."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NO_XATTR = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM})
_INDEX = b".index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entry of a tree.

    Attributes:
        path: from the top of the tree.
        mode: without the type bits.
        digest: recorded when the file was sent; None: it was put there without tierfs.
        index: content of a file ``*.index.json``, if that is not too long.
        directory_id: of a directory that carries one.
    """

    path: bytes
    kind: Kind
    inode: int
    born_ns: int = 0
    size: int
    mode: int
    mtime_ns: int
    digest: str | None = None
    index: bytes | None = None
    directory_id: ObjectId | None = None

    @property
    def incarnation(self) -> Incarnation:
        """What no other file has, also one that gets the same inode later."""
        return self.inode, self.born_ns


class Walks(Tree):
    """Blocking calls on whole trees. What goes away meanwhile is left out."""

    def walk(self, place: Place) -> list[Found]:
        """Everything below `place`, parents before what is in them, what is tierfs' own left out.

        Never through a symlink. Raises DirectoryGone, and OSError where anything cannot be read:
        a file that cannot be seen must not count as missing.
        """
        with self.opened(place) as top:
            return self.walk_at(top)

    def walk_at(self, top: int) -> list[Found]:
        """As `walk`, below the open directory `top`."""
        found = []
        for path, directory, item in self.below(top):
            if _hidden(item.name):
                continue
            try:
                each = self._found(path, directory, item.name)
            except FileNotFoundError:
                continue
            if each is not None:
                found.append(each)
        return found

    def below(self, top: int) -> Iterator[tuple[bytes, int, DirItem]]:
        """(path from `top`, open directory that it is in, item) of everything below `top`.

        Parents come before what is in them; what is below a hidden name is left out.
        """
        todo = [b""]
        while todo:
            path = todo.pop()
            with self._below(top, path) as directory:
                if directory is None:
                    continue
                for item in self.system.list_dir("walk.list", directory):
                    full = os.path.join(path, item.name)
                    yield full, directory, item
                    if item.kind is Kind.DIRECTORY and not _hidden(item.name):
                        todo.append(full)

    def delete_tree(self, directory: int, name: Name) -> None:
        """Delete the directory `name` and all that is in it. Its being gone is fine."""
        try:
            top = self.system.open_at("delete.open", directory, name, _DIRECTORY)
        except FileNotFoundError:
            return
        try:
            self._delete_below(top)
        finally:
            self.system.close("delete.close", top)
        self.system.rmdir_at("delete.rmdir", directory, name)

    def _delete_below(self, top: int) -> None:
        todo, folders = [b""], []
        while todo:
            path = todo.pop()
            with self._below(top, path) as directory:
                if directory is None:
                    continue
                for item in self.system.list_dir("delete.list", directory):
                    if item.kind is Kind.DIRECTORY:
                        folders.append(os.path.join(path, item.name))
                        todo.append(folders[-1])
                    else:
                        self.system.unlink_at("delete.unlink", directory, item.name)
        for path in reversed(folders):
            parent, name = os.path.split(path)
            with self._below(top, parent) as directory:
                if directory is not None:
                    self.system.rmdir_at("delete.rmdir", directory, name)

    @contextmanager
    def below_at(self, top: int, path: bytes) -> Iterator[int]:
        """The directory `path` below the open directory `top`. Raises FileNotFoundError."""
        fd = self.system.open_beneath("walk.open", top, path, _DIRECTORY)
        try:
            yield fd
        finally:
            self.system.close("walk.close", fd)

    @contextmanager
    def _below(self, top: int, path: bytes) -> Iterator[int | None]:
        """A directory of a tree; None: it is gone."""
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(self.below_at(top, path))
            except FileNotFoundError:
                yield None
                return
            yield fd

    def _found(self, path: bytes, directory: int, name: Name) -> Found | None:
        """None: tierfs has made it."""
        fd = self.system.open_at("walk.look", directory, name, os.O_PATH)
        try:
            st = self.system.fstat("walk.stat", fd)
            regular = stat.S_ISREG(st.st_mode)
            if path == layout.SUMS and regular and self.is_sums(fd):
                return None
            return Found(
                path=path,
                kind=Kind.of_mode(st.st_mode),
                inode=st.st_ino,
                born_ns=self.system.birth_ns("walk.born", fd) or 0,
                size=st.st_size,
                mode=stat.S_IMODE(st.st_mode),
                mtime_ns=st.st_mtime_ns,
                digest=self._digest(fd) if regular else None,
                index=self._index(directory, name, st) if regular else None,
                directory_id=(layout.decode_id(self.tag(fd)) if stat.S_ISDIR(st.st_mode) else None),
            )
        finally:
            self.system.close("walk.close", fd)

    def is_sums(self, fd: int) -> bool:
        """Whether the file `fd` is the ``SHA256SUMS`` that tierfs adds to a checkpoint."""
        try:
            return bool(self.system.get_xattr("walk.sums", fd, layout.XATTR_SUMS))
        except OSError as error:
            if error.errno in _NO_XATTR:
                return False
            raise

    def _digest(self, fd: int) -> str | None:
        try:
            return self.system.get_xattr("walk.digest", fd, layout.XATTR_DIGEST).decode()
        except OSError as error:
            if error.errno in _NO_XATTR:
                return None
            raise

    def _index(self, directory: int, name: Name, st: os.stat_result) -> bytes | None:
        if not name.endswith(_INDEX) or st.st_size > INDEX_BYTES:
            return None
        fd = self.system.open_at("walk.index", directory, name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return self.system.pread("walk.index", fd, st.st_size, 0)
        finally:
            self.system.close("walk.close", fd)


def _hidden(name: Name) -> bool:
    return name.startswith(layout.STAGING_PREFIX)
