"""What is stored through mappings, which the daemon does not see, is right too.

Each case holds without passthrough as well (TIERFS_TEST_PASSTHROUGH=off), unless it says otherwise.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import Node, compare, wait_until

MIB = 1 << 20
OFF = os.environ.get("TIERFS_TEST_PASSTHROUGH") == "off"

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))

only_passthrough = pytest.mark.skipif(OFF, reason="about passthrough alone")


class Mapping:
    """A process that maps a file shared and writable, closes it, and stores when it is told."""

    SCRIPT = """
import ctypes, mmap, os, sys
path, size, create = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
if create:
    os.ftruncate(fd, size)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
at = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
assert at not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
os.close(fd)
print("closed", flush=True)
for line in sys.stdin:
    offset, text = line.split()
    ctypes.memmove(at + int(offset), text.encode(), len(text))
    print("stored", flush=True)
"""

    def __init__(self, path: Path, size: int, *, create: bool) -> None:
        words = ["python3", "-c", self.SCRIPT, str(path), str(size), str(int(create))]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("closed")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def store(self, offset: int, text: str) -> None:
        """Stores `text`; returns when that is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{offset} {text}\n")
        self._process.stdin.flush()
        self._expect("stored")

    def close(self) -> None:
        """Ends the process, and with it the mapping."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(30) == 0


@contextmanager
def mapped(path: Path, size: int, *, create: bool = False) -> Iterator[Mapping]:
    """A mapping that is gone at the end of the block."""
    mapping = Mapping(path, size, create=create)
    yield mapping
    mapping.close()


def test_what_is_written_past_the_page_cache_is_seen_by_all(
    make_node: Callable[..., Node],
) -> None:
    """Without passthrough, where nobody can map what a descriptor writes."""
    node = make_node().start("--no-passthrough")
    path = node.mount / "f"
    writer = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    both = os.open(path, os.O_RDWR)
    os.ftruncate(writer, MIB)
    with mmap.mmap(both, MIB) as mapped:
        assert os.write(writer, b"a" * MIB) == MIB
        if KERNEL >= (6, 18):
            assert resident(mapped) == 0
        assert mapped[:] == b"a" * MIB == os.pread(both, MIB, 0)
        mapped[10:13] = b"map"
        assert os.pwrite(writer, b"past", 20) == 4
        assert mapped[:30] == b"a" * 10 + b"map" + b"a" * 7 + b"past" + b"a" * 6
        mapped[20:24] = b"over"
        with open(path, "ab", buffering=0) as one, open(path, "ab", buffering=0) as other:
            for number in range(4):
                (one, other)[number % 2].write(b"%d" % number)
        content = b"a" * 10 + b"map" + b"a" * 7 + b"over" + b"a" * (MIB - 24) + b"0123"
        assert path.read_bytes() == content == os.pread(both, 2 * MIB, 0)
        with faulting(path):
            for number in range(100):
                os.pwrite(writer, bytes([number]) * MIB, 0)
                assert mapped[:] == bytes([number]) * MIB
        os.pwrite(writer, content[:MIB], 0)
    os.close(both)
    os.close(writer)
    node.settle()
    assert (node.shared / "f").read_bytes() == content
    compare(node.mount, node.shared)


@contextmanager
def faulting(path: Path) -> Iterator[None]:
    """A process reads all pages of a mapping of `path` again and again."""
    script = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print('begins', flush=True)\n"
        "while True:\n"
        "    mapped[:: mmap.PAGESIZE]\n"
    )
    words = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            yield
        finally:
            process.kill()


def resident(mapped: mmap.mmap) -> int:
    """How many pages of a mapping are in the page cache (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(len(mapped)), pages) == 0
    return sum(page & 1 for page in pages)


def test_stores_through_a_mapping_after_close(node: Node) -> None:
    with mapped(node.mount / "f", MIB, create=True) as mapping:
        mapping.store(0, "first")
        assert node.flush(timeout=5).code == 4  # closed by its writer, and still open
        assert not (node.shared / "f").exists()
        mapping.store(5, "second")
        mapping.store(MIB - 4, "last")
        assert (node.mount / "f").read_bytes()[:11] == b"firstsecond"
    node.settle()
    want = b"firstsecond".ljust(MIB - 4, b"\0") + b"last"
    assert (node.shared / "f").read_bytes() == want
    compare(node.mount, node.shared)


def test_stores_through_a_mapping_of_a_committed_file(node: Node) -> None:
    (node.mount / "f").write_bytes(b"." * MIB)
    node.settle()
    with mapped(node.mount / "f", MIB) as mapping:
        mapping.store(10, "before")
        assert node.flush(timeout=5).code == 4
        mapping.store(100, "after")
        assert (node.shared / "f").read_bytes() == b"." * MIB
    node.settle()
    content = (node.shared / "f").read_bytes()
    assert content[10:16] + content[100:105] == b"beforeafter"
    compare(node.mount, node.shared)


def test_stores_through_a_mapping_of_an_evicted_file(
    node: Node, replacement: Callable[[], Node]
) -> None:
    (node.mount / "f").write_bytes(b"." * MIB)
    node.settle()
    other = replacement()  # nothing of it is local there
    with mapped(other.mount / "f", MIB) as mapping:
        assert other.flush(timeout=5).code == 4
        mapping.store(10, "late")
    other.settle()
    assert (other.shared / "f").read_bytes()[10:14] == b"late"


@only_passthrough
def test_stores_through_a_mapping_that_outlives_the_daemon(node: Node) -> None:
    node.expected = [r"ETXTBSY|killed in the middle"]
    with mapped(node.mount / "f", MIB, create=True) as mapping:
        mapping.store(0, "one")
        node.kill()
        node.start()
        mapping.store(100, "two")
        wait_until(lambda: node.status()["retrying"], "the commit to wait for the mapping")
        assert not (node.shared / "f").exists()
        mapping.store(200, "three")
    node.settle()
    content = (node.shared / "f").read_bytes()
    assert (content[:3], content[100:103], content[200:205]) == (b"one", b"two", b"three")
