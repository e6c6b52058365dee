"""What restored symlinks and pointers lead to: their cover, found again without asking a tier.

Only directories with something pending matter to the order, and those are in the restored tree.
"""

from __future__ import annotations

from tierfs.model import ROOT, Kind, Name, ObjectId, Op, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.finding.pointers import content_of, is_pointer
from tierfs.namespace.overlay.nodes import Content
from tierfs.order import names
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
        if op.kind in (OpKind.RENAME, OpKind.LINK) and names.role(op.name) is names.Role.POINTER:
            return _moved(core, children, op)
    except OSError:
        return ()  # its object cannot be read: the write-back will say so
    return ()


def _moved(core: Core, children: Children, op: Op) -> tuple[ObjectId, ...]:
    """Of a pointer that was closed under another name, and may have been evicted since."""
    obj = core.tree.objects.get(op.object)
    if obj is None or obj.kind is not Kind.FILE:
        return ()
    if obj.content is Content.DATA:
        return _named(children, op, content_of(core, obj.id))
    copy = None if op.base_inode is None else core.journal.clean_copy_now(op.base_inode)
    if copy is not None:
        return _named(children, op, content_of(core, copy.object))
    # It may lead to any of them.
    beside = (at for (parent, name), at in children.items()
              if parent == op.parent and names.is_checkpoint(name))  # fmt: skip
    return tuple(beside)


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
