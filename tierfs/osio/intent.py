"""What a thread that is in a system call is about to make: /proc/TID/syscall, proc(5).

The kernel looks a name up before it makes it, and the request of the lookup does not say why.
"""

from __future__ import annotations

import os
import struct

from tierfs.osio.processes import read_proc

_O_CREAT = os.O_CREAT
_PATH_BYTES = 4096

# Numbers of asm/unistd.h; which argument is the path that is made, which one the flags of an open
# (-1: none are needed), which one a path that has to be there (-1: none).
_OPENAT2 = 437
_X86 = {
    2: (0, 1, -1),  # open
    85: (0, -1, -1),  # creat
    257: (1, 2, -1),  # openat
    _OPENAT2: (1, 2, -1),
    83: (0, -1, -1),  # mkdir
    258: (1, -1, -1),  # mkdirat
    133: (0, -1, -1),  # mknod
    259: (1, -1, -1),  # mknodat
    86: (1, -1, 0),  # link
    265: (3, -1, 1),  # linkat
    88: (1, -1, -1),  # symlink
    266: (2, -1, -1),  # symlinkat
    82: (1, -1, 0),  # rename
    264: (3, -1, 1),  # renameat
    316: (3, -1, 1),  # renameat2
}
_ARM = {
    56: (1, 2, -1),  # openat
    _OPENAT2: (1, 2, -1),
    34: (1, -1, -1),  # mkdirat
    33: (1, -1, -1),  # mknodat
    37: (3, -1, 1),  # linkat
    36: (2, -1, -1),  # symlinkat
    38: (3, -1, 1),  # renameat
    276: (3, -1, 1),  # renameat2
}
_CALLS = {"x86_64": _X86, "aarch64": _ARM}


def is_making(thread: int, parent: bytes, name: bytes) -> bool:
    """Whether `thread` is in a call that makes `name` in a directory called `parent` (b"": the
    root of the mount). False also where that cannot be told.
    """
    words = read_proc(f"/proc/{thread}/syscall").split()
    if len(words) < 7 or not words[0].isdigit():
        return False
    arguments = [int(word, 16) for word in words[1:7]]
    number = int(words[0])
    call = _CALLS.get(os.uname().machine, {}).get(number)
    if call is None:
        return False
    path, flags, other = call
    try:
        fd = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if flags >= 0 and not _creates(fd, number, arguments[flags]):
            return False
        made = _leads_to(_text(fd, arguments[path]), parent, name)
        there = _leads_to(_text(fd, arguments[other]), parent, name) if other >= 0 else 0
    except OSError:
        return False
    finally:
        os.close(fd)
    return made > there


def _creates(fd: int, number: int, flags: int) -> bool:
    if number == _OPENAT2:  # struct open_how begins with them
        (flags,) = struct.unpack("Q", os.pread(fd, 8, flags))
    return bool(flags & _O_CREAT)


def _text(fd: int, address: int) -> bytes:
    """The string at `address`; a read may not cross into a page that is not there."""
    found = b""
    while len(found) < _PATH_BYTES and b"\0" not in found:
        count = 4096 - (address + len(found)) % 4096
        found += os.pread(fd, count, address + len(found))
    return found.partition(b"\0")[0]


def _leads_to(path: bytes, parent: bytes, name: bytes) -> int:
    """0: not to `name` in `parent`, 1: to `name`, and the path does not say in what, 2: it does."""
    directory, _, last = path.rstrip(b"/").rpartition(b"/")
    if last != name:
        return 0
    above = directory.rstrip(b"/").rpartition(b"/")[2]
    if above in (b"", b".", b".."):
        return 1
    return 2 if above == parent or not parent else 0
