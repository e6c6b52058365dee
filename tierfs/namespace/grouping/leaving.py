"""An unsealed checkpoint that loses its name is a directory like any other; one that nobody sees
goes with the directory that holds it.
"""

from __future__ import annotations

import logging
import os

from tierfs.journal import SaveOp
from tierfs.model import OLDER, STAGED, Name, ObjectId, Op, OpKind, Phase
from tierfs.namespace.changing.decisions import Decisions
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.overlay.nodes import DirectoryState, Node

log = logging.getLogger(__name__)


def leave(core: Core, node: Node) -> tuple[tuple[str, ...], list[Op]]:
    """`node` loses its name. Synchronous; does nothing if it is no unsealed checkpoint.

    Returns `Op.fields` of the op that takes the name, and what has to be done beside it: the
    sealed generation that stands under that name goes, too, perhaps later.
    """
    if node.directory is None or not core.groups.is_unsealed(node.directory):
        return (), []
    group = core.groups.get(node.directory)
    if group is not None and group.names:
        core.groups.last_removed[group.parent] = group.names
        if (seal := seal_removed(core, group)) is not None:
            return (), [seal]
    if group is not None:
        _drop_pointers(core, group)
    core.groups.end(node.directory)
    if group is not None and group.record.older is not None:
        return (STAGED, OLDER), [core.issue_trash_of_older(group)]
    is_going = removal_of_older(core, node.directory) is not None
    return (STAGED, OLDER) if is_going else (STAGED,), []


def removal_of_older(core: Core, directory: ObjectId) -> Op | None:
    """The pending TRASH of the sealed generation before the checkpoint `directory`."""
    trashes = (op for op in core.backlog.ops_of_object(directory) if op.kind is OpKind.TRASH)
    return next((op for op in trashes if OLDER in op.fields), None)


def _drop_pointers(core: Core, group: Group) -> None:
    """Takes back the pointers to `group` that later versions replace.

    They are held as long as it is unsealed. From now on they would go, and lead to nothing.
    """
    if (seal := group.seal) is not None and seal.phase is not Phase.PUBLISHING:
        group.seal = None
        core.drop_op(seal)
    core.drop_obsolete_pointers()


def seal_removed(core: Core, group: Group) -> Op | None:
    """The SEAL of `group`, whose RMDIR is issued next; None: it is removed like any unsealed one.

    It is sealed if it was finished when its removal began (finishing.py), and all that it held then
    has been removed since. Ends `group`.
    """
    top = len(core.tree.path(group.id))
    unlinked = {
        b"/".join(op.path[top:]) for op in core.backlog.under(group.id) if op.kind is OpKind.UNLINK
    }
    whole = group.leaving and group.names is not None and group.names <= unlinked
    if not whole or not is_in_peace(core, group) or core.backlog.seals_in(group.parent):
        return None
    log.info("checkpoint %s: is sealed: it was finished", os.fsdecode(group.name))
    core.groups.end(group.id)
    parent = core.tree.directories[group.parent]
    obj = core.directory_object(group.id)
    seal, _ = core.issue(OpKind.SEAL, obj, parent, group.name)
    return seal


def is_in_peace(core: Core, group: Group) -> bool:
    """Whether nobody has a file but logs in `group` open, and nothing in it has failed."""
    pending = [op for op in core.backlog.under(group.id) if not op.log]
    return not any(op.is_open or op.mark or op.attempts for op in pending)


def give_up_seals(core: Core) -> None:
    """Takes back the SEALs of removed checkpoints that something holds up: a removal must end."""
    for seal in core.backlog.seals():
        if core.groups.get(seal.object) is not None or seal.phase is Phase.PUBLISHING:
            continue
        pending = [op for op in core.backlog.under(seal.object) if op is not seal and not op.log]
        failed = any(op.mark or op.attempts for op in pending)
        if failed or core.writeback.removals.let_go(seal):
            log.info("checkpoint %s: is not sealed: its removal must go on", os.fsdecode(seal.name))
            going = list(core.backlog.ops_of_object(seal.object))
            for op in going:
                if op is seal or op.kind is OpKind.TRASH:
                    core.drop_op(op)
            for op in going:
                if op.kind is OpKind.RMDIR and op in core.backlog:
                    _takes_staged(core, op)


def _takes_staged(core: Core, removal: Op) -> None:
    """The RMDIR `removal` is one of an unsealed checkpoint again.

    What is made under its name stands where it stands, and waits for it.
    """
    core.backlog.remove(removal)
    removal.fields = (*removal.fields, STAGED)
    core.backlog.add(removal)
    core.journal.post(SaveOp(removal))


async def forget_unsendable(core: Core, decisions: Decisions, state: DirectoryState) -> None:
    """`state` is going to be removed: what can never come into its unlisted checkpoints is dropped.

    All else is sent first: what they hold goes to quarantine when the directory goes.
    """
    for directory in list(state.unsealed.values()):
        if not core.groups.is_unlisted(directory):
            continue
        for op in list(core.backlog.under(directory)):
            if op in core.backlog and op.mark is not None:
                await decisions.discard(op)


def give_up(core: Core, state: DirectoryState) -> None:
    """`state` is removed, and with it the unlisted checkpoints in it. Synchronous."""
    for directory in list(state.unsealed.values()):
        core.groups.end(directory)


def sealed_meanwhile(core: Core, directory: ObjectId) -> None:
    """The checkpoint `directory` is sealed: what was issued in it before, and is pending, concerns
    a sealed one.

    Its removal is one in one rename, its files are not replaced one by one.
    """
    backlog = core.backlog
    if (older := removal_of_older(core, directory)) is not None:
        core.drop_op(older)  # it was held, and what it was to take stands nowhere any more
    if any(op.kind is OpKind.TRASH for op in backlog.ops_of_object(directory)):
        return  # it was sealed to be removed (finishing.py)
    late = [op for op in backlog.under(directory) if op.kind is not OpKind.SEAL]
    for op in late:
        core.groups.note(op)
        backlog.sealed_around(op)
    removal = next(
        (op for op in backlog.ops_of_object(directory)
         if op.kind is OpKind.RMDIR and STAGED in op.fields), None,
    )  # fmt: skip
    if removal is not None:
        _remove_whole(core, removal)
        return
    for op in late:
        replaces = bool(op.base_inode) or op.overwrites
        if op.kind is OpKind.PUT and replaces and not op.is_open and not op.log:
            core.groups.replace_in(op.scope)
            backlog.renumber(op, core.journal.next_number())
            core.groups.note(op)
            backlog.update(op)
            core.journal.post(SaveOp(op))


def _remove_whole(core: Core, removal: Op) -> None:
    """Puts a TRASH before the RMDIR `removal` of what was no sealed checkpoint when it was issued.

    For that the RMDIR leaves the order for a moment: the removals inside go behind the TRASH only
    if nothing after them needs them where they are.
    """
    record = core.places.record(removal.object)
    core.backlog.remove(removal)
    trash, _ = core.issue(
        OpKind.TRASH, core.directory_object(removal.object),
        core.tree.directories[removal.parent], removal.name,
        base_inode=None if record is None else record.inode,
    )  # fmt: skip
    removal.number = core.journal.next_number()
    removal.fields = tuple(field for field in removal.fields if field != STAGED)
    core.backlog.add(removal)
    core.journal.post(SaveOp(removal))
    core.writeback.submit(trash)


def is_being_made(core: Core, state: DirectoryState, name: Name, node: Node) -> bool:
    """Whether an op that could not be taken back will put something under `name` in `state`.

    An unsealed checkpoint is made under another name: its own ops tell.
    """
    own = None if node.directory is None else core.backlog.of_object(node.directory)
    return own is not None or core.backlog.of_name(state.id, name) is not None
