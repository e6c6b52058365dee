"""Worker after worker of one mount, without a kernel: what that knows stays, and is asked again."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.behaviour.direct import Direct
from tests.faults import at
from tierfs.daemon.succession import DEVICE, Succession
from tierfs.journal import Change, SaveOp, Ticket
from tierfs.model import OpKind
from tierfs.namespace.overlay.nodes import Handle

T = TypeVar("T")


class Kept:
    """The worker's end of the link to its supervisor: what is kept for the next one."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self._names: dict[str, int] = {}

    def keep(self, name: str, fd: int) -> None:
        self._names[name] = os.dup(fd)

    def drop(self, name: str) -> None:
        if (fd := self._names.pop(name, None)) is not None:
            os.close(fd)

    def hand_over(self) -> None:
        """The next worker gets duplicates of all, and the device."""
        self.kept = {name: os.dup(fd) for name, fd in self._names.items()} | {DEVICE: -1}

    def close(self) -> None:
        for name in list(self._names):
            self.drop(name)


class Workers(Direct):
    """As `Direct`, with a supervisor: nodes and descriptors outlive the worker."""

    def __init__(self, root: Path, shared: Path) -> None:
        super().__init__(root, shared)
        self._kept = Kept()
        self._unique = 0
        self._succession: Succession

    def _place(self) -> Succession:
        self._succession = Succession.of(self._kept, self._run_directory)  # type: ignore[arg-type]
        return self._succession

    def _run(self, held: bool) -> None:
        super()._run(held)
        for fd in self._succession.log._fds:  # as the end of a process would
            os.close(fd)
        self._succession.log._fds.clear()

    def kill(self, *, held: bool = False) -> None:
        """What is not written yet never will be; the next worker takes up what is.

        It may be called where the worker is about to write something, from its own loop.
        """
        self.run_sync(self.die)
        self.succeed(held=held)

    def die(self) -> None:
        """From this step on nothing is written down."""
        super().die()
        self._succession.log.append = lambda lines: None  # type: ignore[method-assign]

    def die_at_row(self, kind: OpKind | None = None) -> None:
        """It dies when an op of `kind`, or anything, is to be journaled.

        What is remembered speaks of it already, and all that was to be journaled before it is.
        """
        journal = self.rooms.journal
        post, met = journal.post, kind is None

        def look(*changes: Change, later: bool = False) -> Ticket:
            nonlocal met
            met = met or any(isinstance(each, SaveOp) and each.op.kind is kind for each in changes)
            return post(*changes, later=later)

        def die() -> None:
            self.fs.core.memory.flush()
            if met and journal.failed is None:
                journal._writer.call(lambda database: None).result()
                self.die()

        def arm() -> None:
            journal.post, journal.before_post = look, die  # type: ignore[method-assign]

        self.run_sync(arm)

    def die_at(self, step: str, nth: int = 1) -> None:
        """It dies at the `nth` call labelled `step`; and removes no object after that."""
        dead = False

        def die() -> None:
            nonlocal dead
            dead = True
            self.die()

        met = at(step, nth, lambda *_: die())

        def hook(label: str, detail: tuple[object, ...]) -> None:
            met(label, detail)
            if dead and label == "local.remove":
                raise OSError(errno.EIO, "dead")

        self.system.hook = hook

    def succeed(self, *, held: bool = False) -> None:
        """The next worker, after `die`."""
        known, opened = dict(self.counts), dict(self._fds)
        self.stop()
        self._kept.hand_over()
        self.start(held=held)
        self.counts.update(known)
        for fd, each in opened.items():
            each.node = self.fs.tree.nodes[each.node.ino]
            each.handle = self.fs.files.handles[each.handle.number]
            self._fds[fd] = each

    def close_kept(self) -> None:
        """Lets go of what was kept for a next worker."""
        self._kept.close()

    def run(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Runs an async call; what it changed is written down before it is answered."""

        async def remembering() -> T:
            try:
                return await call(*arguments)
            finally:
                self.fs.core.memory.flush()

        return super().run(remembering)

    def _descriptor(self, handle: Handle, flags: int) -> int:
        self._unique += 2
        self.fs.core.memory.opened(handle, self._unique)
        return super()._descriptor(handle, flags)
