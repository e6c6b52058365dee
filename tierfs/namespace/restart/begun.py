"""Files that a worker began to make, or to empty, for an open that it did not live to answer.

The kernel asks the next one again, which goes on with them. Only where the caller is gone as well
does nobody ask: then they are torn, as what a killed writer left.
"""

from __future__ import annotations

import trio

from tierfs.journal import SaveOp
from tierfs.model import Mark, ObjectId, OpState
from tierfs.namespace.core import Core

AGAIN_SECONDS = 5.0
"""How long it is waited for being asked again. The kernel does that before all else."""


class Begun:
    """Keeps them open until they are asked for again, and not for ever."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._objects: set[ObjectId] = set()

    def take_up(self, objects: set[ObjectId]) -> None:
        """These are open, as far as the rows say, and no open file is known."""
        self._objects = objects
        for each in objects:
            self._core.memory.begun(each)

    async def run(self) -> None:
        """Until it is sure that nobody asks again."""
        if self._objects:
            await trio.sleep(AGAIN_SECONDS)
            for each in self._objects:
                self._give_up(each)

    def _give_up(self, object_id: ObjectId) -> None:
        core, obj = self._core, self._core.tree.objects.get(object_id)
        if obj is not None and obj.writers:
            return
        core.memory.begun_no_more(object_id)
        if obj is None or obj.put is None or obj.put.state is not OpState.OPEN:
            return
        op = obj.put
        op.mark, op.state = Mark.TORN, OpState.PENDING
        op.error = "who opened it was killed before it was open; rewrite it, or discard it"
        core.backlog.update(op)
        core.journal.post(SaveOp(op))
        core.writeback.submit(op)
