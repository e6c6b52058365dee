"""Real file systems on loop devices, and the ways in which they fail."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

MIB = 1 << 20

# mkfs.xfs refuses less than 300 MB unless it takes itself to be under its own test suite.
_SMALL_XFS = {"TEST_DIR": "1", "TEST_DEV": "1", "QA_CHECK_FS": "1"}


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a system command; its output goes into the exception when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout.strip()}")
    return done.stdout


def mount_points() -> set[Path]:
    """Every mount point there is; stat(2) would fail on a dead file system."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {Path(line.split(" ")[4]) for line in lines}


class LoopDevice:
    """A file system of `size` bytes on a sparse image, mounted at `mountpoint`.

    The loop device is in autoclear mode: it goes with its last mount, also when the test dies.
    """

    def __init__(
        self, root: Path, name: str, size: int, fstype: str = "xfs", *, options: str = "loop"
    ) -> None:
        self.image = root / f"{name}.img"
        self.mountpoint = root / name
        self.size = size
        self.fstype = fstype
        self.options = options

    def __enter__(self) -> Self:
        self.mountpoint.mkdir(parents=True)
        with self.image.open("wb") as image:
            image.truncate(self.size)
        if self.fstype == "xfs":
            run("mkfs.xfs", "-q", "-f", self.image, env=_SMALL_XFS)
        else:
            run(f"mkfs.{self.fstype}", "-q", "-F", self.image)
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount(lazy=True)
        self.image.unlink(missing_ok=True)
        # one that several tests share is made again when they come in another order
        with contextlib.suppress(OSError):
            self.mountpoint.rmdir()

    def mount(self) -> None:
        """Mount the image; XFS replays its log after a shutdown."""
        run("mount", "-o", self.options, self.image, self.mountpoint)

    def unmount(self, *, lazy: bool = False) -> None:
        """Unmount; with `lazy` also while descriptors are open."""
        if self.mountpoint in mount_points():
            run("umount", *(["-l"] if lazy else []), self.mountpoint)

    def remount(self, options: str) -> None:
        """Change mount options in place, for example ``ro``."""
        run("mount", "-o", f"remount,{options}", self.mountpoint)

    def fill(self, leave: int = 0) -> Path:
        """Take all the free space but `leave` bytes with one file, and return it."""
        return fill(self.mountpoint, leave)


def fill(directory: Path, leave: int = 0) -> Path:
    """Take all the free space of the file system of `directory` but `leave` bytes with one file."""
    ballast = directory / "ballast"
    st = os.statvfs(directory)
    with ballast.open("wb") as file:
        left = st.f_bavail * st.f_frsize - leave
        step = 64 * MIB
        while step >= st.f_frsize and left > 0:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, 2), min(step, left))
                left -= min(step, left)
            except OSError:
                step //= 2
    return ballast


@contextmanager
def frozen(device: LoopDevice) -> Iterator[None]:
    """Every write to `device` hangs in the kernel until the block ends."""
    run("fsfreeze", "-f", device.mountpoint)
    try:
        yield
    finally:
        run("fsfreeze", "-u", device.mountpoint)


def hangs(pid: int) -> bool:
    """Whether a thread of `pid` waits in the kernel and cannot be killed, for a while already.

    One that syncs a file does so for a moment.
    """
    before = _uninterruptible(pid)
    time.sleep(0.3)
    return bool(before & _uninterruptible(pid))


def _uninterruptible(pid: int) -> set[tuple[str, str]]:
    """The threads in state D, and how often each has given its processor away."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            lines = dict(line.split(":\t", 1) for line in path.read_text().splitlines())
            if lines["State"].startswith("D"):
                found.add((path.parent.name, lines["voluntary_ctxt_switches"]))
    return found


def shut_down(device: LoopDevice) -> None:
    """Make every further call on `device` fail with EIO, as a dead drive does."""
    run("xfs_io", "-x", "-c", "shutdown", device.mountpoint)


@contextmanager
def stuttering(device: LoopDevice, stall: float = 0.15, run_for: float = 0.03) -> Iterator[None]:
    """Writes to `device` get through only in short moments, as on a congested fabric."""
    stop = threading.Event()

    def freeze_and_thaw() -> None:
        while not stop.wait(run_for):
            with frozen(device):
                stop.wait(stall)

    thread = threading.Thread(target=freeze_and_thaw, name="stutter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Nobody, root included, can replace or remove `path`: EPERM, a permanent error."""
    run("chattr", "+i", path)
    try:
        yield
    finally:
        run("chattr", "-i", path)
