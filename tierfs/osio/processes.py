"""What /proc tells of the process behind a request of the kernel.

Of a process in execve(2) that closes its files (O_CLOEXEC) `stat` and `syscall` tell nothing until
these closes are answered (Linux 6.18, exec_update_lock): who answers them must not read either.
`status` tells at any time.
"""

from __future__ import annotations

import fcntl
import functools
import os
import resource
import select
import struct
import threading
import time

_MOST = 8192

RESERVED = 768
"""Descriptors of the daemon's own: 256 for the directories of objects, some for each thread."""

PF_SIGNALED = 0x400
"""Task flag: killed by a signal (include/linux/sched.h); field 9 of /proc/PID/stat, proc(5)."""

TOLD_SECONDS = 1.0
"""How long `stat` is waited for where it may not come."""

_SIGKILL_BIT = 1 << 8

_MKDIR = {"x86_64": (b"83", b"258"), "aarch64": (b"34",)}
"""Numbers of mkdir and mkdirat (asm/unistd.h)."""

_PIDFD_INFO_BYTES = 64
"""PIDFD_INFO_SIZE_VER0 (linux/pidfd.h)."""
_PIDFD_INFO_STATUS = 60
"""Offset of `exit_code` in struct pidfd_info; a status as wait(2) gives it."""
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)."""


def process_of(thread: int) -> int:
    """The process that `thread` (the pid of a FUSE request) belongs to; 0 when it is gone."""
    if thread <= 0:
        return 0
    try:
        os.close(os.pidfd_open(thread))
    except OSError:
        pass  # no leader of its process, or gone
    else:
        return thread
    found = read_proc(f"/proc/{thread}/status").partition(b"\nTgid:")[2].split(None, 1)
    return int(found[0]) if found else 0


@functools.cache
def most_open_files() -> int:
    """How many descriptors applications' open files may take: the daemon needs some itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(RESERVED, soft // 2)


def was_killed(process: int) -> bool:
    """Whether `process` is dying of a signal: its closes are the kernel's, not its own."""
    if not _has_let_go_of_its_files(read_proc(f"/proc/{process}/status")):
        return False
    fields = _stat(process)
    return bool(fields) and bool(int(fields[6]) & PF_SIGNALED)


def is_dying(thread: int) -> bool:
    """Whether `thread` is gone, ends, or will end as soon as it is let: it was killed.

    A signal that ends a process reaches each of its threads as SIGKILL (signal(7)); a thread that
    is ending has none any more, and no files.
    """
    status = read_proc(f"/proc/{thread}/status")
    if not status or _has_let_go_of_its_files(status):
        return True
    pending = status.partition(b"\nSigPnd:")[2].split(None, 1)
    return bool(pending) and bool(int(pending[0], 16) & _SIGKILL_BIT)


def is_making_directory(thread: int) -> bool:
    """Whether `thread` is in mkdir(2) or mkdirat(2): /proc/TID/syscall, proc(5)."""
    number = read_proc(f"/proc/{thread}/syscall").split(None, 1)
    return bool(number) and number[0] in _MKDIR.get(os.uname().machine, ())


def is_waiting(thread: int) -> bool:
    """Whether /proc/TID/syscall tells in which call `thread` is, or never will: it is gone.

    Of one that has a processor, or waits for one, it says "running": proc(5).
    """
    return not read_proc(f"/proc/{thread}/syscall").startswith(b"running")


def start_time(process: int) -> int:
    """When `process` began, in clock ticks since boot (proc(5), stat, field 22).

    0: it is gone, or that is not told now.
    """
    fields = _stat_in_time(process)
    return int(fields[19]) if fields else 0


def age_seconds(process: int) -> float | None:
    """For how long `process` has been running at least; None: it is gone.

    It may have begun at the end of the clock tick that /proc tells.
    """
    started = start_time(process)
    if not started:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started + 1) / os.sysconf("SC_CLK_TCK")


def ancestors(process: int) -> frozenset[int]:
    """`process` and all that it descends from, as far as they live."""
    found = set()
    while process > 0 and process not in found:
        found.add(process)
        fields = _stat_in_time(process)
        process = int(fields[1]) if fields else 0
    return frozenset(found)


def follow_process(process: int) -> int:
    """A descriptor of `process` that becomes readable when it ends; OSError(ESRCH): it is gone."""
    return os.pidfd_open(process)


def has_ended(descriptor: int) -> bool:
    """Whether the process of that descriptor has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def is_member(thread: int, group: int, own: int) -> bool:
    """Whether `thread`, of group `own`, is in `group` (credentials(7)); nobody is who is gone."""
    found = read_proc(f"/proc/{thread}/status").partition(b"\nGroups:")[2].partition(b"\n")[0]
    return group == own or b"%d" % group in found.split()


def ended_well(descriptor: int, process: int) -> bool:
    """Whether `process`, which has ended, did so by itself and with status 0.

    Until its parent has waited for it, proc(5) says so (stat, field 52), afterwards PIDFD_GET_INFO
    of its pidfd (linux/pidfd.h, Linux 6.15). Before that, a process that is gone counts as one that
    ended well.
    """
    fields = _stat(process)
    if fields and fields[0] == b"Z":
        return int(fields[49]) == 0
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:
        return True
    (mask,) = struct.unpack_from("Q", info, 0)
    (status,) = struct.unpack_from("i", info, _PIDFD_INFO_STATUS)
    return not mask & _PIDFD_INFO_EXIT or bool(status == 0)


def _has_let_go_of_its_files(status: bytes) -> bool:
    """As a process that ends does before it closes them (exit_files), and execve(2) does not."""
    return b"\nFDSize:\t0\n" in status


def _stat_in_time(process: int) -> list[bytes]:
    """As `_stat`; empty also when it does not come, as of a process in execve(2)."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.extend(_stat(process)), daemon=True)
    reader.start()
    reader.join(TOLD_SECONDS)
    return [] if reader.is_alive() else found


def _stat(process: int) -> list[bytes]:
    """The fields of /proc/PROCESS/stat behind the name, the state first; empty: it is gone."""
    return read_proc(f"/proc/{process}/stat").rpartition(b")")[2].split()


def read_proc(path: str) -> bytes:
    """A file of /proc; empty when the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)
