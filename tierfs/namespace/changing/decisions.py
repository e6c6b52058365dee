"""Files that are not committed by themselves: accepted, discarded, or gone with their name."""

from __future__ import annotations

import errno
import os

from tierfs.journal import SaveOp
from tierfs.model import UNDECIDED, Op, OpKind, OpState
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Entry


def take_back(core: Core, op: Op) -> None:
    """`op` made a name that goes now, or becomes another's; nothing waits for it.

    Older versions of the name that nobody has decided about go with it: what takes the name away
    would wait for them without end.
    """
    core.drop_op(op)
    while (old := core.backlog.of_name(op.parent, op.name)) is not None:
        if old.kind is not OpKind.PUT or old.mark not in UNDECIDED or not core.droppable(old):
            return
        core.drop_op(old)
        core.spare.append(core.tree.objects[old.object])


class Decisions:
    """Torn, suspect and stuck files."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def accept(self, op: Op) -> None:
        """A torn, suspect or stuck file is to be committed as it is."""
        op.mark = op.error = None
        op.attempts = 0
        if op.state is OpState.OPEN:
            op.state = OpState.PENDING
        self._core.backlog.update(op)
        self._core.journal.post(SaveOp(op))
        self._core.writeback.submit(op)

    async def discard(self, op: Op) -> None:
        """The pending content is forgotten; the name shows what the shared tier has, if anything.

        OSError(EBUSY) while it is open or its place in the order is already needed by others.
        """
        core = self._core
        obj = core.tree.objects[op.object]
        state = core.tree.directories[op.parent]
        node = core.tree.by_object.get(obj.id)
        if obj.users or (node is not None and node.lock.held):  # or is just being opened
            raise OSError(errno.EBUSY, "the file is open", os.fsdecode(op.name))
        core.drop_op(op)
        entry = state.entries.get(op.name)
        going = core.backlog.going(state.id, op.name)
        hidden = going is not None or entry is None or entry.op is not op
        shows = None if entry is None or hidden else entry.shared_inode
        if node is not None:
            if node.shared is None or node.shared.inode != shows:
                node.names.discard((op.parent, op.name))
            node.unlinked = not node.names
            if node.unlinked:  # who opens it now has looked up what is not there: ESTALE
                core.tree.switch_object(node, None)
        if entry is not None and entry.op is op:
            if going is not None:
                state.put(op.name, Entry(None, going, entry.shared_inode))
            elif entry.shared_inode is None:
                state.forget(op.name)
            else:
                state.drop(op.name)
        await core.dispose_unused(obj)
        await core.journal.written()
