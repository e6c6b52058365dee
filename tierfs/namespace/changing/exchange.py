"""RENAME_EXCHANGE: two names change what they lead to, by one op and one call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from tierfs.journal import SaveObject
from tierfs.model import EXCHANGED, Name, ObjectRecord, Op, OpKind
from tierfs.namespace.clock import file_time_ns
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, DirectoryState, Entry, LocalObject, Node
from tierfs.osio import RENAME_EXCHANGE


@dataclass(frozen=True, slots=True)
class End:
    """One of the two names, and what has it before."""

    state: DirectoryState
    name: Name
    node: Node

    @property
    def entry(self) -> Entry | None:
        """What the overlay says of the name."""
        return self.state.entries.get(self.name)

    @property
    def shared_inode(self) -> int | None:
        """What the shared tier has under the name."""
        if self.entry is not None:
            return self.entry.shared_inode
        return self.node.shared.inode if self.node.shared is not None else None

    @property
    def stays(self) -> bool:
        """Whether the name leads to something of this node alone."""
        return self.entry is not None and self.entry.op.kind is OpKind.MKNOD


Move = Callable[[End, DirectoryState, Name], Op]
"""A rename to a name that nothing has; the synchronous step."""

Uncover = Callable[[DirectoryState, Name, int | None], None]


class Exchanges:
    """Carries exchanges out; what is of this node alone is no part of the op."""

    def __init__(self, core: Core, lookup: Lookup, move: Move, uncover: Uncover) -> None:
        self._core = core
        self._tree = core.tree
        self._lookup = lookup
        self._move = move
        self._uncover = uncover

    async def exchange(
        self, state: DirectoryState, name: Name, state2: DirectoryState, name2: Name
    ) -> None:
        """Exchanges two names, both of which must be there."""
        core = self._core
        if not core.shared.can_exchange:
            raise OSError(errno.EINVAL, "the shared tier cannot exchange names")
        for each in ((state, name), (state2, name2)):
            core.check_new_name(*each)
        while True:
            marks = (state.changes, state2.changes)
            one = End(state, name, await self._lookup.resolve(state, name))
            other = End(state2, name2, await self._lookup.resolve(state2, name2))
            await core.made(one.node)
            await core.made(other.node)
            if (state.changes, state2.changes) == marks:
                break
        if one.node is other.node:
            return
        for end, its in ((one, other), (other, one)):
            directory = end.node.directory
            if directory is not None and core.groups.is_unsealed(directory):
                message = "a checkpoint that is not published yet cannot be exchanged"
                raise OSError(errno.EBUSY, message, os.fsdecode(end.name))
            if directory is not None and self._tree.is_within(its.state.id, directory):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(end.name))
        with core.step():
            op = self._issue(one, other)
        await core.journal.written()
        if op is not None:
            core.writeback.submit(op)

    def _issue(self, one: End, other: End) -> Op | None:
        if one.stays and other.stays:
            self._both_here(one, other)
            return None
        if one.stays or other.stays:
            here, sent = (one, other) if one.stays else (other, one)
            return self._one_here(here, sent)
        return self._sent(one, other)

    def _both_here(self, one: End, other: End) -> None:
        first, second = one.entry, other.entry
        assert first is not None
        assert second is not None
        objects = first.object, second.object
        for end, entry, obj in ((other, first, objects[0]), (one, second, objects[1])):
            under = second.shared_inode if end is other else first.shared_inode
            self._place_here(end, entry.op, obj, under)
        self._swap_names(one, other)
        for end in (one, other):
            self._core.changed_here(end.state)

    def _one_here(self, here: End, sent: End) -> Op:
        entry = here.entry
        assert entry is not None
        obj = entry.object
        self._uncover(here.state, here.name, entry.shared_inode)
        here.node.names.discard((here.state.id, here.name))
        op = self._move(sent, here.state, here.name)
        under = sent.entry.shared_inode if sent.entry is not None else None
        self._place_here(sent, entry.op, obj, under)
        here.node.names.add((sent.state.id, sent.name))
        self._tree.renamed(here.node)
        return op

    def _place_here(
        self, end: End, op: Op, obj: LocalObject | None, shared_inode: int | None
    ) -> None:
        self._core.retarget(op, end.state, end.name, overwrites=False)
        end.state.put(end.name, Entry(obj, op, shared_inode))

    def _sent(self, one: End, other: End) -> Op:
        """The op: `one` moves to the name of `other`, which moves to that of `one`."""
        core = self._core
        here, there = one.shared_inode, other.shared_inode
        moved, back = core.object_of(one.node), core.object_of(other.node)
        shared = other.node.shared
        back.pending += 1
        base = shared.inode if shared is not None and back.put is None else None
        core.journal.post(
            SaveObject(ObjectRecord(back.id, back.kind, back.content is Content.DATA, base))
        )
        mine = one.node.shared
        op, _ = core.issue(
            OpKind.RENAME, moved, other.state, other.name, source=(one.state, one.name),
            base_inode=mine.inode if mine is not None and moved.put is None else None,
            flags=RENAME_EXCHANGE, fields=(f"{EXCHANGED}{back.id:x}",),
        )  # fmt: skip
        one.state.put(one.name, Entry(back, op, here))
        other.state.put(other.name, Entry(moved, op, there))
        self._swap_names(one, other)
        for end, its in ((one, other), (other, one)):
            if end.node.directory is not None:
                directory = self._tree.directories[end.node.directory]
                self._tree.move_directory(directory, its.state.id, its.name)
        return op

    def _swap_names(self, one: End, other: End) -> None:
        for end in (one, other):
            end.node.names.discard((end.state.id, end.name))
        for end, its in ((one, other), (other, one)):
            end.node.names.add((its.state.id, its.name))
            end.node.linked_ns = file_time_ns()
            self._tree.renamed(end.node)
