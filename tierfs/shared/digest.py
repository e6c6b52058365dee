"""Digests of whole files: one for each chunk of 64 MiB, and one over these.

So chunks can be sent, hashed and verified in any order and at once. Written
``sha256:64MiB:HEX`` or ``xxh3_128:64MiB:HEX``; docs/FORMAT.md has the definition.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import xxhash

from tierfs.osio import OS

CHUNK_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
"""How much is read, hashed and written at once."""

_ZEROS = bytes(1 << 20)
_AT_ONCE = 1 << 16


class Hasher(Protocol):
    """What hashlib's and xxhash's objects have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Hash more bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes so far."""


_KINDS: dict[str, Callable[[], Hasher]] = {"sha256": hashlib.sha256, "xxh3_128": xxhash.xxh3_128}


def new_hasher(kind: str) -> Hasher:
    """A hasher of `kind`: ``sha256`` or ``xxh3_128``. Raises ValueError for others."""
    try:
        return _KINDS[kind]()
    except KeyError:
        raise ValueError(f"unknown digest {kind!r}: use {' or '.join(_KINDS)}") from None


def update_zeros(hasher: Hasher, length: int) -> None:
    """Hash `length` zero bytes: a hole."""
    for start in range(0, length, len(_ZEROS)):
        hasher.update(memoryview(_ZEROS)[: length - start])


@functools.lru_cache(maxsize=64)
def zeros_digest(kind: str, length: int) -> bytes:
    """The digest of a chunk that is a hole of `length` bytes."""
    hasher = new_hasher(kind)
    update_zeros(hasher, length)
    return hasher.digest()


def chunks(size: int) -> Iterable[tuple[int, int]]:
    """(start, end) of the chunks of a file of `size` bytes; an empty file has none."""
    return ((start, min(start + CHUNK_BYTES, size)) for start in range(0, size, CHUNK_BYTES))


class Spans:
    """The same, one after the other, for several takers; what is known to be a hole is left out.

    `until` of `skip` is where a hole ends that begins in a chunk that was taken.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self

    def __next__(self) -> tuple[int, int]:
        start = self._next
        if start >= self._size:
            raise StopIteration
        self._next = min(start + CHUNK_BYTES, self._size)
        return start, self._next

    def skip(self, until: int) -> int:
        """Leaves out the whole chunks before `until`; how many bytes that was."""
        end = until if until >= self._size else until - until % CHUNK_BYTES
        skipped = max(0, end - self._next)
        self._next += skipped
        return skipped


def with_holes(kind: str, size: int, digests: dict[int, bytes]) -> Iterator[bytes]:
    """The digests of all chunks of a file of `size` bytes, many of holes at once.

    `digests` has those of the others, by where they start.
    """
    position = 0
    for start in [*sorted(digests), size]:
        yield from _of_holes(kind, position, start, size)
        if start < size:
            yield digests[start]
            position = start + CHUNK_BYTES


def _of_holes(kind: str, start: int, end: int, size: int) -> Iterator[bytes]:
    whole = max(0, min(end, size - size % CHUNK_BYTES) - start) // CHUNK_BYTES
    for done in range(0, whole, _AT_ONCE):
        yield zeros_digest(kind, CHUNK_BYTES) * min(_AT_ONCE, whole - done)
    if end == size and size % CHUNK_BYTES and start < size:
        yield zeros_digest(kind, size % CHUNK_BYTES)


def file_digest(kind: str, chunk_digests: Iterable[bytes]) -> str:
    """The digest of the file whose chunks have these digests, in its written form."""
    root = new_hasher(kind)
    for digest in chunk_digests:
        root.update(digest)
    return f"{kind}:64MiB:{root.digest().hex()}"


def digest_kind(text: str) -> str:
    """The kind of the written digest `text`. Raises ValueError if it is not one that we know."""
    kind, chunk, value = [*text.split(":"), "", ""][:3]
    if chunk != "64MiB" or len(value) != 2 * len(new_hasher(kind).digest()):
        raise ValueError(f"not a digest of tierfs: {text!r}")
    return kind


def digest_of_file(system: OS, fd: int, kind: str) -> str:
    """The digest of the file `fd` as it is now, in its written form. Blocks; raises OSError.

    Reads through the page cache, one chunk after the other; holes are not read.
    """
    size = system.fstat("verify.stat", fd).st_size
    buffer = memoryview(bytearray(min(BLOCK_BYTES, max(size, 1))))
    spans, digests = Spans(size), dict[int, bytes]()
    for span in spans:
        data = next(system.data_ranges("verify.ranges", fd, size, span[0]), (size, size))
        if data[0] >= span[1]:
            spans.skip(data[0])
        else:
            digests[span[0]] = chunk_digest(system, fd, kind, span, buffer)
    return file_digest(kind, with_holes(kind, size, digests))


def chunk_digest(
    system: OS, fd: int, kind: str, span: tuple[int, int], buffer: memoryview | None = None
) -> bytes:
    """The digest of the chunk `span` of the file `fd`; `buffer` is used to read it. Blocks."""
    if buffer is None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
    position, end = span
    hasher = new_hasher(kind)
    for start, stop in system.data_ranges("verify.ranges", fd, end, position):
        update_zeros(hasher, start - position)
        position = start
        while position < stop:
            view = buffer[: min(len(buffer), stop - position)]
            got = system.pread_into("verify.read", fd, view, position)
            if got == 0:  # it was cut while it was read: what is left counts as zeros
                break
            hasher.update(view[:got])
            position += got
    update_zeros(hasher, end - position)
    return hasher.digest()
