"""Files of policy `scratch`: names and content of this node alone, until they get another path.

Such a file is kept by an op that is never sent, as a fifo is. It is written in place: nobody else
ever reads a state of it. Under a path with another policy it becomes an ordinary file.
"""

from __future__ import annotations

import errno
import os

from tierfs.journal import SaveOp
from tierfs.model import Name, OpKind
from tierfs.namespace.content.data import Data
from tierfs.namespace.content.files import Files
from tierfs.namespace.content.opening import Opening
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import DirectoryState, Entry, LocalObject, Node
from tierfs.policies import PolicyKind


class Scratch:
    """What happens to scratch files whose names change."""

    def __init__(self, core: Core, data: Data, opening: Opening, files: Files) -> None:
        self._core = core
        self._data = data
        self._opening = opening
        self._files = files

    def is_at(self, state: DirectoryState, name: Name) -> bool:
        """Whether files made as `name` in `state` are scratch."""
        path = (*self._core.tree.path(state.id), name)
        return self._core.policies.of(path).kind is PolicyKind.SCRATCH

    def check_end(self, node: Node, state: DirectoryState, name: Name) -> None:
        """OSError(EXDEV) unless `node` may also be known as `name` in `state`."""
        if node.directory is None and is_scratch(node) != self.is_at(state, name):
            message = "one is scratch and stays on this node, the other is not"
            raise OSError(errno.EXDEV, message, os.fsdecode(name))

    async def leave(self, node: Node, obj: LocalObject) -> None:
        """`obj` will be sent: when its writers have closed it, else when `sent` is called."""
        core = self._core
        attributes = await self._data.look(obj)
        kept = [entry for place in node.names if (entry := core.tree.entry(*place)) is not None]
        with core.journal.together():
            obj.scratch = False
            core.scratch.discard(obj)
            self._opening.issue_put(node, obj)
            for entry in kept:
                core.drop_op(entry.op)
        if obj.put is None:
            return
        if obj.writers or obj.settling:
            obj.dirty = True
        else:
            self._files.ending.number(obj.put, attributes)
            core.journal.post(SaveOp(obj.put))

    async def sent(self, node: Node, obj: LocalObject) -> None:
        """Its new path stands: it goes, unless it is open."""
        async with node.lock:
            if not obj.writers and not obj.settling:
                await self._files.ending.written(node, obj)

    def stay(self, node: Node, obj: LocalObject) -> None:
        """What `leave` did is undone: it got no other path."""
        core = self._core
        with core.journal.together():
            obj.scratch = True
            core.scratch.add(obj)
            for directory, name in node.names:
                state = core.tree.directories[directory]
                entry = state.entries[name]
                op, _ = core.issue(OpKind.MKNOD, obj, state, name)
                state.put(name, Entry(obj, op, entry.shared_inode))
                core.drop_op(entry.op)

    async def sweep(self) -> None:
        """Sends the scratch files whose path has another policy now."""
        core = self._core
        for obj in list(core.scratch):
            node = core.tree.by_object.get(obj.id)
            if node is None or not node.names or not obj.pending:
                if not obj.pending:
                    core.scratch.discard(obj)
                continue
            places = [(core.tree.directories[directory], name) for directory, name in node.names]
            if not all(self.is_at(*place) for place in places):
                await self.leave(node, obj)
                await self.sent(node, obj)


def is_scratch(node: Node) -> bool:
    """Whether `node` is a scratch file."""
    return node.object is not None and node.object.scratch
