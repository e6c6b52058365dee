"""An unsealed checkpoint that loses its name is a directory like any other; one that nobody sees
goes with the directory that holds it.
"""

from __future__ import annotations

from tierfs.journal import SaveOp
from tierfs.model import OLDER, STAGED, Name, Op, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.decisions import Decisions
from tierfs.namespace.nodes import DirectoryState, Node


def leave(core: Core, node: Node) -> tuple[tuple[str, ...], list[Op]]:
    """`node` loses its name. Synchronous; does nothing if it is no unsealed checkpoint.

    Returns `Op.fields` of the op that takes the name, and what has to be done beside it: the
    sealed generation that stands under that name goes, too, perhaps later.
    """
    if node.directory is None or not core.groups.is_unsealed(node.directory):
        return (), []
    group = core.groups.get(node.directory)
    core.groups.end(node.directory)
    if group is None or group.record.older is None:
        return (STAGED,), []
    parent = core.tree.directories[group.parent]
    op, _ = core.issue(
        OpKind.TRASH, core.object_of(node), parent, group.name,
        base_inode=group.record.older, fields=(OLDER,),
    )  # fmt: skip
    return (STAGED, OLDER), [op]


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


def sealed_meanwhile(core: Core, seal: Op) -> None:
    """`seal` is committed: what was issued while it was published concerns a sealed checkpoint.

    Its removal is one in one rename, its files are not replaced one by one.
    """
    backlog = core.backlog
    late = [op for op in backlog.under(seal.object) if op is not seal]
    for op in late:
        core.groups.note(op)
        backlog.sealed_around(op)
    removal = next(
        (op for op in backlog.ops_of_object(seal.object)
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
