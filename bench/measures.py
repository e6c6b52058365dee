"""What is measured. Every function returns seconds of the same work done in one given place."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 1 << 20
_BLOCK = 16 * MIB


def shard_names(count: int) -> list[str]:
    """The names of one save."""
    return [f"__{rank}_0.distcp" for rank in range(count)]


def write_buffered(path: Path, size: int, data: memoryview) -> None:
    """One shard through the page cache."""
    _write(path, size, data, 0)


def write_direct(path: Path, size: int, data: memoryview) -> None:
    """One shard with O_DIRECT."""
    _write(path, size, data, os.O_DIRECT)


def _write(path: Path, size: int, data: memoryview, flags: int) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | flags, 0o644)
    try:
        for offset in range(0, size, _BLOCK):
            os.write(fd, data[: min(_BLOCK, size - offset)])
    finally:
        os.close(fd)


def write_mapped(path: Path, size: int, data: memoryview) -> None:
    """One shard stored into a shared mapping, as np.memmap does it."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as view:
        os.close(fd)
        for offset in range(0, size, _BLOCK):
            count = min(_BLOCK, size - offset)
            view[offset : offset + count] = data[:count]


def save_burst(
    directory: Path, names: list[str], size: int, writers: int, data: memoryview,
    write: Callable[[Path, int, memoryview], None] = write_buffered,
) -> float:  # fmt: skip
    """Write one shard a name, `writers` at once: from the first open to the last close."""
    directory.mkdir()
    started = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda name: write(directory / name, size, data), names))
    return time.perf_counter() - started


def copy_script(source: Path, target: Path, names: list[str]) -> float:
    """The careful shell script: cp under a temporary name, sync, sha256sum of both, mv, sync."""
    target.mkdir()
    started = time.perf_counter()
    for name in names:
        draft = target / f".{name}.partial"
        subprocess.run(["cp", source / name, draft], check=True)
        subprocess.run(["sync", draft], check=True)
        drop_from_cache(draft)
        sums = subprocess.run(
            ["sha256sum", source / name, draft], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        if len({line.split()[0] for line in sums}) != 1:
            raise RuntimeError(f"{name}: the copy differs")
        subprocess.run(["mv", draft, target / name], check=True)
        subprocess.run(["sync", target], check=True)
    return time.perf_counter() - started


def small_files(directory: Path, count: int) -> float:
    """Create, write 1 KiB and close `count` files."""
    directory.mkdir()
    payload = bytes(1024)
    base = os.fsencode(directory)
    started = time.perf_counter()
    for index in range(count):
        fd = os.open(base + b"/f%d" % index, os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, payload)
        os.close(fd)
    return time.perf_counter() - started


def look_at_all(directory: Path) -> float:
    """stat(2) of every name in `directory`, one by one."""
    names = os.listdir(os.fsencode(directory))
    base = os.fsencode(directory)
    started = time.perf_counter()
    for name in names:
        os.stat(base + b"/" + name)
    return time.perf_counter() - started


def command(*words: str | Path) -> float:
    """A program from its start to its end, its output thrown away."""
    started = time.perf_counter()
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def write_and_read_back(source: Path, target: Path, names: list[str]) -> float:
    """What makes a copy durable and nothing else: O_DIRECT writes, fsync, O_DIRECT reads."""
    target.mkdir()
    buffer = mmap.mmap(-1, _BLOCK)
    started = time.perf_counter()
    with memoryview(buffer) as view, ThreadPoolExecutor(1) as pool:
        for name in names:
            pool.submit(_copy_direct, source / name, target / name, view).result()
    return time.perf_counter() - started


def _copy_direct(source: Path, target: Path, view: memoryview) -> None:
    flags = os.O_CREAT | os.O_RDWR | os.O_DIRECT
    fd_in, fd = os.open(source, os.O_RDONLY), os.open(target, flags, 0o644)
    try:
        offset = 0
        while count := os.preadv(fd_in, [view], offset):
            os.pwrite(fd, view[:count], offset)
            offset += count
        os.fsync(fd)
        for start in range(0, offset, _BLOCK):
            os.preadv(fd, [view], start)
    finally:
        os.close(fd_in)
        os.close(fd)


def hash_twice(directory: Path, names: list[str]) -> float:
    """SHA-256 over every shard, twice: what is sent and what is read back."""
    started = time.perf_counter()
    for name in names:
        for _ in range(2):
            _digest(directory / name)
    return time.perf_counter() - started


def read_all(directory: Path, names: list[str]) -> float:
    """Read every shard once, in pieces of 16 MiB into one buffer."""
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    started = time.perf_counter()
    for name in names:
        with open(directory / name, "rb", buffering=0) as file:
            while file.readinto(view):
                pass
    return time.perf_counter() - started


def read_mapped(directory: Path, names: list[str]) -> float:
    """Copy every shard out of a mapping once."""
    buffer = bytearray(_BLOCK)
    started = time.perf_counter()
    for name in names:
        with (
            open(directory / name, "rb", buffering=0) as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
            memoryview(view) as content,
        ):
            for offset in range(0, len(content), _BLOCK):
                part = content[offset : offset + _BLOCK]
                buffer[: len(part)] = part
                part.release()
    return time.perf_counter() - started


def drop_from_cache(path: Path) -> None:
    """Make the next read of `path` come from its device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def same_content(left: Path, right: Path, names: list[str]) -> bool:
    """Whether both directories hold the same bytes under `names`."""
    return all(_digest(left / name) == _digest(right / name) for name in names)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(directory: Path) -> None:
    """Remove a directory of one measurement."""
    shutil.rmtree(directory)
