"""From journal rows back to the overlay: the fold of the pending ops in number order.

Reads the journal's snapshot only, so a mount is O(pending); what needs a look at a tier is done
behind (replay checks by the write-back, orphans by the chores).
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Mapping

from tierfs.journal import DropObject
from tierfs.model import (
    BEGINS,
    OLDER,
    ROOT,
    STAGED,
    TRASH,
    DirectoryRecord,
    JournalSnapshot,
    Kind,
    Mark,
    Name,
    ObjectId,
    Op,
    OpKind,
    OpState,
    Reopen,
)
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.links import LINKS
from tierfs.namespace.overlay.nodes import (
    UNKNOWN_INODE,
    Content,
    Entry,
    LocalObject,
    Location,
    Node,
)
from tierfs.namespace.restart.known import Known
from tierfs.namespace.restart.reach import find_targets
from tierfs.shared import staging_name, unstaged_name

log = logging.getLogger(__name__)

TAKES = (OpKind.UNLINK, OpKind.RMDIR)
GROUP_KINDS = (OpKind.SEAL, OpKind.TRASH, OpKind.REOPEN)
MAKERS = (OpKind.PUT, OpKind.SYMLINK)
"""Their `base_inode` is what the shared tier has under the name, another file."""


def restore(core: Core, snapshot: JournalSnapshot, known: Known | None = None) -> None:
    """Rebuilds tree, backlog and places. Blocking: looks whether stubs have their object.

    `known`: what the kernel knows, when the mount is an old one.
    """
    _restore_directories(core, snapshot)
    _foretell_groups(core, snapshot)
    changed = {op.object for op in snapshot.ops if op.kind is OpKind.SETATTR}
    for record in snapshot.objects:
        content = Content.DATA if record.data else Content.NONE
        if record.id in changed and not record.data:
            content = _stub_or_reference(core, record.id)
        restored = core.add_object(record.kind, content, record.id)
        if content is Content.STUB:
            restored.committed_links = None
    if known is not None:
        known.place()
    bases = {record.id: record.base_inode for record in snapshot.objects}
    closed = [op for op in snapshot.ops if op.state is OpState.CLOSED]
    for op in sorted(snapshot.ops, key=lambda op: op.number):
        obj = core.tree.objects.get(op.object) or _missing_object(core, op)
        _restore_op(core, op, obj, bases)
        if known is None and op.state is OpState.CLOSED:
            op.state = OpState.PENDING  # whoever had it open is gone with the old mount
            core.backlog.update(op)
    removed = {op.object for op in snapshot.ops if op.kind is OpKind.RMDIR}
    # one that is gone already may have left its number to another: that one has the last word
    for directory in sorted(snapshot.directories, key=lambda each: each.id not in removed):
        if directory.inode is not None:
            location = Location(directory.parent, directory.name, directory.inode)
            core.tree.stands_at(directory.id, location, tagged=directory.tagged)
    if known is not None:
        known.join()
    core.groups.restore(snapshot.groups)
    _restore_groups(core)
    find_targets(core)
    for op in closed:
        core.groups.pointed(op.targets)  # nobody could say it any more
        if known is None:
            _drop_torn(core, op)
    _drop_unneeded(core)


def _drop_torn(core: Core, op: Op) -> None:
    """What was torn and is written anew, as `op`, is over: its writer cannot say it any more."""
    obj = core.tree.objects[op.object]
    old, obj.supersedes = obj.supersedes, None
    if old is None or old.mark is not Mark.TORN or core.backlog.depended(old, besides=op):
        return
    core.drop_op(old)
    core.spare.append(core.tree.objects[old.object])


def _drop_unneeded(core: Core) -> None:
    """Objects whose last op ended just before the daemon did; the orphan sweep takes the files."""
    tree = core.tree
    idle = []
    for obj in [obj for obj in tree.objects.values() if not obj.pending and not obj.users]:
        node = tree.by_object.get(obj.id)
        if node is not None and node.object is obj:
            if node.shared is None and node.lookups:
                continue  # it has no name any more, and the kernel still asks for it
            tree.switch_object(node, None)
        del tree.objects[obj.id]
        idle.append(DropObject(obj.id))
    core.journal.apply(*idle)


def _missing_object(core: Core, op: Op) -> LocalObject:
    """A stand-in where the journal has no row of the object: no op is left out unseen."""
    log.error("journal: %s #%d %r: its object has no row", op.kind, op.number, op.name)
    kind = {OpKind.MKDIR: Kind.DIRECTORY, OpKind.RMDIR: Kind.DIRECTORY}.get(op.kind, Kind.FILE)
    if op.kind is OpKind.SYMLINK:
        kind = Kind.SYMLINK
    elif op.object in core.tree.directories:
        kind = Kind.DIRECTORY
    makes = op.kind in (OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK)
    return core.add_object(kind, Content.DATA if makes else Content.NONE, op.object)


def _stub_or_reference(core: Core, object_id: ObjectId) -> Content:
    """What an object with a SETATTR is. Without one a stub was left before its row was written."""
    try:
        core.store.attributes(object_id)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return Content.NONE
    return Content.STUB


def _restore_directories(core: Core, snapshot: JournalSnapshot) -> None:
    waiting = {record.id: record for record in snapshot.directories}
    removed = {op.object: op for op in snapshot.ops if op.kind is OpKind.TRASH}
    removed |= {op.object: op for op in snapshot.ops if op.kind is OpKind.RMDIR}

    def add(record: DirectoryRecord) -> None:
        chain = [record]
        while chain[-1].parent in waiting:
            chain.append(waiting[chain[-1].parent])
        for item in reversed(chain):
            waiting.pop(item.id, None)
            parent, name = item.parent, unstaged_name(item.name) or item.name
            if item.parent == TRASH and item.id in removed:
                parent, name = removed[item.id].parent, removed[item.id].name
                if parent in waiting:
                    add(waiting[parent])
            if parent != ROOT and parent not in core.tree.directories:
                continue
            core.places.add(item)
            core.tree.add_directory(item.id, parent, name)

    while waiting:
        add(next(iter(waiting.values())))


def _foretell_groups(core: Core, snapshot: JournalSnapshot) -> None:
    """Which checkpoints are unsealed: before the ops of the journal are in the backlog."""
    since = {
        op.object: op.number for op in snapshot.ops
        if op.kind is OpKind.REOPEN and op.flags in BEGINS
    }  # fmt: skip
    for record in snapshot.groups:
        core.backlog.group_unsealed(record.id, b"", since.get(record.id, 0))


def _restore_groups(core: Core) -> None:
    """What an op says of checkpoints, now that all directories are where they stand."""
    for each in core.groups:  # a next generation is there; only the one before it goes
        if each.record.older is not None:
            core.written_over[each.id] = math.inf
        state = core.tree.directories[each.parent]
        entry = state.entries.get(each.name)
        if entry is not None and entry.object is None and entry.op.object == each.id:
            state.drop(each.name)
    elsewhere: dict[tuple[ObjectId, ...], bool] = {}
    for op in list(core.backlog.under(ROOT)):
        if not op.scope2 and op.scope not in elsewhere:
            elsewhere[op.scope] = not core.groups.concerns(op.scope)
        if not op.scope2 and elsewhere[op.scope] and op.kind not in GROUP_KINDS:
            continue  # of nearly all
        ends = op.kind is OpKind.SEAL or (op.kind is OpKind.REOPEN and op.flags == Reopen.GIVEN_UP)
        if ends and (group := core.groups.get(op.object)) is not None:
            group.seal = op
            if op.kind is OpKind.REOPEN:
                op.attempts = max(1, op.attempts)  # the last worker may have begun it
        core.groups.note(op)
        core.backlog.update(op)


def _restore_op(core: Core, op: Op, obj: LocalObject, bases: Mapping[ObjectId, int | None]) -> None:
    tree = core.tree
    if op.parent not in tree.directories:
        log.error("journal: %s #%d %r: its directory has no row", op.kind, op.number, op.name)
        return
    _locate(core, op, obj)
    op.scope = tree.scope(op.parent)
    op.path = (*tree.path(op.parent), op.name)
    if op.parent2 is not None and op.name2 is not None and op.parent2 in tree.directories:
        op.scope2 = tree.scope(op.parent2)
        op.path2 = (*tree.path(op.parent2), op.name2)
    op.log = core.is_log(op)
    if op.kind is OpKind.MKNOD and obj.kind is Kind.FILE:
        obj.scratch = True
        core.scratch.add(obj)
    if op.log and op.mark is Mark.TORN:
        op.mark = op.error = None  # what of a log was written counts
    obj.pending += 1
    obj.links += LINKS.get(op.kind, 0)
    if op.kind is OpKind.PUT:
        obj.put = op
    tree.pin(tree.needed(op))
    core.count_directories(op)
    if op.other is not None:
        _exchange(core, op, obj, bases.get(op.other))
    else:
        _apply_to_overlay(core, op, obj)
    if op.kind is not OpKind.MKNOD:
        core.backlog.add(op)


def _locate(core: Core, op: Op, obj: LocalObject) -> None:
    """Where the committed version stands, from the first op that says so.

    Of what the kernel knows the log says it: a removal may speak of what others put there.
    """
    node = core.tree.node_of_object(obj)
    if node.lookups or node.shared is not None or node.directory is not None or not op.base_inode:
        return
    source = op.kind in (OpKind.RENAME, OpKind.LINK)
    directory, name = (op.parent2, op.name2) if source else (op.parent, op.name)
    if directory is not None and name is not None and op.kind not in MAKERS:
        _stands_at(core, node, Location(directory, name, op.base_inode))
        node.names.add((directory, name))


def _stands_at(core: Core, node: Node, location: Location) -> None:
    """Unless another node is known to have the inode: its number was given to that one since."""
    if location.inode not in core.tree.by_shared:
        core.tree.committed(node, location)


def _apply_to_overlay(core: Core, op: Op, obj: LocalObject) -> None:
    tree = core.tree
    state = tree.directories[op.parent]
    if op.kind in GROUP_KINDS:
        if op.kind is OpKind.TRASH and OLDER in op.fields:
            state.put(op.name, Entry(None, op, op.base_inode))
        return  # of the others no name of the mount changes
    node = tree.node_of_object(obj)
    before = state.entries.get(op.name)
    if before is not None:
        shared_inode = before.shared_inode
    elif op.kind in (OpKind.RENAME, OpKind.LINK):
        shared_inode = UNKNOWN_INODE if op.overwrites else None
    else:
        shared_inode = op.base_inode
    if op.changed_ns and op.kind is not OpKind.MKNOD:
        core.touch(state, op.changed_ns)
    if before is not None and before.object is not None and before.object is not obj:
        _lose_name(tree.node_of_object(before.object), op)
        if op.kind is OpKind.PUT and op.state in (OpState.OPEN, OpState.CLOSED):
            obj.supersedes = before.object.put
        if op.kind not in TAKES and before.op.kind is not OpKind.MKNOD:
            core.links.replaces(op, before.object)
    if op.kind in TAKES:
        _lose_name(node, op)
        if op.kind is OpKind.RMDIR and op.object in tree.directories:
            tree.directories[op.object].removed = True
        state.put(op.name, Entry(None, op, shared_inode))
        return
    state.put(op.name, Entry(obj, op, shared_inode))
    node.names.add((op.parent, op.name))
    if op.kind is OpKind.MKDIR and op.object not in tree.directories:
        tree.add_directory(op.object, op.parent, op.name)
        there = staging_name(op.name) if STAGED in op.fields else op.name
        core.pending_directory(op.object, op.parent, there)
    if op.kind is OpKind.RENAME and op.parent2 is not None and op.name2 is not None:
        _leave_source(core, op, obj, op.parent2, op.name2)


def _exchange(core: Core, op: Op, obj: LocalObject, base: int | None) -> None:
    """Both names of an exchange; `base` is the inode of what takes the name that it comes from."""
    tree = core.tree
    assert op.other is not None
    assert op.parent2 is not None
    assert op.name2 is not None
    back = tree.objects.get(op.other) or core.add_object(obj.kind, Content.NONE, op.other)
    back.pending += 1
    ends = (op.parent, op.name, back, base), (op.parent2, op.name2, obj, op.base_inode)
    inodes = []
    for parent, name, before, inode in ends:
        node = tree.node_of_object(before)
        if node.shared is None and node.directory is None and inode is not None:
            _stands_at(core, node, Location(parent, name, inode))
        node.names.discard((parent, name))
        entry = tree.directories[parent].entries.get(name)
        inodes.append(inode if entry is None else entry.shared_inode)
    for (parent, name, _, _), after, inode in zip(ends, (obj, back), inodes, strict=True):
        state, node = tree.directories[parent], tree.node_of_object(after)
        state.put(name, Entry(after, op, inode))
        node.names.add((parent, name))
        core.touch(state, op.changed_ns)
        if node.directory is not None and node.directory in tree.directories:
            tree.move_directory(tree.directories[node.directory], parent, name)


def _lose_name(node: Node, op: Op) -> None:
    """The name of `op` is another's now, or nobody's."""
    node.names.discard((op.parent, op.name))
    if not node.names and node.shared is None:
        node.unlinked = True  # a committed file may have names that no op speaks of


def _leave_source(core: Core, op: Op, obj: LocalObject, parent: ObjectId, name: Name) -> None:
    tree = core.tree
    node = tree.node_of_object(obj)
    node.names.discard((parent, name))
    source = tree.directories.get(parent)
    if source is not None:
        before = source.entries.get(name)
        inode = before.shared_inode if before is not None else op.base_inode
        source.put(name, Entry(None, op, inode))
    if node.directory is not None and node.directory in tree.directories:
        moved = tree.directories[node.directory]
        if (moved.parent, moved.name) != (op.parent, op.name):
            tree.move_directory(moved, op.parent, op.name)
