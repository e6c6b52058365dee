"""The only room that makes file system calls; each is labelled with its step of the protocol,
so that a test can make it fail, stall, or be the last one of the process.
"""

from tierfs.osio.injection import make_os
from tierfs.osio.libc import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
)
from tierfs.osio.paths import DirItem
from tierfs.osio.priority import idle_io
from tierfs.osio.system import OS

__all__ = [
    "FALLOC_FL_KEEP_SIZE",
    "FALLOC_FL_PUNCH_HOLE",
    "OS",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "DirItem",
    "idle_io",
    "make_os",
]
