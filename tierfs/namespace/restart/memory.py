"""What the kernel knows of the mount, written down so that the next worker knows it, too.

The log is last-wins: each line says all of one thing. It is written before the kernel gets an
answer that tells of a node or an open file, and before the journal gets a change, so it is never
behind either of them; lookup counts in it may be too high, never too low. It survives the process,
not the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Protocol

from tierfs.model import Kind, ObjectId
from tierfs.namespace.overlay.nodes import Handle, Location, Node
from tierfs.namespace.overlay.tree import ROOT_INO, Tree
from tierfs.namespace.restart.remembered import text

HANDLE = "handle-"
"""The name under which the supervisor keeps the descriptor of an open file."""


class Log(Protocol):
    """Where the lines go."""

    def append(self, lines: bytes) -> None:
        """Writes whole lines behind the others. OSError."""


class Keeper(Protocol):
    """Keeps duplicates of descriptors beyond the process."""

    def keep(self, name: str, fd: int) -> None:
        """Keeps one."""

    def drop(self, name: str) -> None:
        """Lets it go."""


class OpenDirectory(Protocol):
    """A listing: its number, its directory and its snapshot."""

    number: int
    names: list[bytes] | None

    @property
    def directory(self) -> ObjectId:
        """The directory id."""


class Memory:
    """Collects what changed and writes it when `flush` is called. Nothing here waits.

    Without `remember` it does nothing: a mount that ends with its process has nothing to remember.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._log: Log | None = None
        self._keeper: Keeper | None = None
        self._handles: dict[int, tuple[Handle, int]] = {}
        self._begun: set[ObjectId] = set()
        self._top = (0, 0, 0)
        self._init = b""
        self._lines: list[str] = []

    def remember(self, log: Log, keeper: Keeper, top: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Begins to write down all that changes from now on.

        `top`: the highest numbers of a handle, a listing and a backing that were ever given out.
        """
        self._log, self._keeper, self._top = log, keeper, top
        self._tree.changed = {}
        for node in self._tree.nodes.values():
            node.changed = self._tree.changed

    @property
    def remembers(self) -> bool:
        """Whether there will be a next worker."""
        return self._log is not None

    # -- what changed ----------------------------------------------------------------------------

    def init(self, request: bytes) -> None:
        """The kernel's INIT request: the next worker's pyfuse3 gets it once more."""
        self._init = request
        self._say("i", request.hex())

    def opened(self, handle: Handle, unique: int) -> None:
        """The kernel is about to get `handle` as the answer to its request `unique`.

        Its op may not be journaled yet: from this it is made again.
        """
        if self._log is None or self._keeper is None:
            return
        number = handle.number
        if handle.object is None and handle.shared_fd >= 0:
            self._keeper.keep(f"{HANDLE}{number}", handle.shared_fd)
        if handle.object is not None and handle.writable:
            self.begun_no_more(handle.object.id)
        self._handles[number] = (handle, unique)
        self._reached(handle=number, backing=handle.backing)
        self._lines.append(handle_line(handle, unique))

    def begun(self, obj: ObjectId) -> None:
        """An open makes the file `obj`, or empties it, and its op is about to be journaled.

        Until it is answered nobody has written to the file, nor closed it.
        """
        if self._log is not None:
            self._begun.add(obj)
            self._lines.append(begun_line(obj))

    def begun_no_more(self, obj: ObjectId) -> None:
        """Nobody will be told that `obj` is open."""
        self._begun.discard(obj)

    def handle(self, handle: Handle) -> None:
        """An open file of the kernel's was changed or closed."""
        known = self._handles.get(handle.number)
        if known is None:
            if handle.object is not None:
                self.begun_no_more(handle.object.id)  # opened for a call of our own
            return
        if handle.granted:
            self._lines.append(handle_line(*known))
            return
        del self._handles[handle.number]
        self._say("h", handle.number)
        self._drop_descriptor(handle.number)

    def listing(self, listing: OpenDirectory) -> None:
        """A directory was opened, or its names were read."""
        if self._log is not None:
            self._reached(listing=listing.number)
            self._lines.append(listing_line(listing))

    def listing_closed(self, number: int) -> None:
        """A directory was closed."""
        self._say("l", number)

    def _reached(self, *, handle: int = 0, listing: int = 0, backing: int = 0) -> None:
        now = (handle, listing, backing)
        self._top = tuple(map(max, self._top, now))  # type: ignore[assignment]

    def _drop_descriptor(self, number: int) -> None:
        if self._keeper is not None:
            self._keeper.drop(f"{HANDLE}{number}")

    def _say(self, *items: object) -> None:
        if self._log is not None:
            self._lines.append(json.dumps(items))

    # -- writing ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """What changed is written when this returns. OSError."""
        if self._log is None:
            return
        changed = self._tree.changed
        if changed:
            self._lines += [self._node_line(node, full) for node, full in changed.items()]
            changed.clear()
        if self._lines:
            lines = "\n".join((*self._lines, "")).encode("ascii")
            self._lines.clear()
            self._log.append(lines)

    def forget_changes(self) -> None:
        """What changed up to now is in `everything`, which is about to be written."""
        if self._tree.changed is not None:
            self._tree.changed.clear()
        self._lines.clear()

    def everything(self, listings: Callable[[], Iterator[OpenDirectory]]) -> Iterator[str]:
        """A line for each thing that is known now; may be taken in pieces while things change."""
        if self._init:
            yield json.dumps(("i", self._init.hex()))
        yield json.dumps(("t", *self._top))
        for inode, ino in list(self._tree.aliases.items()):
            yield json.dumps(("a", inode, ino))
        for node in list(self._tree.nodes.values()):
            if node.ino != ROOT_INO and self._tree.nodes.get(node.ino) is node:
                yield self._node_line(node, True)
        yield from map(begun_line, list(self._begun))
        for number, known in list(self._handles.items()):
            if number in self._handles:
                yield handle_line(*known)
        for listing in list(listings()):
            yield listing_line(listing)

    def _node_line(self, node: Node, full: bool) -> str:
        tree = self._tree
        if tree.nodes.get(node.ino) is not node:
            inode = node.shared.inode if node.shared is not None else None
            if inode is not None and tree.aliases.get(inode) == node.ino:
                return f'["n", {node.ino}, {inode}]'
            return f'["n", {node.ino}]'
        if not full:
            return f'["k", {node.ino}, {node.lookups}]'
        if node.directory is None and node.ctimes is None:
            return _file_line(node)
        return json.dumps(
            (
                "n", node.ino, str(node.kind), node.lookups,
                None if node.object is None else node.object.id, _location(node.shared),
                [(directory, text(name)) for directory, name in node.names], node.unlinked,
                node.ctimes, self._directory(node),
            )
        )  # fmt: skip

    def _directory(self, node: Node) -> object:
        if node.kind is not Kind.DIRECTORY or node.directory is None:
            return None
        state = self._tree.directories.get(node.directory)
        if state is None:
            return (node.directory, None, "", False, False)
        tagged = node.directory in self._tree.tagged
        return (node.directory, state.parent, text(state.name), tagged, state.vouched)


def _file_line(node: Node) -> str:
    """The line of a file, of which there may be millions, in a fifth of the time of json.dumps."""
    shared, names, said = "null", node.names, json.encoder.encode_basestring_ascii
    if (at := node.shared) is not None:
        place = f"{at.directory}, {said(text(at.name))}"
        shared = f"[{place}, {at.inode}]"
    if at is not None and len(names) == 1 and (at.directory, at.name) in names:
        listed = f"[{place}]"
    else:
        listed = ", ".join([f"[{directory}, {said(text(name))}]" for directory, name in names])
    unlinked = "true" if node.unlinked else "false"
    obj = "null" if node.object is None else node.object.id
    head = f'["n", {node.ino}, "{node.kind.value}", {node.lookups}, {obj}, {shared}'
    return f"{head}, [{listed}], {unlinked}, null, null]"


def _location(location: Location | None) -> object:
    if location is None:
        return None
    return (location.directory, text(location.name), location.inode)


def begun_line(obj: ObjectId) -> str:
    """The line of an object that an open has begun to make."""
    return f'["b", {obj}]'


def handle_line(handle: Handle, unique: int) -> str:
    """The line of an open file."""
    obj, left = "null", "null"
    if handle.object is not None:
        obj = str(handle.object.id)
        if handle.writable and handle.object.left is not None:
            left = f"[{handle.object.left[0]}, {handle.object.left[1]}]"
    writable, flushed = _truth(handle.writable), _truth(handle.flushed)
    # as json.dumps would write it, in a fifth of the time
    return (
        f'["h", {handle.number}, {handle.node.ino}, {writable}, {handle.opener}, '
        f"{handle.backing}, {flushed}, {obj}, {unique}, {left}]"
    )


def _truth(value: bool) -> str:
    return "true" if value else "false"


def listing_line(listing: OpenDirectory) -> str:
    """The line of an open directory."""
    # all names in one text, as no name holds a slash: a large tree is read by millions of them
    names = None if listing.names is None else text(b"/".join(listing.names))
    return json.dumps(("l", listing.number, listing.directory, names))
