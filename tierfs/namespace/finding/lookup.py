"""Finding what a name leads to, and what stat(2) says of it (G10).

A name is looked for in the overlay first, then on the shared tier; nothing is remembered of names
that are not there.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

from tierfs.health import is_failure
from tierfs.model import Attributes, Kind, Name, ObjectId, OpKind
from tierfs.namespace.core import Core
from tierfs.namespace.finding.seen import Seen
from tierfs.namespace.finding.subdirectories import directory_links, stands_beside
from tierfs.namespace.finding.told import Told
from tierfs.namespace.grouping.published import is_to_begin, until_published
from tierfs.namespace.outage.asking import asker, until_it_waits
from tierfs.namespace.outage.calls import Unanswered
from tierfs.namespace.outage.instead import Instead
from tierfs.namespace.overlay.nodes import Content, DirectoryState, LocalObject, Location, Node
from tierfs.order import names
from tierfs.shared import Entry as SharedEntry
from tierfs.shared import staging_name

log = logging.getLogger(__name__)

FRESH_SECONDS = 0.25
"""How long the attributes of a shared directory are taken as they were told: each file made in it
has the kernel ask for them. With what the kernel believes, less than the 1 s of G10."""

NAME_BYTES = 255
"""The longest name (NAME_MAX)."""

LINK_SECONDS = 0.2
"""How long stat waits to know whether a link that is being published counts already."""

HANGS_SOON_SECONDS = 2.0
"""How long a lookup waits for a checkpoint that is published before it asks whether that hangs."""

DIRECTORY_BYTES = 4096
"""st_size of every directory: its own on the two tiers says nothing of what the mount shows."""


@contextmanager
def watching(state: DirectoryState) -> Iterator[dict[Name, bool]]:
    """Collects the names whose overlay entry changes meanwhile: name → it is there now."""
    seen: dict[Name, bool] = {}
    state.watchers.append(seen)
    try:
        yield seen
    finally:
        # by identity: two watchers that saw the same are equal
        state.watchers[:] = [watcher for watcher in state.watchers if watcher is not seen]


class Lookup:
    """Names to nodes, nodes to attributes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tree = core.tree
        self._clock = time.monotonic
        self.instead = Instead(core, self.adopt)
        self.seen = Seen(core.tree)
        self.told = Told()

    async def resolve(self, state: DirectoryState, name: Name) -> Node:
        """The node that has `name`; OSError(ENOENT). Nothing is awaited after it is decided."""
        node, _ = await self.resolve_with_stat(state, name)
        return node

    async def find(self, state: DirectoryState, name: Name, *, hasty: bool = False) -> Node | None:
        """Like `resolve`, but None when there is no such name.

        `hasty`: Unanswered, rather than a wait, while the tier is silent and nothing is known.
        """
        try:
            return (await self.resolve_with_stat(state, name, hasty=hasty))[0]
        except FileNotFoundError:
            return None

    async def resolve_with_stat(
        self, state: DirectoryState, name: Name, *, hasty: bool = False
    ) -> tuple[Node, os.stat_result | None]:
        """The node and, if the shared tier was asked, what it said."""
        if len(name) > NAME_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(name))
        if self._core.written_over:
            await until_published(self._core, state.id)
        while True:
            if (decided := self.in_overlay(state, name)) is not None:
                return decided, None
            if not self._core.places.exists(state.id):
                raise missing(name)
            with watching(state) as changed:
                try:
                    found, there = await self._asked(state, name, hasty)
                    again = name in changed or await self._is_rebuilt(state, name)
                except OSError as error:
                    if not is_failure(error):
                        raise
                    await until_it_waits(asker())
                    if name in changed:
                        continue
                    if (told := self.instead.node(state, name)) is None:
                        raise
                    return told
            if again:
                continue
            if found is None:
                raise missing(name)
            return self.adopt(state, name, found, there), found.st

    async def _asked(
        self, state: DirectoryState, name: Name, hasty: bool
    ) -> tuple[SharedEntry | None, Name]:
        """As `_on_shared`; ends early while the tier is silent and something else is known."""
        if hasty or self._core.announced.get(state.id) is not None:
            try:
                return await self._on_shared(state, name, hasty=True)
            except Unanswered:
                await until_it_waits(asker())
                if hasty or self.instead.is_known(state, name):
                    raise
        return await self._on_shared(state, name)

    async def _is_rebuilt(self, state: DirectoryState, name: Name) -> bool:
        """Waits while the checkpoint `name` is published or a new generation made; whether it was.

        Or of what it lies in: it goes along. What then stands under its two names is not yet known
        to be what it is. Unanswered when changes do not come back, though what is asked may.
        """
        core, group = self._core, state.unsealed.get(name)
        around = () if group is None else (group, *self._tree.scope(state.id))
        ops = (core.publishing(each, OpKind.REOPEN, OpKind.SEAL) for each in around)
        if (op := next(filter(None, ops), None)) is None:
            return False
        with trio.move_on_after(HANGS_SOON_SECONDS) as wait:
            await core.calls.wait(core.writeback.decided, op)
        if wait.cancelled_caught:
            if core.calls.changes.now and group in self._tree.by_object:
                raise Unanswered
            await core.calls.wait(core.writeback.decided, op)
        return True

    async def _on_shared(
        self, state: DirectoryState, name: Name, *, hasty: bool = False
    ) -> tuple[SharedEntry | None, Name]:
        """What the shared tier has for `name`, and under which name it has it.

        An unsealed checkpoint that was seen here before is meant before a sealed one of its name:
        that is its earlier generation, or is being removed. While its next generation is still to
        be made, what is staged is what another node left there.
        """
        core = self._core
        names_there = [name]
        known = name in state.unsealed  # also if what it lies in has the name of a checkpoint now
        if known or core.groups.is_group(state, name):
            staged_first = known and not is_to_begin(core, state.unsealed[name])
            names_there.insert(0 if staged_first else 1, staging_name(name))
        for there in names_there:
            found = await core.at(state.id, core.shared.lookup_staged, there, hasty=hasty)
            if found is None:
                continue
            if there != name and await self._finish_seal(state, name, hasty):
                return await core.at(state.id, core.shared.lookup_staged, name, hasty=hasty), name
            return found, there
        return None, name

    async def _finish_seal(self, state: DirectoryState, name: Name, hasty: bool) -> bool:
        """Whether a member died while it published the checkpoint `name`, and it is there now."""
        core = self._core
        if name in state.unsealed:
            return False  # looked at before, or of this member
        try:
            return await core.at(state.id, core.shared.finish_any_seal, name, hasty=hasty)
        except OSError as error:
            log.info("checkpoint %s: %s", os.fsdecode(name), error)
            return False

    def in_overlay(self, state: DirectoryState, name: Name) -> Node | None:
        """The node that the overlay has under `name`; ENOENT for a whiteout; None: ask further."""
        if state.removed:
            raise missing(name)
        entry = state.entries.get(name)
        if entry is None or (entry.object is None and name in state.unsealed):
            return None
        if entry.object is None:
            raise missing(name)
        return self._tree.node_of_object(entry.object)

    async def target(self, node: Node) -> bytes:
        """Where a symbolic link points."""
        core, obj = self._core, node.object
        if obj is not None and obj.content is Content.DATA:
            with core.holding(obj):
                return await core.of_object(obj.id, core.store.target, obj.id)
        found = await self._committed_target(node)
        if found.target is None:
            raise OSError(errno.EINVAL, "not a symbolic link")
        return found.target

    async def _committed_target(self, node: Node) -> SharedEntry:
        told = self._core.announced.at(node.shared)
        try:
            return await self.committed_entry(node, hasty=told is not None)
        except OSError as error:
            if told is None or not is_failure(error):
                raise
            return told

    async def open_committed(
        self, node: Node, *, hasty: bool = False
    ) -> tuple[int, os.stat_result]:
        """Opens the shared file of `node` for reading."""
        core = self._core
        while True:
            directory, name, inode = self.shared_location(node)
            try:
                fd, st = await core.at(
                    directory, core.shared.open_file, name, os.O_RDONLY, hasty=hasty,
                    late=self._let_go,
                )  # fmt: skip
            except FileNotFoundError:
                await self.check_moved(node, (directory, name, inode))
                continue
            if st.st_ino == inode:
                return fd, st
            await core.on_shared(core.os.close, "open.close", fd)
            await self.check_moved(node, (directory, name, inode))

    async def open_unless_copied(self, node: Node) -> tuple[int, os.stat_result]:
        """As `open_committed`; ends early while the tier is silent and there is a local copy."""
        try:
            return await self.open_committed(node, hasty=True)
        except Unanswered:
            if await self.instead.copy(node) is not None:
                raise
        return await self.open_committed(node)

    def _let_go(self, opened: tuple[int, os.stat_result] | None) -> None:
        if opened is not None:  # it came too late
            self._core.closing_shared.add(opened[0])

    def adopt(
        self, state: DirectoryState, name: Name, found: SharedEntry, there: Name | None = None
    ) -> Node:
        """The node of an entry that was seen on the shared tier, as `there` if not as `name`."""
        location = Location(state.id, there or name, found.st.st_ino)
        kind = Kind.of_mode(found.st.st_mode)
        if names.role(name) is names.Role.COMMIT:
            state.vouched = True
        node = self._tree.node_of_shared(
            kind, location, found.st.st_nlink, found.directory_id, name
        )
        if node.directory is not None:
            tagged = found.directory_id == node.directory
            tag = None if tagged else self._tag(state, name, found)
            self._core.directory_record(node.directory, location, tagged=tagged, tag=tag)
            self._core.groups.seen(state, name, node.directory, unsealed=there not in (None, name))
        return node

    def _tag(self, state: DirectoryState, name: Name, found: SharedEntry) -> ObjectId | None:
        """The id that the directory `name` carries, though it is known by another one here.

        None where that is the id of a directory elsewhere: somebody copied that with its xattrs.
        """
        tag = found.directory_id
        known = None if tag is None else self._tree.directories.get(tag)
        return tag if known is None or (known.parent, known.name) == (state.id, name) else None

    # -- attributes ----------------------------------------------------------------------------

    async def attributes(self, node: Node, st: os.stat_result | None = None) -> Attributes:
        """What stat(2) says of `node`; `st` spares the question when it was just asked."""
        obj, is_gone = node.answering(), self._core.store.spread.is_gone
        if (
            obj is not None
            and obj.content is not Content.NONE
            and not (obj.clean and is_gone(obj.id))
        ):
            attributes = obj.attributes or await self._local_attributes(obj)
            if obj.committed_links is None and node.directory is None:
                await self._learn_links(node, obj)
        elif node.unlinked and node.last is not None:
            attributes = node.last  # whatever is left of it on the shared tier, if anything
        elif obj is None or node.directory is not None:
            attributes = await self._committed_attributes(node, st)
        else:
            attributes = await self._referred_attributes(node, obj, st)
        if node.directory is not None:
            await self._count_directories(node, self._tree.directories[node.directory])
            found = self._directory_attributes(node.directory, attributes)
            return dataclasses.replace(found, nlink=0) if node.unlinked else found
        attributes = _ours(node, attributes)
        if node.unlinked:
            return dataclasses.replace(attributes, nlink=0)
        if obj is None:
            return attributes
        if obj.content is Content.DATA and not obj.clean:
            return dataclasses.replace(attributes, nlink=max(1, len(node.names)))
        # a local object has one link of its own, whatever the shared file has
        committed = attributes.nlink if obj.content is Content.NONE else obj.committed_links
        return dataclasses.replace(attributes, nlink=max(1, (committed or 1) + obj.links))

    def as_committed(self, node: Node, st: os.stat_result) -> Attributes | None:
        """What stat(2) says of a file of which nothing is pending, and the shared tier `st`."""
        if node.object is not None or node.directory is not None or node.unlinked:
            return None
        attributes = Attributes.of(st)
        return attributes if node.ctimes is None and not node.linked_ns else _ours(node, attributes)

    def directory_at_hand(self, node: Node) -> Attributes | None:
        """What stat(2) says of a directory, if nobody has to be asked."""
        if node.directory is None or node.unlinked:
            return None
        obj, state = node.object, self._tree.directories[node.directory]
        if obj is not None and obj.content is not Content.NONE:
            counted = not stands_beside(self._core, state) or self._clock() < state.known_until
            found = obj.attributes if counted else None
        else:
            found = state.known if self._clock() < state.known_until else None
        return None if found is None else self._directory_attributes(node.directory, found)

    async def _referred_attributes(
        self, node: Node, obj: LocalObject, st: os.stat_result | None, *, hasty: bool = False
    ) -> Attributes:
        """What the shared tier says, and surely before or after each of our own links."""
        core = self._core
        while True:
            while (op := core.linking(obj)) is not None:
                with trio.move_on_after(LINK_SECONDS) as wait:
                    await core.writeback.decided(op)
                if wait.cancelled_caught:
                    # the tier hangs in that call: the names that are known here count
                    found = await self._committed_attributes(node, None, hasty=hasty)
                    return dataclasses.replace(found, nlink=len(node.names) - obj.links)
                st = None
            version = obj.version
            attributes = await self._committed_attributes(node, st, hasty=hasty)
            if obj.version == version and core.linking(obj) is None:
                return attributes
            st = None

    async def _learn_links(self, node: Node, obj: LocalObject) -> None:
        """How many names the committed version of a restored stub has."""
        try:
            committed = await self._referred_attributes(node, obj, None, hasty=True)
        except OSError:
            return  # its other attributes are here; the next stat asks again
        if obj.committed_links is None:
            obj.committed_links = committed.nlink

    async def _local_attributes(self, obj: LocalObject) -> Attributes:
        version, store = obj.version, self._core.store
        try:
            with self._core.holding(obj):
                told = await self._core.of_object(obj.id, store.attributes, obj.id, obj.kind)
        except OSError as error:
            if not await self._core.is_drive_lost(error) or not store.spread.is_gone(obj.id):
                raise
            return lost_attributes(obj)
        if (
            obj.version == version and not obj.live
        ):  # else it is being written to, and will be asked again
            obj.attributes = told
        return told

    def _directory_attributes(self, directory: ObjectId, attributes: Attributes) -> Attributes:
        state = self._tree.directories[directory]
        # The write-back gives `changed_ns` to the shared directory when nothing is pending in it.
        mtime_ns = state.changed_ns or attributes.mtime_ns
        # asked for before each create: dataclasses.replace takes several times as long
        return Attributes(
            attributes.kind, attributes.mode, attributes.uid, attributes.gid, DIRECTORY_BYTES,
            attributes.atime_ns, mtime_ns, max(mtime_ns, state.ctime_ns),
            directory_links(self._core, state, attributes.nlink),
            DIRECTORY_BYTES // 512, attributes.rdev,
        )  # fmt: skip

    async def _count_directories(self, node: Node, state: DirectoryState) -> None:
        """Has the shared tier count those in a directory that has an object here as well."""
        if stands_beside(self._core, state) and self._clock() >= state.known_until:
            with suppress(OSError):  # what it said last counts
                await self._committed_attributes(node, None, hasty=True)

    async def _committed_attributes(
        self, node: Node, st: os.stat_result | None, *, hasty: bool = False
    ) -> Attributes:
        state = None if node.directory is None else self._tree.directories[node.directory]
        known, counted = self.instead.attributes(node), None
        if st is None:
            if state is not None and known is not None and self._clock() < state.known_until:
                return known
            if state is not None:
                counted = state.counted
            try:
                st = await self._shared_stat(node, hasty=hasty or known is not None)
            except OSError as error:
                if known is None or not is_failure(error):
                    raise
                return known  # a dead tier must not close the way to what is pending below (G8)
        found = Attributes.of(st)
        if state is not None:
            is_fresh = counted in (None, state.counted)
            state.known = found
            state.known_until = self._clock() + FRESH_SECONDS if is_fresh else 0.0
        return found

    async def _shared_stat(self, node: Node, *, hasty: bool) -> os.stat_result:
        for handle in node.handles:
            if handle.shared_fd >= 0:
                return await self._core.on_shared_file(handle, self._fstat, hasty=hasty)
        return (await self.committed_entry(node, hasty=hasty)).st

    def _fstat(self, fd: int) -> os.stat_result:
        return self._core.os.fstat("getattr.fstat", fd)

    async def xattrs(self, node: Node) -> dict[bytes, bytes]:
        """The xattrs that the committed version of `node` has, or had when they were seen last."""
        told = await self.instead.xattrs(node) if self._core.calls.silent else None
        if told is not None:
            return told
        try:
            return await self._committed_xattrs(node)
        except OSError as error:
            if not is_failure(error) or (told := await self.instead.xattrs(node)) is None:
                raise
            return told

    async def _committed_xattrs(self, node: Node) -> dict[bytes, bytes]:
        core, hasty = self._core, True
        while True:
            seen = directory, name, inode = self.shared_location(node)
            try:
                return await core.at(directory, core.shared.xattrs, name, inode, hasty=hasty)
            except FileNotFoundError:
                await self.check_moved(node, seen)
            except Unanswered:
                if not hasty or await self.instead.xattrs(node) is not None:
                    raise
                hasty = False

    async def committed_entry(self, node: Node, *, hasty: bool = False) -> SharedEntry:
        """What the shared tier has of `node`; OSError(ESTALE) when it has something else there."""
        while True:
            directory, name, inode = self.shared_location(node)
            found = await self._core.at(directory, self._core.shared.lookup, name, hasty=hasty)
            if found is not None and inode in (None, found.st.st_ino):
                return found
            await self.check_moved(node, (directory, name, inode))

    async def check_moved(self, node: Node, seen: tuple[ObjectId, Name, int | None]) -> None:
        """Returns when our own rename explains that `node` was not where it was looked for.

        OSError(ESTALE) otherwise: somebody else replaced it, the kernel has to look again.
        """
        moved = node.object is not None and await self._core.rename_under_way(node.object.id)
        if not moved and self.shared_location(node) == seen:
            raise OSError(errno.ESTALE, "changed on the shared tier", os.fsdecode(seen[1]))

    def shared_location(self, node: Node) -> tuple[ObjectId, Name, int | None]:
        """Directory, name (b"": the directory itself) and inode of the committed version."""
        if node.directory is not None:
            return node.directory, b"", None
        if node.shared is None:
            raise OSError(errno.ESTALE, "gone from the shared tier")
        return node.shared.directory, node.shared.name, node.shared.inode


def _ours(node: Node, attributes: Attributes) -> Attributes:
    """With the ctime that applications are to see."""
    if node.ctimes is not None and node.ctimes[0] == attributes.ctime_ns:
        attributes = dataclasses.replace(attributes, ctime_ns=node.ctimes[1])
    if node.linked_ns > attributes.ctime_ns:
        attributes = dataclasses.replace(attributes, ctime_ns=node.linked_ns)
    return attributes


def missing(name: Name) -> FileNotFoundError:
    """ENOENT for `name`."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(name))


def lost_attributes(obj: LocalObject) -> Attributes:
    """Of what the local drive took with it: it can be removed and renamed over, not opened."""
    op = obj.put
    size, time_ns = (op.size, op.timestamp_ns) if op is not None else (0, 0)
    return Attributes(obj.kind, 0, 0, 0, size, time_ns, time_ns, time_ns)
