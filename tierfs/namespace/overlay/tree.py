"""The logical tree: nodes, directories and the overlay of pending names. Pure, no I/O."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from tierfs.model import ROOT, Kind, Name, ObjectId, Op, new_object_id
from tierfs.namespace.overlay.nodes import (
    Content,
    DirectoryState,
    Entry,
    LocalObject,
    Location,
    Node,
)

ROOT_INO = 1

MOST_WAYS = 4096
"""Directories of which the way from the root is remembered."""

Way = tuple[tuple[ObjectId, ...], tuple[Name, ...]]
"""The ids from the root down to a directory, and the names below the root."""


class Tree:
    """Nodes by number, by object and by shared inode; directories by id; objects by id.

    `changed` collects the nodes that are to be remembered again, None while nothing is (see
    `Memory`).

    `tagged` are the directories that carry their id on the shared tier: with another id there, an
    inode is another directory.

    Invariants: a node is in `by_object` while it has an object and in `by_shared` while it has a
    committed version (`Node.shared`): no two have the same; a directory state exists while a node,
    a child, an overlay entry or a pending op needs it.
    """

    def __init__(
        self,
        root_inode: int,
        on_directories_gone: Callable[[list[ObjectId]], None],
        on_directory_moved: Callable[[list[ObjectId], list[ObjectId]], None],
    ) -> None:
        self._on_directories_gone = on_directories_gone
        self._on_directory_moved = on_directory_moved
        self.nodes: dict[int, Node] = {}
        self.by_object: dict[ObjectId, Node] = {}
        self.by_shared: dict[int, Node] = {}
        self.aliases: dict[int, int] = {}
        self.directories: dict[ObjectId, DirectoryState] = {}
        self.objects: dict[ObjectId, LocalObject] = {}
        self.tagged: set[ObjectId] = set()
        self._nodeless: dict[int, ObjectId] = {}
        self._ways: dict[ObjectId, Way] = {}
        self.changed: dict[Node, bool] | None = None
        self.directories[ROOT] = DirectoryState(ROOT, None, b"", pins=1)
        root = Node(ROOT_INO, Kind.DIRECTORY, lookups=1)
        root.directory = ROOT
        self.nodes[ROOT_INO] = self.by_object[ROOT] = self.by_shared[root_inode] = root

    # -- finding -------------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        """The node with number `ino`; OSError(ESTALE) when it is not known."""
        try:
            return self.nodes[ino]
        except KeyError:
            raise OSError(errno.ESTALE, "unknown inode", str(ino)) from None

    def directory(self, ino: int) -> DirectoryState:
        """The directory that node `ino` is; OSError(ENOTDIR) when it is none."""
        node = self.node(ino)
        if node.directory is None:
            raise OSError(errno.ENOTDIR, "not a directory", str(ino))
        return self.directories[node.directory]

    def scope(self, directory: ObjectId) -> tuple[ObjectId, ...]:
        """Directory ids from the root down to `directory`, it included."""
        return self._way(directory)[0]

    def path(self, directory: ObjectId) -> tuple[Name, ...]:
        """The names that lead from the root to `directory`."""
        return self._way(directory)[1]

    def known_names(self, node: Node) -> list[tuple[ObjectId, Name]]:
        """The names of `node` that can be followed: the kernel may have forgotten the directory of
        a further one (a hard link), while it uses the file.
        """
        return [each for each in node.names if each[0] in self.directories]

    def a_name(self, node: Node) -> tuple[ObjectId, Name] | None:
        """One of these."""
        return next(iter(self.known_names(node)), None)

    def path_of(self, node: Node) -> tuple[Name, ...] | None:
        """The names that lead to `node`, by one of its names; None: it has none."""
        found = self.a_name(node)
        if found is None:
            return None
        return (*self.path(found[0]), found[1])

    def _way(self, directory: ObjectId) -> Way:
        way = self._ways.get(directory)
        if way is None:
            chain = self._chain(directory)
            way = tuple(each.id for each in chain), tuple(each.name for each in chain)[1:]
            if len(self._ways) >= MOST_WAYS:
                self._ways.clear()
            self._ways[directory] = way
        return way

    def _chain(self, directory: ObjectId) -> list[DirectoryState]:
        chain = []
        at: ObjectId | None = directory
        while at is not None:
            state = self.directories[at]
            chain.append(state)
            at = state.parent
        chain.reverse()
        return chain

    def is_within(self, directory: ObjectId, ancestor: ObjectId) -> bool:
        """Whether `directory` is `ancestor` or lies below it."""
        return any(state.id == ancestor for state in self._chain(directory))

    # -- nodes ---------------------------------------------------------------------------------

    def node_of_object(self, obj: LocalObject) -> Node:
        """The node that `obj` answers for, made when the kernel does not know it yet."""
        node = self.by_object.get(obj.id)
        if node is None:
            # the file that it was the first version of may still go by its number
            ino = int(obj.id) if int(obj.id) not in self.nodes else int(new_object_id())
            node = Node(ino, obj.kind, self.changed)
            node.object = obj
            if obj.kind is Kind.DIRECTORY:
                node.directory = obj.id
            self.nodes[node.ino] = self.by_object[obj.id] = node
        return node

    def node_of_shared(
        self,
        kind: Kind,
        location: Location,
        nlink: int,
        directory_id: ObjectId | None = None,
        name: Name | None = None,
    ) -> Node:
        """The node of what stands at `location` on the shared tier; `name`: that in the mount."""
        node = self.by_shared.get(location.inode)
        if node is not None and self._holds_another(node, location, nlink):
            self.uncommitted(node)
            node = None
        elif node is not None and not self._is_still(node, kind, directory_id):
            # the inode number was used again for something else
            self.uncommitted(node)
            node = None
        if node is None:
            node = self._new_shared_node(kind, location, directory_id)
        if kind is Kind.DIRECTORY:
            self._place_directory(node, location.directory, name or location.name)
        else:
            if nlink == 1 and (node.object is None or node.object.pending == 0):
                node.names.clear()  # moved elsewhere, or the number was used again
            node.names.add((location.directory, location.name))
            links = nlink + (node.object.links if node.object is not None else 0)
            node.unknown = max(0, links - len(node.names))
        node.shared = location
        return node

    def _is_still(self, node: Node, kind: Kind, directory_id: ObjectId | None) -> bool:
        if node.kind is not kind or node.unlinked:
            return False
        return directory_id in (None, node.directory) or node.directory not in self.tagged

    def _holds_another(self, node: Node, location: Location, nlink: int) -> bool:
        """Whether what stands at `location` took the inode number of what `node` was there.

        So it is when `node` has content that is pending here, and had its only name elsewhere.
        """
        known = node.shared
        if node.object is None or node.object.put is None or known is None:
            return False
        return nlink == 1 and (known.directory, known.name) != (location.directory, location.name)

    def _new_shared_node(
        self, kind: Kind, location: Location, directory_id: ObjectId | None
    ) -> Node:
        known = self._nodeless.pop(location.inode, None) if kind is Kind.DIRECTORY else None
        if known is not None and (directory_id in (None, known) or known not in self.tagged):
            self.directories[known].inode = None
            directory_id = known
        elif directory_id is not None and directory_id in self.by_object:
            directory_id = None  # somebody copied a directory with its id: it is another one
        ino = self.aliases.get(location.inode, location.inode)
        if ino in self.nodes or ino <= ROOT_INO:
            ino = int(new_object_id())
            self.aliases[location.inode] = ino
        node = Node(ino, kind, self.changed)
        if kind is Kind.DIRECTORY:
            node.directory = directory_id or new_object_id()
            if directory_id is not None and directory_id != known:
                self.tagged.add(directory_id)
            self.by_object[node.directory] = node
        self.nodes[ino] = self.by_shared[location.inode] = node
        return node

    def _place_directory(self, node: Node, parent: ObjectId, name: Name) -> None:
        assert node.directory is not None
        state = self.directories.get(node.directory)
        if state is None:
            self.add_directory(node.directory, parent, name)
        elif (state.parent, state.name) != (parent, name):
            self.move_directory(state, parent, name)

    def stands_at(self, directory: ObjectId, location: Location, *, tagged: bool) -> None:
        """A directory that may have no node stands at `location` on the shared tier.

        Without a tag the inode alone tells that what is found there is this directory.
        """
        if tagged:
            self.tagged.add(directory)
        node = self.by_object.get(directory)
        if node is not None:
            self.committed(node, location)
        elif (state := self.directories.get(directory)) is not None:
            self._forget_inode(state)
            state.inode = location.inode
            self._nodeless[location.inode] = directory

    def _forget_inode(self, state: DirectoryState) -> None:
        """What is found under the inode that `state` had without a node is not it any more."""
        if state.inode is not None and self._nodeless.get(state.inode) == state.id:
            del self._nodeless[state.inode]

    def committed(self, node: Node, location: Location) -> None:
        """A version of `node` stands at `location` now; its number stays what it was.

        What was known under that inode stands nowhere: the number was given to this one.
        """
        before = self.by_shared.get(location.inode)
        if before is not None and before is not node:
            self.uncommitted(before)
        old = node.shared
        if old is not None and self.by_shared.get(old.inode) is node:
            del self.by_shared[old.inode]
            self.aliases.pop(old.inode, None)
        node.shared = location
        self.by_shared[location.inode] = node
        if node.ino != location.inode:
            self.aliases[location.inode] = node.ino

    def uncommitted(self, node: Node) -> None:
        """Nothing of `node` is on the shared tier any more."""
        if node.shared is not None:
            if self.by_shared.get(node.shared.inode) is node:
                del self.by_shared[node.shared.inode]
            self.aliases.pop(node.shared.inode, None)
            node.shared = None

    def switch_object(self, node: Node, obj: LocalObject | None) -> LocalObject | None:
        """`obj` answers for `node` from now on; returns what did before."""
        old = node.object
        if old is not None and node.directory is None and self.by_object.get(old.id) is node:
            del self.by_object[old.id]
        node.object = obj
        if obj is not None:
            self.by_object[obj.id] = node
            if obj.content is Content.DATA:
                node.unknown = 0  # a new version follows the names that are known
        return old

    def succeed(self, node: Node) -> Node:
        """Gives all that has a name to a new node; the old one is left to those who have it open.

        The kernel learns the new number when it looks the name up again.
        """
        fresh = Node(int(new_object_id()), node.kind, self.changed)
        fresh.names, fresh.ctimes = node.names, node.ctimes
        self.nodes[fresh.ino] = fresh
        node.names = set()
        obj = self.switch_object(node, None)
        if obj is not None:
            self.switch_object(fresh, obj)
        location = node.shared
        self.uncommitted(node)
        if location is not None:
            self.committed(fresh, location)
        return fresh

    def renamed(self, node: Node) -> None:
        """The names of `node` were changed in place."""
        if self.changed is not None:
            self.changed[node] = True

    def forget(self, ino: int, count: int) -> LocalObject | None:
        """The kernel forgets `count` lookups; returns an object that this leaves unused."""
        node = self.nodes.get(ino)
        if node is None or ino == ROOT_INO:
            return None
        node.lookups = max(0, node.lookups - count)
        return self.discard_if_unused(node)

    def discard_if_unused(self, node: Node) -> LocalObject | None:
        """Drops a node that neither the kernel nor a handle knows; returns an unused object."""
        if node.lookups > 0 or node.handles or self.nodes.get(node.ino) is not node:
            return None
        if node.object is not None and node.object.pending:
            return None  # its names are known nowhere else
        del self.nodes[node.ino]
        if node.shared is not None and self.by_shared.get(node.shared.inode) is node:
            del self.by_shared[node.shared.inode]
        key = node.directory or (node.object.id if node.object else None)
        if key is not None and self.by_object.get(key) is node:
            del self.by_object[key]
        if node.directory is not None:
            if node.shared is not None:
                tagged = node.directory in self.tagged
                self.stands_at(node.directory, node.shared, tagged=tagged)
            self.release_directory(node.directory)
        obj = node.object
        if obj is not None and obj.pending == 0 and obj.users == 0:
            self.objects.pop(obj.id, None)
            return obj
        return None

    # -- directories ---------------------------------------------------------------------------

    def add_directory(self, directory: ObjectId, parent: ObjectId, name: Name) -> DirectoryState:
        """Puts a directory into the logical tree."""
        if directory in self._ways:
            self._ways.clear()
        state = DirectoryState(directory, parent, name)
        self.directories[directory] = state
        self.directories[parent].children += 1
        return state

    def move_directory(self, state: DirectoryState, parent: ObjectId, name: Name) -> None:
        """Gives a directory another place in the logical tree."""
        assert state.parent is not None
        old = self.directories[state.parent]
        old.children -= 1
        self.directories[parent].children += 1
        state.parent, state.name = parent, name
        self._ways.clear()
        if state.pins:
            fresh, idle = self._pin(parent), self._unpin(old.id)
            if fresh or idle:
                self._on_directory_moved(fresh, idle)
        self.release_directory(old.id)

    def release_directory(self, directory: ObjectId) -> None:
        """Drops a directory state that nothing needs, and its parents likewise."""
        gone = []
        at: ObjectId | None = directory
        while at is not None and at != ROOT:
            state = self.directories.get(at)
            needed = state is None or state.children or state.entries or state.pins
            if needed or state is None or at in self.by_object or state.watchers:
                break
            del self.directories[at]
            self._ways.pop(at, None)
            self.tagged.discard(at)
            self._forget_inode(state)
            gone.append(at)
            at = state.parent
            if at is not None:
                self.directories[at].children -= 1
        if gone:
            self._on_directories_gone(gone)

    # -- the overlay ---------------------------------------------------------------------------

    def pin(self, directories: Iterable[ObjectId]) -> list[ObjectId]:
        """Something needs `directories`, and all above; those that nothing needed before."""
        fresh = []
        for directory in directories:
            fresh += self._pin(directory)
        return fresh

    def unpin(self, directories: Iterable[ObjectId]) -> list[ObjectId]:
        """What needed `directories` is over; returns those that nothing needs any more."""
        idle = []
        for directory in directories:
            idle += self._unpin(directory)
        return idle

    def needed(self, op: Op) -> set[ObjectId]:
        """The directories of an op: where it is, where it comes from, and the one it is about."""
        ends = {op.parent} if op.parent2 is None else {op.parent, op.parent2}
        return ends | {each for each in (op.object, op.other) if each in self.directories}

    def _pin(self, directory: ObjectId) -> list[ObjectId]:
        """Counts one more that needs `directory`: the first one makes it need its parent."""
        fresh = []
        at: ObjectId | None = directory
        while at is not None:
            state = self.directories[at]
            state.pins += 1
            if state.pins > 1:
                break
            fresh.append(at)
            at = state.parent
        return fresh

    def _unpin(self, directory: ObjectId) -> list[ObjectId]:
        idle = []
        at: ObjectId | None = directory
        while at is not None:
            state = self.directories[at]
            state.pins -= 1
            if state.pins:
                break
            idle.append(at)
            at = state.parent
        return idle

    def entry(self, directory: ObjectId, name: Name) -> Entry | None:
        """What the overlay says of a name, None when it says nothing."""
        state = self.directories.get(directory)
        return state.entries.get(name) if state else None
