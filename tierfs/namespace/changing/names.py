"""Taking away and moving names: decided in one synchronous step, then journaled.

How they are made is in `making`.
"""

from __future__ import annotations

import errno
import os

from tierfs.model import Attributes, Kind, Name, ObjectId, Op, OpKind, OpState, Phase
from tierfs.namespace.changing.decisions import Decisions, take_back
from tierfs.namespace.changing.exchange import End, Exchanges
from tierfs.namespace.changing.making import Making
from tierfs.namespace.clock import file_time_ns
from tierfs.namespace.content.files import Files
from tierfs.namespace.core import Core
from tierfs.namespace.finding.inheritance import Inheritance
from tierfs.namespace.finding.listing import Listings
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.finding.pointers import targets_as
from tierfs.namespace.grouping.leaving import forget_unsendable, give_up, is_being_made, leave
from tierfs.namespace.overlay.nodes import Content, DirectoryState, Entry, LocalObject, Node
from tierfs.osio import RENAME_EXCHANGE, RENAME_NOREPLACE

FOLDED = (OpKind.PUT, OpKind.SYMLINK, OpKind.MKNOD)
"""Ops that make a name out of local content: renaming it before it is sent renames the op."""
MAKES = (*FOLDED, OpKind.LINK, OpKind.MKDIR)


class Names(Making):
    """The calls that change directories. What makes a node adds the kernel's lookup to it."""

    def __init__(
        self,
        core: Core,
        lookup: Lookup,
        files: Files,
        listings: Listings,
        inheritance: Inheritance,
        decisions: Decisions,
    ) -> None:
        super().__init__(core, lookup, files, inheritance)
        self._decisions = decisions
        self._listings = listings
        self._exchanges = Exchanges(core, lookup, self._move_away, self._uncover)

    # -- taking away ---------------------------------------------------------------------------

    async def unlink(self, state: DirectoryState, name: Name) -> None:
        """Removes a name; open handles of the file go on."""
        if (seen := self._lookup.seen.take(state, name)) is not None:
            seen[0].keep_last(None, seen[1])
            await self._take(OpKind.UNLINK, state, name, seen[0])
            return
        while True:  # not only the kernel asks, which lets nobody change the name meanwhile
            mark = state.changes
            node, st = await self._lookup.resolve_with_stat(state, name)
            await self._core.made(node)
            if state.changes == mark:
                break
        if node.kind is Kind.DIRECTORY:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(name))
        node.keep_last(st)
        await self._take(OpKind.UNLINK, state, name, node)

    async def rmdir(self, state: DirectoryState, name: Name) -> None:
        """Removes an empty directory, with the unlisted checkpoints in it."""
        node, st, told = await self._directory_at(state, name)
        if node.directory is None:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(name))
        inner = self._tree.directories[node.directory]
        unlisted: dict[Name, ObjectId] | None = None
        while unlisted != inner.unsealed or self._seal_in(inner) is not None:
            # one that is sealed meanwhile is listed, and nobody removed it
            while (seal := self._seal_in(inner)) is not None:
                await self._core.calls.wait(self._core.writeback.decided, seal)
            unlisted = dict(inner.unsealed)
            if not await self._listings.is_empty(inner):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fsdecode(name))
            await forget_unsendable(self._core, self._decisions, inner)
        if self._tree.by_object.get(inner.id) is not node or self._listings.shows_any(inner):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fsdecode(name))
        inner.removed = True
        give_up(self._core, inner)
        node.keep_last(st, inner.known or told)
        await self._take(OpKind.RMDIR, state, name, node)

    async def _directory_at(
        self, state: DirectoryState, name: Name
    ) -> tuple[Node, os.stat_result | None, Attributes | None]:
        """What `name` leads to, and what the shared tier says or has just said of it."""
        if not self._core.groups.is_group(state, name):
            seen = self._lookup.seen.take_directory(state, name)
            if seen is not None:
                return seen[0], None, seen[1]
        return *await self._lookup.resolve_with_stat(state, name), None

    def _seal_in(self, state: DirectoryState) -> Op | None:
        """A checkpoint in a directory that is being published."""
        publishing = self._core.publishing
        return next(filter(None, (publishing(each, OpKind.SEAL)
                                  for each in state.unsealed.values())), None)  # fmt: skip

    async def _take(self, kind: OpKind, state: DirectoryState, name: Name, node: Node) -> None:
        core = self._core
        with core.step(later=True, early=True):
            ops, obj = self._take_away(kind, state, name, node)
        for op in ops:
            core.writeback.submit(op)
        if not ops:
            await self._keep_time(state)
        if not core.journal.is_ahead or (obj is not None and obj.content is not Content.NONE):
            # first the rows: a name must not outlive its content
            await core.journal.written()
        await core.dispose_unused(obj)

    def _take_away(
        self, kind: OpKind, state: DirectoryState, name: Name, node: Node
    ) -> tuple[list[Op], LocalObject | None]:
        """The synchronous step: the ops that will do it, if any are needed, and the object."""
        core = self._core
        fields, ops = leave(core, node)
        entry = state.entries.get(name)
        stays = entry is not None and entry.op.kind is OpKind.MKNOD
        lost = None if entry is None else core.links.replaced_by(entry.op)
        sealed = bool(ops) or entry is None or entry.op.kind is OpKind.RENAME
        whole = not fields and sealed and core.groups.is_group(state, name)
        decided = self._is_lost(state, name)
        shared_inode, obj = self._detach(state, name, node)
        taken_back = entry is not None and entry.op not in core.backlog
        if stays or (kind is OpKind.UNLINK and taken_back and core.backlog.going(state.id, name)):
            self._uncover(state, name, shared_inode)
        elif shared_inode is not None or is_being_made(core, state, name, node):
            obj = obj or core.object_of(node)
            if kind is OpKind.UNLINK and state.vouched:
                core.backlog.note_commit_names(state.id)
            made_before = core.backlog.of_name(state.id, name) is not None
            inode = None if made_before else shared_inode
            if kind is OpKind.RMDIR and whole:
                ops.append(core.issue(OpKind.TRASH, obj, state, name, base_inode=inode)[0])
            op, _ = core.issue(
                kind, obj, state, name, base_inode=inode, fields=fields, decided=decided
            )
            ops.append(op)
            if taken_back:
                core.links.replaces(op, lost)
            state.put(name, Entry(None, op, shared_inode))
        else:
            state.forget(name)
        if not ops:
            core.touch(state, file_time_ns())
            core.changed_here(state)
        return ops, obj

    def _uncover(self, state: DirectoryState, name: Name, shared_inode: int | None) -> None:
        """What stays on this node, or was to be made over what is going, has left `name`: what is
        to become of the name there counts.
        """
        below = self._core.backlog.of_name(state.id, name)
        if below is None:
            state.forget(name)
        else:
            state.put(name, Entry(None, below, shared_inode))

    def _is_lost(self, state: DirectoryState, name: Name) -> bool:
        """Whether the file that `name` leads to went with the local drive."""
        entry = state.entries.get(name)
        if entry is None or entry.object is None or entry.op.mark is None:
            return False
        return entry.op.kind is OpKind.PUT and self._core.is_gone(entry.object)

    async def _keep_time(self, state: DirectoryState) -> None:
        """No op will give `state` the time of a change: its own object does, if it has one."""
        core, obj = self._core, self._tree.objects.get(state.id)
        if obj is None or obj.content is Content.NONE or core.is_gone(obj):
            return
        changed_ns = state.changed_ns
        with core.holding(obj):
            await core.of_object(
                obj.id, lambda: core.store.set_attributes(obj.id, mtime_ns=changed_ns)
            )
        obj.changed()
        maker = core.backlog.of_object(obj.id)
        if maker is not None and maker.kind is OpKind.MKDIR and maker.phase is not Phase.PUBLISHING:
            maker.attr_version += 1

    def _detach(
        self, state: DirectoryState, name: Name, node: Node
    ) -> tuple[int | None, LocalObject | None]:
        """Takes `name` from `node` and cancels what would have made it, where that is safe.

        Returns the inode that the shared tier has under the name, and the node's object.
        """
        core = self._core
        entry = state.entries.get(name)
        if entry is None:
            shared_inode = node.shared.inode if node.shared else None
        else:
            shared_inode = entry.shared_inode
            op = entry.op
            mine = (op.parent, op.name) == (state.id, name)
            makes = op.kind in MAKES
            if mine and makes and core.droppable(op):
                take_back(core, op)
        node.names.discard((state.id, name))
        node.linked_ns = file_time_ns()
        if node.object is not None:
            node.object.changed()
        node.unlinked = not node.names and not node.unknown
        return shared_inode, node.object

    # -- moving --------------------------------------------------------------------------------

    async def rename(
        self, old: DirectoryState, old_name: Name, new: DirectoryState, new_name: Name, flags: int
    ) -> None:
        """Moves a name, over an existing one if need be, or exchanges two: renameat2(2)."""
        if flags == RENAME_EXCHANGE:
            await self._exchanges.exchange(old, old_name, new, new_name)
            return
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, "only NOREPLACE or EXCHANGE are supported")
        self._core.check_new_name(new, new_name)
        while True:
            marks = (old.changes, new.changes)
            node, seen = await self._lookup.resolve_with_stat(old, old_name)
            await self._core.made(node)
            target, st = await self._target(new, new_name)
            if target is not None:
                await self._check_replace(node, target, new_name, flags)
                await self._core.made(target)
            targets = await targets_as(self._core, self._lookup, new, new_name, node)
            if (old.changes, new.changes) == marks:
                break
        if target is node:
            return
        if node.directory is not None and self._tree.is_within(new.id, node.directory):
            raise OSError(errno.EINVAL, "cannot move a directory into itself")
        node.keep_last(seen)
        if target is not None:
            target.keep_last(st)
        with self._core.step():
            op = self._move(old, old_name, new, new_name, node, target, targets)
        await self._core.journal.written()
        if node.object is not None and node.object.content is not Content.NONE:
            await self._relabel(node.object, new, new_name)
        if not op.is_open and op.state is not OpState.CLOSED:
            self._core.writeback.submit(op)
        await self._settle(target)

    async def _target(
        self, state: DirectoryState, name: Name
    ) -> tuple[Node | None, os.stat_result | None]:
        """What a rename would replace, if anything, and what the shared tier says of it."""
        try:
            return await self._lookup.resolve_with_stat(state, name)
        except FileNotFoundError:
            return None, None

    async def _check_replace(self, node: Node, target: Node, name: Name, flags: int) -> None:
        if flags & RENAME_NOREPLACE:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        if target is node:
            return
        if target.directory is not None:
            if node.directory is None:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(name))
            inner = self._tree.directories[target.directory]
            if not await self._listings.is_empty(inner):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fsdecode(name))
        elif node.directory is not None:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(name))

    def _move(
        self, old: DirectoryState, old_name: Name, new: DirectoryState, new_name: Name,
        node: Node, target: Node | None, targets: tuple[ObjectId, ...] = (),
    ) -> Op:  # fmt: skip
        """The synchronous step of a rename; returns the op that will carry it out."""
        core = self._core
        source = old.entries.get(old_name)
        if source is not None and source.op.kind is OpKind.MKNOD:
            return self._move_here(source, old, old_name, new, new_name, node, target)
        there, loser = None, None
        decided = self._is_lost(new, new_name)
        if target is not None:
            there, loser = self._push_out(new, new_name, target)
        elif (under := new.entries.get(new_name)) is not None:
            there = under.shared_inode
        overwrites = there is not None or core.backlog.of_name(new.id, new_name) is not None
        here = (
            source.shared_inode
            if source is not None
            else (node.shared.inode if node.shared is not None else None)
        )
        op = source.op if source is not None else None
        first: Op | None = None
        if op is not None and self._foldable(op, old, old_name):
            first = self._bring_along(
                op, node, (old, old_name, here), (new, new_name, overwrites), decided=decided
            )
            op.base_inode = there  # what a restart has to know of the name
            self._leads_to(op, targets)
            freed = core.links.over(op)
            core.retarget(op, new, new_name, overwrites=overwrites or first is not None)
            if first is None:
                self._vacate(old, old_name, here, node, freed)
        else:
            moved = core.object_of(node)
            inode = node.shared.inode if node.shared and moved.put is None else None
            fields, before = leave(core, node)
            for each in before:
                core.writeback.submit(each)
            op, _ = core.issue(
                OpKind.RENAME, moved, new, new_name, source=(old, old_name),
                base_inode=inode, overwrites=overwrites, fields=fields, decided=decided,
                targets=targets,
            )  # fmt: skip
            old.put(old_name, Entry(None, op, here))
        if node.directory is None:
            core.groups.renamed(new.id, new_name, over=target is not None)
        core.links.replaces(op if first is None else first, loser)
        obj = node.object
        assert obj is not None
        node.linked_ns = op.changed_ns
        new.put(new_name, Entry(obj, op, there))
        node.names.discard((old.id, old_name))
        node.names.add((new.id, new_name))
        self._tree.renamed(node)
        if node.directory is not None:
            self._tree.move_directory(self._tree.directories[node.directory], new.id, new_name)
        core.touch(old, op.changed_ns)
        return op

    def _push_out(
        self, state: DirectoryState, name: Name, target: Node
    ) -> tuple[int | None, LocalObject | None]:
        """Something else gets `name`: the inode there, and who will have a name less by that."""
        core = self._core
        if target.directory is not None:
            self._tree.directories[target.directory].removed = True
            if core.groups.is_unsealed(target.directory):
                for op in self._take_away(OpKind.RMDIR, state, name, target)[0]:
                    core.writeback.submit(op)
                return None, None
        entry = state.entries.get(name)
        before = None if entry is None else core.links.replaced_by(entry.op)
        there, _ = self._detach(state, name, target)
        if entry is not None and entry.op not in core.backlog:
            return there, before
        return there, core.object_of(target) if target.directory is None else None

    def _move_here(
        self, source: Entry, old: DirectoryState, old_name: Name, new: DirectoryState,
        new_name: Name, node: Node, target: Node | None,
    ) -> Op:  # fmt: skip
        """A rename of what stays on this node; what it replaces may be on the shared tier."""
        core, op = self._core, source.op
        if target is not None:
            for removal in self._take_away(OpKind.UNLINK, new, new_name, target)[0]:
                core.writeback.submit(removal)
        core.retarget(op, new, new_name, overwrites=False)
        self._uncover(old, old_name, source.shared_inode)
        under = new.entries.get(new_name)
        new.put(new_name, Entry(source.object, op, under.shared_inode if under else None))
        node.names.discard((old.id, old_name))
        node.names.add((new.id, new_name))
        self._tree.renamed(node)
        core.touch(old, op.changed_ns)
        for state in (old, new):
            core.changed_here(state)
        return op

    def _move_away(self, end: End, state: DirectoryState, name: Name) -> Op:
        return self._move(end.state, end.name, state, name, end.node, None)

    def _leads_to(self, op: Op, targets: tuple[ObjectId, ...]) -> None:
        """A file gets another name: `targets` if it is closed, else they are found when it is."""
        if op.kind is OpKind.PUT and op.state not in (OpState.OPEN, OpState.CLOSED):
            op.targets = targets
            self._core.groups.pointed(targets)

    def _foldable(self, op: Op, state: DirectoryState, name: Name) -> bool:
        return (
            op.kind in FOLDED
            and (op.parent, op.name) == (state.id, name)
            and op.phase is not Phase.PUBLISHING
            and not self._core.backlog.depended(op)
        )

    def _bring_along(
        self, op: Op, node: Node, source: tuple[DirectoryState, Name, int | None],
        target: tuple[DirectoryState, Name, bool], *, decided: bool,
    ) -> Op | None:  # fmt: skip
        """The version of the file that stands under the name that the folded `op` is leaving.

        It goes to the new name first: nobody removed it, and what `op` sends may not be there for
        long, if at all. None: there is none, or in a checkpoint, which keeps the old one whole.
        """
        core, (old, old_name, here), (new, new_name, overwrites) = self._core, source, target
        in_checkpoint = any(
            core.groups.patterns.top(self._tree.path(state.id)) is not None for state in (old, new)
        )
        if op.kind is not OpKind.PUT or in_checkpoint or core.announced.assumed(new.id, new_name):
            return None
        before = core.backlog.before_at(op)
        if core.links.replaced_by(op) is not None or not _is_version(node, op, before, here):
            return None
        version = op if before is None else before
        moved, _ = core.issue(
            OpKind.RENAME, core.tree.objects[version.object], new, new_name,
            source=(old, old_name), base_inode=here if before is None else None,
            overwrites=overwrites, decided=decided,
        )  # fmt: skip
        old.put(old_name, Entry(None, moved, here))
        core.writeback.submit(moved)
        return moved

    def _vacate(
        self, state: DirectoryState, name: Name, here: int | None, node: Node,
        freed: LocalObject | None,
    ) -> None:  # fmt: skip
        """The name that a folded op left: what the shared tier has there has to go.

        `freed`: what the op would have replaced there.
        """
        core = self._core
        if core.backlog.going(state.id, name):
            self._uncover(state, name, here)
            return
        if here is None and core.backlog.of_name(state.id, name) is None:
            state.forget(name)
            return
        op, _ = core.issue(
            OpKind.UNLINK, core.add_object(node.kind, Content.NONE), state, name, base_inode=here
        )
        core.links.replaces(op, freed)
        state.put(name, Entry(None, op, here))
        core.writeback.submit(op)

    async def _settle(self, target: Node | None) -> None:
        if target is not None:
            await self._core.dispose_unused(target.object)


def _is_version(node: Node, put: Op, before: Op | None, here: int | None) -> bool:
    """Whether an earlier version of `node` has the name of `put` when the turn of that comes.

    `before` is the op before it there, `here` the inode that the shared tier has there now.
    """
    if before is None:
        return here is not None and node.shared is not None and node.shared.inode == here
    if before.kind is OpKind.RENAME:
        made = (before.parent, before.name) == (put.parent, put.name)
        return made and before.object == put.object
    obj = node.object
    return before.mark is None and obj is not None and obj.supersedes is before
