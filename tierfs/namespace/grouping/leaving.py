"""An unsealed checkpoint that loses its name is a directory like any other; one that nobody sees
goes with the directory that holds it.
"""

from __future__ import annotations

from tierfs.model import OLDER, STAGED, Op, OpKind
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
