"""An unsealed checkpoint that loses its name is a directory like any other."""

from __future__ import annotations

from tierfs.model import OLDER, STAGED, Op, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.nodes import Node


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
