"""What restored symlinks and pointers lead to: their cover, found again without asking a tier.

Only directories with something pending matter to the order, and those are in the restored tree.
"""

from __future__ import annotations

from tierfs.model import ROOT, Name, ObjectId, Op, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.finding.pointers import content_of, is_pointer
from tierfs.order.spellings import spellings_in

Children = dict[tuple[ObjectId, Name], ObjectId]


def find_targets(core: Core) -> None:
    """Gives every restored symlink and pointer its targets. Blocking, O(pending)."""
    children: Children = {
        (state.parent, state.name): state.id
        for state in core.tree.directories.values()
        if state.parent is not None
    }
    for op in list(core.backlog.under(ROOT)):
        targets = _targets(core, children, op)
        if targets:
            op.targets = targets
            core.backlog.update(op)


def _targets(core: Core, children: Children, op: Op) -> tuple[ObjectId, ...]:
    try:
        if op.kind is OpKind.SYMLINK:
            found = _walk(core, children, op.parent, core.store.target(op.object))
            return core.groups.around(found)
        if op.kind is OpKind.PUT and not op.is_open and is_pointer(op):
            return _named(children, op, content_of(core, op.object))
    except OSError:
        return ()  # its object cannot be read: the write-back will say so
    return ()


def _walk(core: Core, children: Children, start: ObjectId, target: Name) -> ObjectId:
    at, rest = core.start_of(start, target)
    for name in rest.split(b"/"):
        if name == b"..":
            at = core.tree.directories[at].parent or at
        elif name not in (b"", b"."):
            below = children.get((at, name))
            if below is None:
                break
            at = below
    return at


def _named(children: Children, op: Op, content: bytes) -> tuple[ObjectId, ...]:
    found = []
    for spellings in spellings_in(content):
        known = [children[op.parent, name] for name in spellings if (op.parent, name) in children]
        found += known[:1]
    return tuple(found)
