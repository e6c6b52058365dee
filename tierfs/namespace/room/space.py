"""How much is free: what the shared tier says, less what is still to be sent there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tierfs.health import is_failure
from tierfs.model import ROOT, Op, OpKind, Phase
from tierfs.namespace.core import Core
from tierfs.namespace.outage.watch import Watch

VALID_SECONDS = 1.0
"""How long the sum of what is pending is taken as it was."""


class Space:
    """Answers statfs. `clock` is monotonic."""

    def __init__(
        self, core: Core, watch: Watch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._core = core
        self._watch = watch
        self._clock = clock
        self._until = 0.0
        self._pending = 0

    async def statfs(self) -> os.statvfs_result:
        """The space of the shared tier; what is pending is not free any more.

        While it does not answer, what it said last (DESIGN 4).
        """
        core, last = self._core, self._watch.space
        try:
            st = await core.on_shared(core.shared.statvfs, hasty=last is not None)
        except OSError as error:
            if last is None or not is_failure(error):
                raise
            st = last
        blocks = -(-self._pending_bytes() // st.f_frsize)
        free, available = max(0, st.f_bfree - blocks), max(0, st.f_bavail - blocks)
        return os.statvfs_result(
            (
                st.f_bsize, st.f_frsize, st.f_blocks, free, available,
                st.f_files, st.f_ffree, st.f_favail, st.f_flag, st.f_namemax,
            )
        )  # fmt: skip

    def _pending_bytes(self) -> int:
        now = self._clock()
        if now >= self._until:
            ops = self._core.backlog.under(ROOT)
            self._pending = sum(self._bytes(op) for op in ops if op.kind is OpKind.PUT)
            self._until = now + VALID_SECONDS
        return self._pending

    def _bytes(self, op: Op) -> int:
        """What the file of `op` will still take there: holes take nothing."""
        if op.phase >= Phase.STAGED:
            return 0
        obj = self._core.tree.objects.get(op.object)
        known = obj.attributes if obj is not None else None
        return op.size if known is None else min(op.size, known.blocks * 512)
