"""From what was remembered back to the nodes and open files that the kernel knows."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from tierfs.model import ROOT, UNDECIDED, DirectoryRecord, Kind, ObjectId
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import Content, DirectoryState, Handle, LocalObject, Node
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.namespace.restart.remembered import (
    NOTHING,
    KnownDirectory,
    KnownHandle,
    KnownNode,
    Remembered,
)
from tierfs.shared import unstaged_name

log = logging.getLogger(__name__)


class Known:
    """Puts back what the kernel knows. Blocking; before anything is served.

    `fds` are the descriptors of files that are read from the shared tier, by handle: they may have
    no name any more.

    Attributes:
        handles: the open files, with descriptors, and the requests that they answered; known
            after `join`.
    """

    def __init__(self, core: Core, remembered: Remembered, fds: dict[int, int]) -> None:
        self._core = core
        self._tree = core.tree
        self._remembered = remembered
        self._fds = fds
        self.handles: list[tuple[Handle, int]] = []
        self._left: dict[ObjectId, set[tuple[int, int]]] = {}

    # -- nodes -----------------------------------------------------------------------------------

    def place(self) -> None:
        """The nodes, after the journal's directories and objects, before its ops."""
        for handle in self._remembered.handles.values():
            if handle.object is not None and handle.object not in self._tree.objects:
                self._core.add_object(Kind.FILE, Content.DATA, handle.object)
        for node in self._by_depth():
            self._place_node(node)
        for known in self._remembered.nodes.values():
            if known.objects != NOTHING:
                self._give_older_object(known)
        for inode, ino in self._remembered.aliases.items():
            self._tree.aliases[inode] = ino

    def _by_depth(self) -> list[KnownNode]:
        """Directories first, each after the one that it is in."""
        nodes = list(self._remembered.nodes.values())
        waiting = {node.directory.id: node for node in nodes if node.directory is not None}
        ordered: list[KnownNode] = []
        for node in list(waiting.values()):
            chain = []
            at: KnownNode | None = node
            while at is not None and at.directory is not None:
                if waiting.pop(at.directory.id, None) is None:
                    break
                chain.append(at)
                above = at.directory.parent
                at = waiting.get(above) if above is not None else None
            ordered += reversed(chain)
        return ordered + [node for node in nodes if node.directory is None]

    def _place_node(self, known: KnownNode) -> None:
        tree = self._tree
        if known.ino == ROOT_INO or known.ino in tree.nodes:
            return
        node = Node(known.ino, known.kind, lookups=known.lookups)
        if known.directory is not None:
            if not self._place_directory(known, known.directory):
                return
            node.directory = known.directory.id
            tree.by_object[known.directory.id] = node
        if known.objects != NOTHING:
            self._give_object(node, known.objects[-1])
        at = known.shared
        if at is not None and not (known.unlinked and at.inode in tree.by_shared):
            tree.committed(node, at)
        node.names, node.unlinked, node.ctimes = known.names, known.unlinked, known.ctimes
        node.changed = tree.changed  # all that is placed will be written down in one go
        tree.nodes[node.ino] = node

    def _give_object(self, node: Node, id_: ObjectId | None) -> None:
        obj = self._tree.objects.get(id_) if id_ is not None else None
        if obj is not None and self._tree.by_object.get(obj.id) in (None, node):
            node.object = obj
            self._tree.by_object[obj.id] = node

    def _give_older_object(self, known: KnownNode) -> None:
        """The log was ahead of the journal: what the node has there is what it had before."""
        node = self._tree.nodes.get(known.ino)
        if node is None:
            return
        for id_ in reversed(known.objects):
            if node.object is None:
                self._give_object(node, id_)

    def _place_directory(self, node: KnownNode, known: KnownDirectory) -> bool:
        """Puts the state of a directory into the tree; False when there never was one."""
        tree = self._tree
        state = tree.directories.get(known.id)
        if state is None and node.unlinked:
            tree.directories[known.id] = DirectoryState(known.id, ROOT, known.name, removed=True)
            tree.directories[ROOT].children += 1
            return True
        if state is None:
            parent = known.parent
            if parent is None or parent not in tree.directories or node.shared is None:
                return False  # its making was not journaled, and so nobody was told of it
            state = tree.add_directory(known.id, parent, known.name)
            self._core.places.add(
                DirectoryRecord(known.id, parent, known.name, node.shared.inode, known.tagged)
            )
        state.vouched = known.vouched
        if known.tagged:
            tree.tagged.add(known.id)
        return True

    def join(self) -> None:
        """After the journal's ops: the names that are true, and the open files."""
        for item in self._remembered.nodes.values():
            named = self._tree.nodes.get(item.ino)
            if named is None or (named.directory is None and self._is_plain(named, item)):
                continue
            if named.directory is None:
                self._check_names(named, item)
            elif named.unlinked:
                self._check_removal(named, named.directory)
        for known in self._remembered.handles.values():
            if known.object is not None and known.left is not None:
                self._left.setdefault(known.object, set()).add(known.left)
        for known in self._remembered.handles.values():
            node = self._tree.nodes.get(known.ino)
            if node is None:
                log.error("open file %d is of an unknown node %d", known.number, known.ino)
                continue
            try:
                self.handles.append((self._handle(known, node), known.unique))
            except OSError as error:
                log.error("open file %d cannot be opened again: %s", known.number, error)

    def _is_plain(self, node: Node, known: KnownNode) -> bool:
        """Whether it is what nearly all are: committed, with one name, and nothing is pending."""
        at = node.shared
        if at is None or known.objects != NOTHING or node.unlinked:
            return False
        place = (at.directory, at.name)
        return node.names == {place} and self._tree.entry(*place) is None

    def _check_names(self, node: Node, known: KnownNode) -> None:
        """Takes back what a change that was not journaled had done to the names of a file.

        The kernel has no answer to it, and asks again. What the overlay does not speak of is where
        the shared tier has the file, or a name of a file that was just made: so is a name of that
        one of which the overlay says that what had it before is gone.
        """
        tree = self._tree
        true, silent = set(), set()
        for place in node.names:
            entry = tree.entry(*place)
            if entry is None or (entry.object is None and _is_just_made(node)):
                silent.add(place)
            elif entry.object is not None and (
                entry.object is node.object or entry.object.id in known.objects
            ):
                true.add(place)
        if node.shared is not None and (true or len(silent) <= 1):
            place = (node.shared.directory, node.shared.name)
            silent = {place} if tree.entry(*place) is None else set()
        elif true:
            silent = set()
        node.names = true | silent
        if node.names:
            node.unlinked = False

    def _check_removal(self, node: Node, directory: ObjectId) -> None:
        """Takes back the removal of a directory that was not journaled: it is still there.

        Else what is asked for again would find another one under its name, in which nothing of
        what is pending has happened. Of one in which nothing is pending that does not matter.
        """
        tree = self._tree
        state = tree.directories.get(directory)
        if state is None or state.removed or state.parent is None:
            return
        entry, record = tree.entry(state.parent, state.name), self._core.places.record(directory)
        staged = record is not None and unstaged_name(record.name) is not None
        own = entry is None or (entry.object is not None and entry.object.id == directory)
        if own or staged:
            node.names, node.unlinked = {(state.parent, state.name)}, False

    # -- open files --------------------------------------------------------------------------------

    def _handle(self, known: KnownHandle, node: Node) -> Handle:
        handle = Handle(
            known.number, node, known.writable, opener=known.opener, backing=known.backing,
            granted=True, flushed=known.flushed, shared_fd=self._fds.pop(known.number, -1),
        )  # fmt: skip
        if known.object is not None:
            obj = self._tree.objects[known.object]
            self._open(obj)
            self._sign(node, obj)
            handle.object = obj
            obj.users += 1
            if known.writable:
                obj.writers += 1
                self._suspect(obj)
                obj.live = obj.live or known.backing != 0
        node.attach(handle)
        node.opened += 1
        node.backing = known.backing
        return handle

    def _suspect(self, obj: LocalObject) -> None:
        """Whether it was written to since its last FLUSH, or since it was opened.

        It was not if it is as it was then; nor while it is the same as what waits for a decision
        and it was opened on top of.
        """
        old, obj.dirty, left = obj.supersedes, True, set(self._left.get(obj.id, ()))
        with suppress(FileNotFoundError):
            if old is not None and old.mark in UNDECIDED:
                before = self._core.store.attributes(old.object, Kind.FILE)
                left.add((before.size, before.mtime_ns))
            if not left:
                return
            now = self._core.store.attributes(obj.id, Kind.FILE)
            obj.noted = now.size, now.mtime_ns, now.ctime_ns
            if (now.size, now.mtime_ns) in left:
                obj.dirty, obj.left = False, (now.size, now.mtime_ns)

    def _open(self, obj: LocalObject) -> None:
        if obj.fd < 0:
            obj.fd = self._core.store.open_object(obj.id, os.O_RDONLY)

    def _sign(self, node: Node, obj: LocalObject) -> None:
        """Whether an object that no op needs is a clean copy."""
        if obj.pending or obj.clean or node.shared is None:
            return
        clean = self._core.journal.clean_copy_now(node.shared.inode)
        if clean is not None and clean.object == obj.id:
            obj.clean, obj.origin = True, clean.signature

    def unsettled(self, objects: set[ObjectId]) -> list[tuple[Node, LocalObject]]:
        """Those of `objects` that nobody has open for writing any more.

        Whether a mapping still writes to them has to be found out.
        """
        found = []
        for id_ in objects:
            obj = self._tree.objects.get(id_)
            if obj is None or obj.writers or obj.content is not Content.DATA:
                continue
            try:
                self._open(obj)
            except OSError as error:
                log.error("a file that was open cannot be opened again: %s", error)
                continue
            obj.live = obj.settling = True
            self._suspect(obj)
            obj.users += 1
            found.append((self._tree.node_of_object(obj), obj))
        return found


def _is_just_made(node: Node) -> bool:
    """Whether its CREATE was answered, perhaps, before the row of it was written."""
    return node.shared is None and node.object is not None and not node.object.pending
