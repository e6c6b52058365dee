"""What /proc tells of the process behind a request of the kernel."""

PF_SIGNALED = 0x400
"""Task flag: killed by a signal (include/linux/sched.h); field 9 of /proc/PID/stat, proc(5)."""


def process_of(thread: int) -> int:
    """The process that `thread` (the pid of a FUSE request) belongs to; 0 when it is gone."""
    if thread <= 0:
        return 0
    try:
        with open(f"/proc/{thread}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def was_killed(process: int) -> bool:
    """Whether `process` is dying of a signal: its closes are the kernel's, not its own."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return bool(int(fields[6]) & PF_SIGNALED)
