"""The yardstick of the mount without passthrough: a directory behind plain pyfuse3 and no more.

    python -m bench.plain DIRECTORY MOUNTPOINT

It does for each call what the call says, on one thread, and promises nothing.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyfuse3
import trio

CHECKOUT = Path(__file__).resolve().parent.parent


class Plain(pyfuse3.Operations):
    """Every inode by its path; nothing is renamed while it is measured."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, root: bytes) -> None:
        super().__init__()
        self._paths = {pyfuse3.ROOT_INODE: root}
        self._inodes = {root: pyfuse3.ROOT_INODE}

    def _entry(self, path: bytes, st: os.stat_result) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = self._inodes.setdefault(path, len(self._inodes) + 1)
        self._paths[entry.st_ino] = path
        entry.entry_timeout = entry.attr_timeout = 0.5
        entry.st_mode, entry.st_nlink, entry.st_size = st.st_mode, st.st_nlink, st.st_size
        entry.st_uid, entry.st_gid, entry.st_blocks = st.st_uid, st.st_gid, st.st_blocks
        entry.st_blksize = 128 << 10
        entry.st_mtime_ns, entry.st_ctime_ns = st.st_mtime_ns, st.st_ctime_ns
        return entry

    def _join(self, parent: int, name: bytes) -> bytes:
        return self._paths[parent] + b"/" + name

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        path = self._join(parent_inode, name)
        try:
            return self._entry(path, os.lstat(path))
        except FileNotFoundError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        path = self._paths[inode]
        return self._entry(path, os.lstat(path))

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        raise pyfuse3.FUSEError(errno.ENODATA)

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        path = self._join(parent_inode, name)
        os.mkdir(path)
        return self._entry(path, os.lstat(path))

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        path = self._join(parent_inode, name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        return pyfuse3.FileInfo(fh=fd), self._entry(path, os.fstat(fd))

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=os.open(self._paths[inode], os.O_RDWR), keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return os.pwrite(fh, buf, off)

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        os.close(fh)


@contextmanager
def mounted(directory: Path, mountpoint: Path, program: str) -> Iterator[Path]:
    """`directory` at `mountpoint`, by a process of its own: this module, or `bench.floor`."""
    mountpoint.mkdir()
    words = [sys.executable, "-m", program, str(directory), str(mountpoint)]
    with subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("plain pyfuse3 does not mount")
            yield mountpoint
        finally:
            subprocess.run(["umount", "-l", mountpoint], check=True)
    mountpoint.rmdir()


def main() -> None:
    """Serves DIRECTORY at MOUNTPOINT until it is unmounted."""
    directory, mountpoint = sys.argv[1:]
    pyfuse3.init(Plain(os.fsencode(directory)), mountpoint, {"fsname=plain", "allow_other"})
    print("ready", flush=True)
    trio.run(pyfuse3.main)
    pyfuse3.close()


if __name__ == "__main__":
    main()
