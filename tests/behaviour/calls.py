"""One small file API for the behavioural cases: what a program can ask of a file system.

`OsCalls` is the kernel's answer below a directory; `tests.behaviour.direct` gives that of the file
system object. Paths are relative to the directory of the case, "" is that directory itself.
"""

from __future__ import annotations

import abc
import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tierfs.model import Attributes, Kind

T = TypeVar("T")
OURS = (b".tierfs", b".staging_")


@dataclass(frozen=True)
class Item:
    """What of an entry has to be the same everywhere: on the mount, restarted, and shared."""

    kind: Kind
    mode: int
    owner: tuple[int, int]
    content: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    nlink: int
    mtime_ns: int


class Calls(abc.ABC):
    """The calls. Errors are OSError with the errno that a program would see.

    Attributes:
        shared: the directory of the case on the shared tier.
        settles_here: `pause` brings everything to the shared tier.
    """

    shared: Path
    settles_here = False

    @abc.abstractmethod
    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int: ...
    @abc.abstractmethod
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    @abc.abstractmethod
    def write(self, fd: int, data: bytes) -> int: ...
    @abc.abstractmethod
    def pwrite(self, fd: int, data: bytes, offset: int) -> int: ...
    @abc.abstractmethod
    def close(self, fd: int) -> None: ...
    @abc.abstractmethod
    def fsync(self, fd: int) -> None: ...
    @abc.abstractmethod
    def fstat(self, fd: int) -> Attributes: ...
    @abc.abstractmethod
    def ftruncate(self, fd: int, size: int) -> None: ...
    @abc.abstractmethod
    def stat(self, path: str) -> Attributes:
        """As lstat(2)."""

    @abc.abstractmethod
    def inode(self, path: str) -> int: ...
    @abc.abstractmethod
    def mkdir(self, path: str, mode: int = 0o755) -> None: ...
    @abc.abstractmethod
    def rmdir(self, path: str) -> None: ...
    @abc.abstractmethod
    def unlink(self, path: str) -> None: ...
    @abc.abstractmethod
    def rename(self, old: str, new: str) -> None: ...
    @abc.abstractmethod
    def symlink(self, target: str, path: str) -> None: ...
    @abc.abstractmethod
    def readlink(self, path: str) -> str: ...
    @abc.abstractmethod
    def link(self, old: str, new: str) -> None: ...
    @abc.abstractmethod
    def link_open(self, fd: int, path: str) -> None:
        """Gives an open file a name: linkat(2) of /proc/self/fd/FD."""

    @abc.abstractmethod
    def chmod(self, path: str, mode: int) -> None: ...
    @abc.abstractmethod
    def chown(self, path: str, uid: int, gid: int) -> None: ...
    @abc.abstractmethod
    def utime(self, path: str, atime_ns: int, mtime_ns: int) -> None: ...
    @abc.abstractmethod
    def truncate(self, path: str, size: int) -> None: ...
    @abc.abstractmethod
    def listdir(self, path: str = "") -> list[str]: ...
    @abc.abstractmethod
    def getxattr(self, path: str, name: str) -> bytes: ...
    @abc.abstractmethod
    def setxattr(self, path: str, name: str, value: bytes) -> None: ...
    @abc.abstractmethod
    def removexattr(self, path: str, name: str) -> None: ...
    @abc.abstractmethod
    def listxattr(self, path: str) -> list[str]: ...
    @abc.abstractmethod
    def settle(self) -> None:
        """Until everything that is closed is on the shared tier."""

    @abc.abstractmethod
    def drop_caches(self) -> None:
        """The kernel forgets all that nobody has open."""

    def pause(self) -> None:
        """Where a case is as interesting on committed state: settles if the side is for that."""
        if self.settles_here:
            self.settle()

    # -- what is made of them --------------------------------------------------------------------

    def write_file(self, path: str, data: bytes) -> None:
        """Create or truncate, write, close."""
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write(fd, data)
        finally:
            self.close(fd)

    def append(self, path: str, data: bytes) -> None:
        """Open with O_APPEND, write, close."""
        fd = self.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            self.write(fd, data)
        finally:
            self.close(fd)

    def read_file(self, path: str) -> bytes:
        """The whole content."""
        fd = self.open(path)
        try:
            return self.pread(fd, 1 << 20, 0)
        finally:
            self.close(fd)

    def exists(self, path: str) -> bool:
        """Whether the name is there; any error but ENOENT is raised."""
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def tree(self, path: str = "") -> dict[str, Item]:
        """Everything below `path`."""
        found: dict[str, Item] = {}
        for name in self.listdir(path):
            if os.fsencode(name).startswith(OURS):
                continue
            below = f"{path}/{name}".lstrip("/")
            found[below] = self.item(below)
            if found[below].kind is Kind.DIRECTORY:
                found |= self.tree(below)
        return found

    def item(self, path: str) -> Item:
        """One entry."""
        at = self.stat(path)
        content = b""
        if at.kind is Kind.FILE:
            content = self.read_file(path)
            assert len(content) == at.size, f"{path}: {len(content)} bytes, st_size {at.size}"
        elif at.kind is Kind.SYMLINK:
            content = os.fsencode(self.readlink(path))
        plain = at.kind is Kind.DIRECTORY
        return Item(
            at.kind, at.mode, (at.uid, at.gid), content, self._xattrs(path, at.kind),
            0 if plain else at.nlink, 0 if plain else at.mtime_ns,
        )  # fmt: skip

    def _xattrs(self, path: str, kind: Kind) -> tuple[tuple[str, bytes], ...]:
        if kind is Kind.SYMLINK:
            return ()
        names = [n for n in self.listxattr(path) if not n.startswith(("user.tierfs.", "trusted."))]
        return tuple((name, self.getxattr(path, name)) for name in sorted(names))


class OsCalls(Calls):
    """The `os` module below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared = root

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path) if path else str(self.root)

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        return os.open(self._path(path), flags, mode)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fstat(self, fd: int) -> Attributes:
        return Attributes.of(os.fstat(fd))

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def stat(self, path: str) -> Attributes:
        return Attributes.of(os.lstat(self._path(path)))

    def inode(self, path: str) -> int:
        return os.lstat(self._path(path)).st_ino

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        os.mkdir(self._path(path), mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._path(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._path(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self._path(path))

    def readlink(self, path: str) -> str:
        return os.readlink(self._path(path))

    def link(self, old: str, new: str) -> None:
        os.link(self._path(old), self._path(new))

    def link_open(self, fd: int, path: str) -> None:
        link_open(fd, self._path(path))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._path(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(self._path(path), uid, gid)

    def utime(self, path: str, atime_ns: int, mtime_ns: int) -> None:
        os.utime(self._path(path), ns=(atime_ns, mtime_ns), follow_symlinks=False)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self._path(path), size)

    def listdir(self, path: str = "") -> list[str]:
        return os.listdir(self._path(path))

    def getxattr(self, path: str, name: str) -> bytes:
        return os.getxattr(self._path(path), name, follow_symlinks=False)

    def setxattr(self, path: str, name: str, value: bytes) -> None:
        os.setxattr(self._path(path), name, value, follow_symlinks=False)

    def removexattr(self, path: str, name: str) -> None:
        os.removexattr(self._path(path), name, follow_symlinks=False)

    def listxattr(self, path: str) -> list[str]:
        return os.listxattr(self._path(path), follow_symlinks=False)

    def settle(self) -> None:
        """A plain directory is always settled."""

    def drop_caches(self) -> None:
        """Of the whole machine: harmless, the next look costs a little more."""
        Path("/proc/sys/vm/drop_caches").write_text("2")


def link_open(fd: int, path: str | Path) -> None:
    """Gives an open file a name; os.link follows /proc/self/fd only with a directory given."""
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


def beside(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Makes a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call, *arguments)
    pool.shutdown(wait=False)
    return future


def error_of(call: Callable[..., object], *arguments: object) -> str | None:
    """The name of the errno that the call fails with, None when it does not."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None
