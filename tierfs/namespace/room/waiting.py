"""Where writes that find the local tier full wait, each in its turn (G9)."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from tierfs.capacity import Full, Next, what_now
from tierfs.errors import XattrsFull
from tierfs.model import ROOT, Op, OpKind, OpState
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Node
from tierfs.namespace.room.eviction import Eviction
from tierfs.osio.processes import is_dying

T = TypeVar("T")

DYING_SECONDS = 0.5
"""How often it is looked whether who waits was killed: the kernel waits on for the answer."""

COMING_SECONDS = 0.25
"""How long the sum of what can still be committed is taken as it was."""

CLOSING_SECONDS = 1.0
"""How long a file that was closed, and not released, counts as about to be."""

TRIES = 10
"""How often a write is tried again only because the drive says that there is room: it may have been
taken for a file that grows, and be given back by the drive when it is full."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(eq=False)
class Waiter:
    """One that waits: the thread that asks (0: not known), and how to end it."""

    thread: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    dying: bool = False


class Waiters:
    """Those that wait now. Who is killed meanwhile need not wait to the end: OSError(EINTR)."""

    def __init__(self) -> None:
        self._waiting: set[Waiter] = set()
        self._come = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waiting(
        self, thread: int, seconds: float = float("inf"), *, quietly: bool = False
    ) -> Iterator[None]:
        """Ends the block after `seconds`, or when the process of `thread` is killed.

        That is an error unless `quietly`.
        """
        waiter = Waiter(thread)
        waiter.scope.deadline = trio.current_time() + seconds
        self._waiting.add(waiter)
        self._come.set()
        try:
            with waiter.scope:
                yield
        finally:
            self._waiting.discard(waiter)
        if waiter.dying and waiter.scope.cancelled_caught and not quietly:
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    async def run(self) -> None:
        """Looks after them, until cancelled."""
        while True:
            await self._come.wait()
            self._come = trio.Event()
            while self._waiting:
                for waiter in list(self._waiting):
                    if waiter.thread and is_dying(waiter.thread):
                        waiter.dying = True
                        waiter.scope.cancel()
                await trio.sleep(DYING_SECONDS)


class Room:
    """Finds room on the local tier for what did not fit.

    Attributes:
        waiters: writes that wait now.
    """

    def __init__(self, core: Core, eviction: Eviction) -> None:
        self._core = core
        self._eviction = eviction
        self._turn = trio.StrictFIFOLock()
        self._coming = 0
        self._known_until = 0.0
        self.waiters = Waiters()

    async def run(self) -> None:
        """Until cancelled."""
        await self.waiters.run()

    async def find(
        self, size: int, *, small: bool = False, thread: int = 0, tried: int = 0,
        can_spill: bool = False,
    ) -> Next:  # fmt: skip
        """What a call does that needs `size` bytes and met ENOSPC: RETRY, SPILL or REFUSE.

        It comes back when there may be room, at the latest after `full_wait`. `thread` is that
        of the application: OSError(EINTR) when it is killed meanwhile. `tried`: how often the
        call was made again already. `can_spill`: whether it could write to the shared tier.
        What is small takes of the reserve at once: who has the turn may wait for long.
        """
        if small and await self._core.local(self._core.store.reserve.give, size):
            return Next.RETRY
        found = Next.SPILL if can_spill else Next.REFUSE
        with self.waiters.waiting(thread, self._core.settings.full_wait):
            async with self._turn:
                found = await self._find(
                    size, small=small, believing=tried < TRIES, can_spill=can_spill
                )
        return found

    async def _find(self, size: int, *, small: bool, believing: bool, can_spill: bool) -> Next:
        core = self._core
        while True:
            freed = core.freed.next
            if await self._has_room(size, small=small, believing=believing):
                return Next.RETRY
            found = what_now(Full(self._can_come(), can_spill))
            if found is not Next.WAIT:
                return found
            with core.writeback.pace.rush():
                await freed.wait()

    async def _has_room(self, size: int, *, small: bool, believing: bool) -> bool:
        """Whether it is worth another try; `believing`: also because the drive says so."""
        core = self._core
        if await self._eviction.make(size):
            return True
        if believing and await self._is_free(2 * size) and await self.leaves(2 * size):
            return True
        return small and await core.local(core.store.reserve.give, size)

    async def _is_free(self, size: int) -> bool:
        _, free = await self._core.local(self._core.store.usage)
        return free >= size

    async def leaves(self, size: int) -> bool:
        """Whether `size` bytes more leave room for what the kernel writes by itself, and for
        small files.
        """
        return await self._eviction.leaves(size)

    def _can_come(self) -> int:
        """Bytes that can become free while the one that waits stays open.

        Pending files that can be committed, files that are just being closed, and clean copies
        that somebody has open.
        """
        now = time.monotonic()
        if now >= self._known_until:
            ops = self._core.backlog.under(ROOT)
            self._coming = sum(max(1, op.size) for op in ops if self._is_coming(op, now))
            self._known_until = now + COMING_SECONDS
        return self._coming + self._eviction.in_use

    def _is_coming(self, op: Op, now: float) -> bool:
        if op.kind is not OpKind.PUT or op.mark is not None or op.state is OpState.OPEN:
            return False
        if op.state is OpState.CLOSED:  # what follows at once
            obj = self._core.tree.objects.get(op.object)
            return obj is not None and now - obj.flushed_at < CLOSING_SECONDS
        return not self._core.backlog.blocked_for_good(op, now)

    def is_small(self, node: Node, end: int) -> bool:
        """Whether a write to `node` that ends at `end` may have what is kept for small files."""
        most = self._core.settings.small_file
        if end > most:
            return False
        path = self._core.tree.path_of(node)
        return path is None or (self._core.expected.known(path) or 0) <= most

    async def with_room(self, size: int, small: bool, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` answers, which takes `size` bytes; tried again when there may be room."""
        for tried in itertools.count():
            if small or await self.leaves(size):
                try:
                    return await attempt()
                except OSError as error:
                    if error.errno not in FULL or isinstance(error, XattrsFull):
                        raise
            if await self.find(size, small=small, tried=tried) is not Next.RETRY:
                return await attempt()  # the drive may have what is promised to others
        raise AssertionError
