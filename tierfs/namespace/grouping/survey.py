"""The checkpoints below a directory of the mount, whoever wrote them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from tierfs.model import Attributes, Name, ObjectId, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.finding.listing import Listings
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import DirectoryState, Node
from tierfs.shared import Place

_GONE = frozenset({errno.ENOENT, errno.ESTALE})


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint that was found.

    Attributes:
        path: names from the root of the mount.
        place: where it stood on the shared tier; None: not there yet.
        unsealed: its files are not published.
        moving: it is a directory that was renamed to this name, and that is not committed.
    """

    path: tuple[Name, ...]
    directory: ObjectId
    place: Place | None
    attributes: Attributes
    unsealed: bool
    moving: bool


class Survey:
    """Walks the mount's own view; what lies in a checkpoint is not looked at."""

    def __init__(
        self, core: Core, lookup: Lookup, listings: Listings, forget: Callable[[int, int], None]
    ) -> None:
        self._core = core
        self._lookup = lookup
        self._listings = listings
        self._forget = forget

    async def below(self, top: Node) -> list[Seen]:
        """The checkpoints below the directory `top`, or the one that it is or lies in.

        What goes away meanwhile is left out. OSError where a directory cannot be read.
        """
        assert top.directory is not None
        found: list[Seen] = []
        around = self._around(top.directory)
        todo = [self._keep(around or top)]
        try:
            if around is not None:
                await self._add(around, found)
                return found
            while todo:
                node = todo.pop()
                try:
                    todo += await self._look_in(node, found)
                finally:
                    self._forget(node.ino, 1)
        finally:
            for node in todo:
                self._forget(node.ino, 1)
        return found

    def _around(self, directory: ObjectId) -> Node | None:
        """The checkpoint that `directory` is or lies in."""
        tree = self._core.tree
        index = self._core.groups.patterns.top(tree.path(directory))
        return None if index is None else tree.by_object.get(tree.scope(directory)[index + 1])

    async def _look_in(self, node: Node, found: list[Seen]) -> list[Node]:
        """Adds to `found` the checkpoints in `node`; its other directories, which are kept."""
        assert node.directory is not None
        state = self._core.tree.directories[node.directory]
        others: list[Node] = []
        try:
            for name in sorted(await self._names(state)):
                child = await self._lookup.find(state, name)
                if child is None or child.directory is None:
                    continue
                others.append(self._keep(child))
                if self._core.groups.is_group(state, name):
                    await self._add(child, found)
                    self._forget(others.pop().ino, 1)
        except BaseException:
            for child in others:
                self._forget(child.ino, 1)
            raise
        return others

    async def _names(self, state: DirectoryState) -> list[Name]:
        try:
            return await self._listings.directories(state)
        except OSError as error:
            if error.errno not in _GONE or state.parent is None:
                raise
            return []

    async def _add(self, node: Node, found: list[Seen]) -> None:
        core, directory = self._core, node.directory
        assert directory is not None
        try:
            attributes = await self._lookup.attributes(node)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return
        if directory not in core.tree.directories:
            return
        unsealed = core.groups.is_unsealed(directory)
        moving = not unsealed and any(
            op.kind is OpKind.RENAME for op in core.backlog.ops_of_object(directory)
        )
        path = core.tree.path(directory)
        place = core.places.place(directory) if core.places.exists(directory) else None
        found.append(Seen(path, directory, place, attributes, unsealed, moving))

    def _keep(self, node: Node) -> Node:
        """`node` stays known until it is forgotten again."""
        node.lookups += 1
        return node
