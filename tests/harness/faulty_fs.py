"""A file system that shows another directory and fails on demand; a process of its own.

    python -m tests.harness.faulty_fs DIRECTORY MOUNTPOINT RULES

RULES is a JSON file that is read again whenever it changes: a list of {"op", "name", "do", ...},
see `Rule`. Nothing is cached, so every call of the tier arrives here.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to the calls `op` (patterns, "|" between) on `name` (a pattern, last name).

    Attributes:
        do: hang until the rule is gone, delay by `seconds`, or fail with an errno by its name;
            of writes: short, which take `size` bytes at the most, or flip, which store another
            byte than they were given.
        rate: with delay: bytes a second of reads and writes, in the place of `seconds`.
    """

    op: str
    name: str
    do: str
    seconds: float = 0.0
    rate: float = 0.0
    size: int = 0

    def matches(self, op: str, name: bytes) -> bool:
        """Whether it is about this call."""
        meant = any(fnmatch.fnmatch(op, pattern) for pattern in self.op.split("|"))
        return meant and fnmatch.fnmatch(os.fsdecode(name), self.name)


class Faulty(pyfuse3.Operations):
    """Passes everything on, by O_PATH descriptors of the inodes that the kernel knows."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, root: str, rules: str) -> None:
        super().__init__()
        fd = os.open(root, os.O_PATH)
        self._nodes: dict[int, list[int]] = {pyfuse3.ROOT_INODE: [fd, 1]}
        self._names: dict[int, bytes] = {pyfuse3.ROOT_INODE: b""}
        self._root = os.fstat(fd).st_ino
        self._path = rules
        self._mtime = (0, 0)
        self._rules: list[Rule] = []
        self._busy = trio.Semaphore(1)

    # -- faults --------------------------------------------------------------------------------

    def _read_rules(self) -> list[Rule]:
        st = os.stat(self._path)
        mtime = st.st_ino, st.st_mtime_ns
        if mtime != self._mtime:
            self._rules = [Rule(**each) for each in json.loads(Path(self._path).read_text())]
            self._mtime = mtime
        return self._rules

    def _first(self, op: str, name: bytes) -> Rule | None:
        return next((rule for rule in self._read_rules() if rule.matches(op, name)), None)

    async def _pass(self, op: str, name: bytes, size: int = 0) -> None:
        # the rules are in a file: nobody tells
        while (rule := self._first(op, name)) is not None and rule.do == "hang":  # noqa: ASYNC110
            await trio.sleep(POLL_SECONDS)
        if rule is None or rule.do in ("short", "flip"):
            return
        if rule.do == "delay" and rule.rate:
            async with self._busy:  # a narrow way: one after the other
                await trio.sleep(size / rule.rate)
        elif rule.do == "delay":
            await trio.sleep(rule.seconds)
        else:
            raise pyfuse3.FUSEError(getattr(errno, rule.do))

    # -- names ---------------------------------------------------------------------------------

    def _fd(self, inode: int) -> int:
        return self._nodes[inode][0]

    def _name(self, inode: int) -> bytes:
        return self._names.get(inode, b"")

    def _proc(self, inode: int) -> str:
        return f"/proc/self/fd/{self._fd(inode)}"

    def _entry(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        with errors():
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._fd(parent))
        inode = os.fstat(fd).st_ino
        if inode == self._root:
            inode = pyfuse3.ROOT_INODE
        node = self._nodes.get(inode)
        if node is None:
            self._nodes[inode] = [fd, 1]
        else:
            node[1] += 1
            os.close(fd)
        self._names[inode] = name
        return self._attributes(inode)

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        with errors():
            st = os.fstat(self._fd(inode))
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.entry_timeout = entry.attr_timeout = 0
        for field in ("mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks",
                      "atime_ns", "mtime_ns", "ctime_ns"):  # fmt: skip
            setattr(entry, f"st_{field}", getattr(st, f"st_{field}"))
        return entry

    async def lookup(self, parent_inode, name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("lookup", name)
        return self._entry(parent_inode, name)

    async def forget(self, inode_list):  # type: ignore[no-untyped-def]
        for inode, count in inode_list:
            node = self._nodes.get(inode)
            if node is None or inode == pyfuse3.ROOT_INODE:
                continue
            node[1] -= count
            if node[1] <= 0:
                os.close(node[0])
                del self._nodes[inode]

    async def getattr(self, inode, ctx):  # type: ignore[no-untyped-def]
        await self._pass("getattr", self._name(inode))
        return self._attributes(inode)

    async def setattr(self, inode, attr, fields, fh, ctx):  # type: ignore[no-untyped-def]
        await self._pass("setattr", self._name(inode))
        path = self._proc(inode)
        with errors():
            if fields.update_uid or fields.update_gid:
                uid = attr.st_uid if fields.update_uid else -1
                os.chown(path, uid, attr.st_gid if fields.update_gid else -1)
            if fields.update_mode:
                os.chmod(path, stat.S_IMODE(attr.st_mode))
            if fields.update_size:
                os.truncate(path, attr.st_size)
            if fields.update_atime or fields.update_mtime:
                old = os.stat(path)
                atime = attr.st_atime_ns if fields.update_atime else old.st_atime_ns
                mtime = attr.st_mtime_ns if fields.update_mtime else old.st_mtime_ns
                os.utime(path, ns=(atime, mtime))
        return self._attributes(inode)

    async def readlink(self, inode, ctx):  # type: ignore[no-untyped-def]
        await self._pass("readlink", self._name(inode))
        with errors():
            return os.readlink(b"", dir_fd=self._fd(inode))

    async def mkdir(self, parent_inode, name, mode, ctx):  # type: ignore[no-untyped-def]
        await self._pass("mkdir", name)
        with errors():
            os.mkdir(name, mode & ~ctx.umask, dir_fd=self._fd(parent_inode))
        return self._entry(parent_inode, name)

    async def symlink(self, parent_inode, name, target, ctx):  # type: ignore[no-untyped-def]
        await self._pass("symlink", name)
        with errors():
            os.symlink(target, name, dir_fd=self._fd(parent_inode))
        return self._entry(parent_inode, name)

    async def link(self, inode, new_parent_inode, new_name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("link", new_name)
        with errors():
            os.link(self._proc(inode), new_name, dst_dir_fd=self._fd(new_parent_inode))
        return self._entry(new_parent_inode, new_name)

    async def unlink(self, parent_inode, name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("unlink", name)
        with errors():
            os.unlink(name, dir_fd=self._fd(parent_inode))

    async def rmdir(self, parent_inode, name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("rmdir", name)
        with errors():
            os.rmdir(name, dir_fd=self._fd(parent_inode))

    async def rename(self, old_parent, old_name, new_parent, new_name, flags, ctx):  # type: ignore[no-untyped-def]
        await self._pass("rename", new_name)
        from tierfs.osio import libc

        with errors():
            libc.renameat2(self._fd(old_parent), old_name, self._fd(new_parent), new_name, flags)

    async def statfs(self, ctx):  # type: ignore[no-untyped-def]
        await self._pass("statfs", b"")
        st = os.fstatvfs(self._fd(pyfuse3.ROOT_INODE))
        data = pyfuse3.StatvfsData()
        for field in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail"):
            setattr(data, f"f_{field}", getattr(st, f"f_{field}"))
        data.f_namemax = st.f_namemax
        return data

    # -- xattrs --------------------------------------------------------------------------------

    async def getxattr(self, inode, name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("getxattr", self._name(inode))
        with errors():
            return os.getxattr(self._proc(inode), name)

    async def setxattr(self, inode, name, value, ctx):  # type: ignore[no-untyped-def]
        await self._pass("setxattr", self._name(inode))
        with errors():
            os.setxattr(self._proc(inode), name, value)

    async def listxattr(self, inode, ctx):  # type: ignore[no-untyped-def]
        await self._pass("listxattr", self._name(inode))
        with errors():
            return [os.fsencode(name) for name in os.listxattr(self._proc(inode))]

    async def removexattr(self, inode, name, ctx):  # type: ignore[no-untyped-def]
        await self._pass("removexattr", self._name(inode))
        with errors():
            os.removexattr(self._proc(inode), name)

    # -- content -------------------------------------------------------------------------------

    async def open(self, inode, flags, ctx):  # type: ignore[no-untyped-def]
        name = self._name(inode)
        await self._pass("open", name)
        if flags & os.O_DIRECT and (rule := self._first("write", name)) and rule.do == "short":
            # the kernel makes EIO of a direct write that is short; through the cache it passes
            raise pyfuse3.FUSEError(errno.EINVAL)
        with errors():
            fd = os.open(self._proc(inode), flags & ~(os.O_NOFOLLOW | os.O_DIRECT))
        return pyfuse3.FileInfo(fh=self._opened(fd, inode))

    def _opened(self, fd: int, inode: int) -> int:
        self._names[-fd] = self._name(inode)
        return fd

    async def create(self, parent_inode, name, mode, flags, ctx):  # type: ignore[no-untyped-def]
        await self._pass("create", name)
        flags = (flags | os.O_CREAT) & ~os.O_DIRECT
        with errors():
            fd = os.open(name, flags, mode & ~ctx.umask, dir_fd=self._fd(parent_inode))
        entry = self._entry(parent_inode, name)
        return pyfuse3.FileInfo(fh=self._opened(fd, entry.st_ino)), entry

    async def read(self, fh, off, size):  # type: ignore[no-untyped-def]
        await self._pass("read", self._name(-fh), size)
        with errors():
            return os.pread(fh, size, off)

    async def write(self, fh, off, buf):  # type: ignore[no-untyped-def]
        name = self._name(-fh)
        await self._pass("write", name, len(buf))
        rule = self._first("write", name)
        with errors():
            if rule is not None and rule.do == "short":
                return os.pwrite(fh, buf[: rule.size], off)
            if rule is not None and rule.do == "flip":
                buf = bytes([buf[0] ^ 1]) + buf[1:]
            return os.pwrite(fh, buf, off)

    async def flush(self, fh):  # type: ignore[no-untyped-def]
        await self._pass("flush", self._name(-fh))

    async def fsync(self, fh, datasync):  # type: ignore[no-untyped-def]
        await self._pass("fsync", self._name(-fh))
        with errors():
            os.fsync(fh)

    async def release(self, fh):  # type: ignore[no-untyped-def]
        os.close(fh)

    # -- directories ---------------------------------------------------------------------------

    async def opendir(self, inode, ctx):  # type: ignore[no-untyped-def]
        await self._pass("opendir", self._name(inode))
        return inode

    async def readdir(self, fh, start_id, token):  # type: ignore[no-untyped-def]
        await self._pass("readdir", self._name(fh))
        with errors():
            names = sorted(os.listdir(self._proc(fh)))
        for position, name in list(enumerate(names))[start_id:]:
            entry = self._entry(fh, os.fsencode(name))
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, position + 1):
                await self.forget([(entry.st_ino, 1)])
                return

    async def releasedir(self, fh):  # type: ignore[no-untyped-def]
        return

    async def fsyncdir(self, fh, datasync):  # type: ignore[no-untyped-def]
        await self._pass("fsyncdir", self._name(fh))
        fd = os.open(self._proc(fh), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def errors():  # type: ignore[no-untyped-def]
    """What the real file system refuses is refused here."""
    try:
        yield
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno) from error


def main() -> None:
    """Serves until it is unmounted."""
    root, mountpoint, rules = sys.argv[1:]
    options = set(pyfuse3.default_options) | {"allow_other", "fsname=tierfs-test-faulty"}
    pyfuse3.init(Faulty(root, rules), mountpoint, options)
    print("ready", flush=True)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    main()
