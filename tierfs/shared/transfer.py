"""Staging a file: reserve, send and verify its chunks, give it its attributes, make it durable."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import trio

from tierfs.config import reserve_bytes
from tierfs.errors import ObjectChanged
from tierfs.model import Name, OpKind
from tierfs.shared import layout
from tierfs.shared.attributes import apply_attributes, replace_xattrs
from tierfs.shared.buffers import BufferPool
from tierfs.shared.chunk import (
    ALIGNMENT,
    DirectRefused,
    Span,
    Transfer,
    damaged,
    open_direct,
    send_chunk,
)
from tierfs.shared.digest import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    Spans,
    chunks,
    file_digest,
    new_hasher,
    with_holes,
)
from tierfs.shared.jobs import FileJob, Staged
from tierfs.shared.spill import link_spilled, remove_labels
from tierfs.shared.staging import Staging, lost

T = TypeVar("T")

BLOCK = 512
"""Unit of st_blocks (stat(2))."""

_NO_PREALLOCATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Transfers(Staging):
    """Sends content. Nothing here is visible under a final name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers = BufferPool()
        self._direct = True
        self._moved_at = 0.0

    def quiet(self, now: float) -> float:
        """For how many seconds content is on its way and none of it has moved, 0.0 if none is;
        `now`: time.monotonic().
        """
        oldest = max(pool.oldest(now) for pool in (self.transfer_threads, self.small_threads))
        ended = max(pool.ended for pool in (self.transfer_threads, self.small_threads))
        return max(0.0, min(oldest, now - max(self._moved_at, ended)))

    def _moves_on(self) -> None:
        self._moved_at = time.monotonic()

    async def stage_file(self, job: FileJob) -> Staged:
        """Stage the content of `job`, verified and durable, with all its attributes.

        Raises ObjectChanged if the source was written meanwhile, VerifyMismatch, OSError.
        Whenever it does not return, cancellation included, nothing is left in staging.
        """
        while True:
            direct = self._direct
            try:
                if job.size <= BLOCK_BYTES:  # not behind threads that wait for bandwidth
                    return await self.small_threads.run(self._stage_small, job, direct)
                if job.size <= CHUNK_BYTES:  # one thread does it all
                    return await self._in_thread(self._stage_small, job, direct)
                return await self._stage_large(job, direct)
            except DirectRefused:
                self._direct = False

    def restore_attributes(self, staged: Staged, job: FileJob) -> None:
        """Give a staged file the attributes of `job`, which changed since. Blocks.

        Raises FileNotFoundError if what was staged is not there any more: stage it again.
        """
        with self.opened_staging(staged.beside) as directory:
            try:
                fd = self.system.open_at("put.reopen", directory, staged.name, os.O_RDONLY)
            except FileNotFoundError:
                raise lost(staged) from None
            try:
                if self.system.fstat("put.stat", fd).st_ino != staged.inode:
                    raise lost(staged)
                if not staged.in_place:  # else they are those of the object
                    replace_xattrs(self.system, "put", fd, job.xattrs)
                    self._apply(fd, job)
                self.system.fsync("put.fsync", fd)
            finally:
                self.system.close("put.close", fd)

    def _stage_small(self, job: FileJob, direct: bool) -> Staged:
        with self._transferring(job, direct) as transfer:
            for span in chunks(job.size):
                self._send(transfer, span)
            return self._finish(transfer)

    async def _stage_large(self, job: FileJob, direct: bool) -> Staged:
        async with self._entered(self._transferring(job, direct)) as transfer:
            spans = Spans(job.size)
            failures: list[Exception] = []
            async with trio.open_nursery() as nursery:
                for _ in range(1 if job.plain else self.settings.transfer_chunks):
                    nursery.start_soon(
                        self._send_some, transfer, spans, failures, nursery.cancel_scope
                    )
            if failures:
                raise failures[0]
            return await self._in_thread(self._finish, transfer)

    async def _send_some(
        self,
        transfer: Transfer,
        spans: Spans,
        failures: list[Exception],
        scope: trio.CancelScope,
    ) -> None:
        for span in spans:
            try:
                end = await self._in_thread(self._send, transfer, span)
            except Exception as error:
                failures.append(error)
                scope.cancel()
                return
            if (skipped := spans.skip(end)) > 0:
                transfer.progress(skipped)

    def _send(self, transfer: Transfer, span: Span) -> int:
        with self._buffers.borrow() as buffer:
            return send_chunk(self.system, transfer, span, buffer)

    @contextmanager
    def _transferring(self, job: FileJob, direct: bool) -> Iterator[Transfer]:
        kind = job.digest or self.settings.digest
        with self.staging_of(OpKind.PUT, job.row, job.name, job.place) as (place, name, beside):
            fd, in_place = self._create(job, place, name)
            share = self.bandwidth.share()
            transfer = Transfer(job, kind, fd, None, name, share, beside, in_place)
            transfer.moves = self._moves_on
            if job.plain:
                transfer.plain = new_hasher("sha256")
            try:
                if direct and job.size:
                    transfer.direct_fd = open_direct(self.system, place, name)
                self._reserve(transfer)
                yield transfer
            except DirectRefused:
                job.progress(-transfer.sent)  # it is sent once more
                raise
            finally:
                if transfer.direct_fd is not None:
                    self.system.close("put.close", transfer.direct_fd)
                self.system.close("put.close", fd)

    def _create(self, job: FileJob, place: int, name: Name) -> tuple[int, bool]:
        """The file in staging, and whether it is the source itself."""
        if job.spilled is not None and link_spilled(self.system, job, place, name):
            return self.system.open_at("put.open", place, name, os.O_RDWR), True
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return self.system.open_at("put.create", place, name, flags, 0o600), False

    def _reserve(self, transfer: Transfer) -> None:
        job = transfer.job
        source = self.system.fstat("put.source", job.source_fd)
        if source.st_size != job.size:
            raise ObjectChanged
        if job.size == 0 or transfer.in_place:
            return
        self._leave_room(transfer.fd, min(job.size, source.st_blocks * BLOCK))
        pieces = self.system.data_ranges("put.ranges", job.source_fd, job.size)
        if next(pieces, None) == (0, job.size):
            try:
                self.system.fallocate("put.reserve", transfer.fd, 0, job.size)
                return
            except OSError as error:
                if error.errno not in _NO_PREALLOCATION:
                    raise
        # With holes: reserving would fill them. The size comes first in any case, so that
        # chunks can be written in any order without the lock that a growing file takes.
        self.system.ftruncate("put.reserve", transfer.fd, job.size)

    def _leave_room(self, fd: int, size: int) -> None:
        """OSError(ENOSPC) for what is large and would take what is kept for small files."""
        if size <= self.settings.small_file:
            return
        st = self.system.statvfs("put.room", fd)
        kept = reserve_bytes(self.settings.small_reserve, st.f_blocks * st.f_frsize)
        if st.f_bavail * st.f_frsize - size < kept:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _finish(self, transfer: Transfer) -> Staged:
        job, fd = transfer.job, transfer.fd
        if transfer.direct_fd is not None and job.size % ALIGNMENT and not transfer.in_place:
            self.system.ftruncate("put.truncate", fd, job.size)
        if self.system.fstat("put.source", job.source_fd).st_size != job.size:
            raise ObjectChanged
        st = self.system.fstat("put.size", fd)
        if st.st_size != job.size:
            raise damaged(transfer)
        kind = transfer.kind
        digest = file_digest(kind, with_holes(kind, job.size, transfer.digests))
        self.system.set_xattr("put.digest", fd, layout.XATTR_DIGEST, digest.encode())
        if transfer.plain is not None:
            value = transfer.plain.digest().hex().encode()
            self.system.set_xattr("put.sha256", fd, layout.XATTR_SHA256, value)
        if transfer.in_place:
            remove_labels(self.system, fd)
        else:
            self._apply(fd, job)
        self.system.fsync("put.fsync", fd)
        transfer.check()
        return Staged(
            OpKind.PUT, job.row, transfer.name, st.st_ino, digest, transfer.beside,
            transfer.in_place,
        )  # fmt: skip

    def _apply(self, fd: int, job: FileJob) -> None:
        apply_attributes(
            self.system, "put", fd, job.attributes, job.xattrs, keep_setid=job.keep_setid
        )

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await self.transfer_threads.run(call, *args)

    @asynccontextmanager
    async def _entered(self, manager: AbstractContextManager[T]) -> AsyncIterator[T]:
        """`manager`, entered and left in threads; left also when the task is cancelled."""
        value = await self._in_thread(manager.__enter__)
        try:
            yield value
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._in_thread(manager.__exit__, *sys.exc_info())
            raise
        await self._in_thread(manager.__exit__, None, None, None)
