"""File systems and mounts: where a descriptor lives, and whether it is still the same mount."""

from __future__ import annotations

import os

from tierfs.osio import libc
from tierfs.osio.labels import Labelled, labelled


class Mounts(Labelled):
    """Calls that tell mounts, file systems and boots apart."""

    @labelled
    def statvfs(self, step: str, fd: int) -> os.statvfs_result:
        """Space and inodes of the file system that `fd` is on."""
        return os.fstatvfs(fd)

    @labelled
    def mount_id(self, step: str, fd: int) -> int:
        """The id of the mount that `fd` is on.

        Since Linux 6.8 it is never used again until the next boot (STATX_MNT_ID_UNIQUE); before
        that a later mount may get the same number.
        """
        mask = libc.STATX_MNT_ID_UNIQUE
        found = libc.statx(fd, b"", libc.AT_EMPTY_PATH, mask)
        if not found.mask & mask:
            found = libc.statx(fd, b"", libc.AT_EMPTY_PATH, libc.STATX_MNT_ID)
        return found.mnt_id

    @labelled
    def birth_ns(self, step: str, fd: int) -> int | None:
        """When the file was made, in ns since the epoch; None where that is not recorded."""
        found = libc.statx(fd, b"", libc.AT_EMPTY_PATH, libc.STATX_BTIME)
        if not found.mask & libc.STATX_BTIME:
            return None
        return int(found.btime.sec) * 1_000_000_000 + int(found.btime.nsec)

    @labelled
    def is_nfs(self, step: str, fd: int) -> bool:
        """Whether `fd` is on NFS, whose client answers from caches."""
        return libc.filesystem_magic(fd) == libc.NFS_SUPER_MAGIC

    @labelled
    def boot_id(self, step: str) -> str:
        """The id of this boot of the machine (/proc/sys/kernel/random/boot_id)."""
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
