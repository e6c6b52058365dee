"""The link count of a directory: two, and one for each directory in it, pending or committed."""

from __future__ import annotations

from tierfs.model import ROOT
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Content, DirectoryState


def directory_links(core: Core, state: DirectoryState, nlink: int) -> int:
    """What stat(2) says of a directory of which its object or the shared tier says `nlink`."""
    if state.known is not None and stands_beside(core, state):
        nlink = state.known.nlink
    own = state.id == ROOT  # `.tierfs` is not shown
    return max(2, nlink + state.subdirectories - own)


def stands_beside(core: Core, state: DirectoryState) -> bool:
    """Whether a directory of the shared tier has an object here, in which nothing is."""
    obj = core.tree.objects.get(state.id)
    if obj is None or obj.content is Content.NONE:
        return False
    return core.places.exists(state.id)
