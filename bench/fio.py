"""fio(1) on the mount, the local directory and the shared directory, side by side."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ENGINES = ("libaio", "io_uring")
SECONDS = 3


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way of reading or writing."""

    name: str
    rw: str
    block: str
    depth: int


PATTERNS = (
    Pattern("write 1 MiB", "write", "1m", 8),
    Pattern("read 1 MiB", "read", "1m", 8),
    Pattern("random read 4 KiB", "randread", "4k", 32),
    Pattern("random write 4 KiB", "randwrite", "4k", 32),
)


def is_installed() -> bool:
    """Whether there is fio on this machine."""
    return shutil.which("fio") is not None


def rate(directory: Path, pattern: Pattern, engine: str, size: int) -> float:
    """MiB/s of `pattern` with direct=1 on a file of `size` bytes in `directory`, made before."""
    done = subprocess.run(
        [
            "fio", "--name=fio", f"--filename={directory / 'fio.data'}", f"--size={size}",
            f"--rw={pattern.rw}", f"--bs={pattern.block}", f"--iodepth={pattern.depth}",
            f"--ioengine={engine}", "--direct=1", "--time_based", f"--runtime={SECONDS}",
            "--randseed=1", "--output-format=json",
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio {pattern.name} on {directory}: error {job['error']}")
    side = "read" if pattern.rw.endswith("read") else "write"
    return float(job[side]["bw_bytes"]) / (1 << 20)
