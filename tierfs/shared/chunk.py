"""One chunk on its way: read, hashed and written, then read back past the page cache."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tierfs import threads
from tierfs.errors import ObjectChanged, SpilledDamaged, VerifyMismatch
from tierfs.model import Name
from tierfs.osio import OS
from tierfs.shared import digest
from tierfs.shared.bandwidth import Share
from tierfs.shared.jobs import FileJob
from tierfs.shared.places import Place

ALIGNMENT = 4096
"""What O_DIRECT wants of offset, length and memory on devices of 512 and of 4096 bytes a sector."""

Span = tuple[int, int]


class DirectRefused(Exception):
    """The file system took O_DIRECT at open and refuses it for data: do without."""


@dataclass(slots=True)
class Transfer:
    """One file while it is sent.

    Attributes:
        fd: the staged file, through the page cache: for attributes, and data without O_DIRECT.
        direct_fd: the same with O_DIRECT; None where it is refused.
        name: in staging.
        in_place: the staged file is the source: it is only verified.
        share: of the bandwidth; what is written counts, and what is read back.
        beside: see :class:`~tierfs.shared.jobs.Staged`.
        sent: bytes reported as progress.
        digests: of the chunks that are written and verified, but for holes.
        plain: hashes what is read back, from beginning to end; None: nobody wants that.
        moves: told that it does not hang.
    """

    job: FileJob
    kind: str
    fd: int
    direct_fd: int | None
    name: Name
    share: Share
    beside: Place | None = None
    in_place: bool = False
    sent: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    plain: digest.Hasher | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    moves: Callable[[], None] = lambda: None

    def progress(self, count: int) -> None:
        """Report bytes as sent, one call at a time."""
        self.moves()
        with self.lock:
            self.sent += count
            self.job.progress(count)

    def check(self) -> None:
        """Stop here if the task was cancelled or the source written. Raises ObjectChanged."""
        self.moves()
        threads.check_cancelled()
        if self.job.changed():
            raise ObjectChanged


def send_chunk(system: OS, transfer: Transfer, span: Span, buffer: memoryview) -> int:
    """Write the chunk `span` and compare what the shared tier returns for it.

    Returns where the hole ends that it is in on both tiers; the end of `span` if it is in none.
    Runs in a thread of a pool. Raises ObjectChanged, VerifyMismatch, SpilledDamaged, DirectRefused.
    """
    sent, has_data = _send(system, transfer, span, buffer)
    if has_data and transfer.direct_fd is None:
        # Only clean pages leave the cache, and only pages that left it are read from the tier.
        system.fdatasync("put.write_out", transfer.fd)
        system.drop_cache("put.drop_cache", transfer.fd, span[0], span[1] - span[0])
    if not has_data and _is_hole(system, transfer, span):
        if transfer.plain is None:
            return _hole_end(system, transfer, span[1])
        digest.update_zeros(transfer.plain, span[1] - span[0])
        return span[1]
    received = _read_back(system, transfer, span, buffer)
    if sent != received:
        raise damaged(transfer)
    transfer.digests[span[0]] = sent
    return span[1]


def _send(system: OS, transfer: Transfer, span: Span, buffer: memoryview) -> tuple[bytes, bool]:
    job, (position, end) = transfer.job, span
    hasher = digest.new_hasher(transfer.kind)
    has_data = False
    for start, stop in _blocks(system, job.source_fd, span):
        digest.update_zeros(hasher, start - position)
        transfer.progress(start - position)
        transfer.check()
        data = buffer[: stop - start]
        _read_source(system, job.source_fd, data, start)
        hasher.update(data)
        _write_block(system, transfer, buffer, stop - start, start)
        position, has_data = stop, True
    transfer.progress(end - position)
    if not has_data:
        return digest.zeros_digest(transfer.kind, end - span[0]), False
    digest.update_zeros(hasher, end - position)
    return hasher.digest(), True


def _blocks(system: OS, fd: int, span: Span) -> Iterator[Span]:
    """The data of `span`, in aligned pieces of at most one block that do not overlap."""
    done = span[0]
    for start, stop in system.data_ranges("put.ranges", fd, span[1], span[0]):
        start = max(start - start % ALIGNMENT, done)
        stop = min(stop + -stop % ALIGNMENT, span[1])
        for position in range(start, stop, digest.BLOCK_BYTES):
            yield position, min(position + digest.BLOCK_BYTES, stop)
        done = max(done, stop)


def _read_source(system: OS, fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        got = system.pread_into("put.read", fd, data[done:], offset + done)
        if got == 0:  # it is shorter than it was
            raise ObjectChanged
        done += got


def _write_block(
    system: OS, transfer: Transfer, buffer: memoryview, length: int, offset: int
) -> None:
    padded = length + -length % ALIGNMENT
    buffer[length:padded] = bytes(padded - length)  # the size is put right afterwards
    done = 0
    while done < length:
        granted = transfer.share.take(length - done, transfer.check)
        end = min(done + granted, length)
        _write(system, transfer, buffer, (done, end), offset)
        transfer.progress(end - done)
        done = end


def _write(system: OS, transfer: Transfer, buffer: memoryview, piece: Span, offset: int) -> None:
    start, end = piece
    if transfer.in_place:
        return
    if transfer.direct_fd is None:
        system.pwrite_all("put.write", transfer.fd, buffer[start:end], offset + start)
        return
    padded = end + -end % ALIGNMENT
    try:
        system.pwrite_all("put.write", transfer.direct_fd, buffer[start:padded], offset + start)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise DirectRefused from error
        raise


def _is_hole(system: OS, transfer: Transfer, span: Span) -> bool:
    """Whether the staged file has no data in `span` either, so reads as zeros."""
    return not any(system.data_ranges("put.reread", transfer.fd, span[1], span[0]))


def _hole_end(system: OS, transfer: Transfer, position: int) -> int:
    size = transfer.job.size
    for fd in (transfer.job.source_fd, transfer.fd):
        size = next(system.data_ranges("put.ranges", fd, size, position), (size, size))[0]
    return size


def damaged(transfer: Transfer) -> OSError:
    """The error for a staged file that is not what it should be."""
    name = os.fsdecode(transfer.name)
    return SpilledDamaged(name) if transfer.in_place else VerifyMismatch(name)


def _read_back(system: OS, transfer: Transfer, span: Span, buffer: memoryview) -> bytes:
    hasher = digest.new_hasher(transfer.kind)
    fd = transfer.fd if transfer.direct_fd is None else transfer.direct_fd
    position = span[0]
    while position < span[1]:
        transfer.check()
        wanted = transfer.share.take(min(len(buffer), span[1] - position), transfer.check)
        got = system.pread_into("put.reread", fd, buffer[: wanted + -wanted % ALIGNMENT], position)
        if got == 0:
            raise damaged(transfer)
        transfer.progress(0)  # it moves
        used = min(got, wanted)
        hasher.update(buffer[:used])
        if transfer.plain is not None:
            transfer.plain.update(buffer[:used])
        position += used
    if transfer.direct_fd is None:
        system.drop_cache("put.drop_cache", fd, span[0], span[1] - span[0])
    return hasher.digest()


def open_direct(system: OS, directory: int, name: bytes) -> int | None:
    """The staged file `name` past the page cache; None where the file system refuses that."""
    try:
        return system.open_at("put.open_direct", directory, name, os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
