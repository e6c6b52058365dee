"""Listings: the shared tier's names and the overlay's, merged once at opendir.

A listing is a snapshot, so its positions stay what they are (seekdir) whatever is committed, made
or removed meanwhile; commits during the merge itself are caught by a watcher of the directory.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tierfs.errors import DirectoryGone
from tierfs.health import is_failure
from tierfs.model import OLDER, Attributes, Kind, Name, ObjectId, OpKind, Reopen
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup, missing, watching
from tierfs.namespace.finding.scans import Found, Scans
from tierfs.namespace.grouping.published import until_published
from tierfs.namespace.overlay.nodes import DirectoryState, Node
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.namespace.restart.remembered import KnownListing
from tierfs.shared import Entry as SharedEntry

BATCH = 128
"""Entries whose attributes are asked for in one thread call."""

AHEAD_SECONDS = 0.25
"""How long what was asked for ahead may be told, as the attributes of a directory."""

DOTS = (b".", b"..")
"""What each listing begins with, as on a local file system."""


class Told(NamedTuple):
    """What is ready to be told of an entry; without `node`, what a listing alone tells."""

    kind: Kind
    ino: int
    node: Node | None = None
    attributes: Attributes | None = None


@dataclass(slots=True)
class Listing:
    """An open directory.

    Attributes:
        names: its snapshot with the dots, None before the first read. One of a worker that did not
            tell them has none, and its positions stay what they are.
        found: what the shared tier's listing said of those that it has; an earlier worker's is
            not known.
        ahead: by position, what is ready to be told; each holds a lookup of its node.
        ahead_until: clock value until when it may be told.
    """

    number: int
    state: DirectoryState
    names: list[Name] | None = None
    found: dict[Name, Found | None] = field(default_factory=dict)
    ahead: dict[int, Told] = field(default_factory=dict)
    ahead_until: float = 0.0

    @property
    def directory(self) -> ObjectId:
        """The directory id."""
        return self.state.id


class Listings:
    """Open directories."""

    def __init__(self, core: Core, lookup: Lookup, forget: Callable[[int, int], None]) -> None:
        self._core = core
        self._lookup = lookup
        self._forget = forget
        self._numbers = itertools.count(1)
        self._open: dict[int, Listing] = {}
        self.scans = Scans()

    def open(self, state: DirectoryState) -> Listing:
        """Opens a directory for reading."""
        listing = Listing(next(self._numbers), state)
        self._open[listing.number] = listing
        self._core.memory.listing(listing)
        return listing

    def restore(self, known: Iterable[KnownListing], highest: int) -> None:
        """The directories that were open in an earlier worker, at the same positions."""
        self._numbers = itertools.count(highest + 1)
        for each in known:
            state = self._core.tree.directories.get(each.directory)
            if state is not None:
                self._open[each.number] = Listing(each.number, state, each.names)

    def all(self) -> Iterator[Listing]:
        """All open directories."""
        return iter(list(self._open.values()))

    def get(self, number: int) -> Listing:
        """The open directory `number`; OSError(EBADF)."""
        try:
            return self._open[number]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def release(self, number: int) -> None:
        """Closes an open directory."""
        listing = self._open.pop(number, None)
        if listing is not None:
            self._core.memory.listing_closed(number)
            self._let_go(listing)

    def _let_go(self, listing: Listing) -> None:
        for told in listing.ahead.values():
            if told.node is not None:
                self._forget(told.node.ino, 1)
        listing.ahead.clear()

    async def names(self, state: DirectoryState) -> list[Name]:
        """All names of a directory, each once."""
        return list(await self._merged(state))

    async def directories(self, state: DirectoryState) -> list[Name]:
        """The names of a directory that are those of directories, also of unlisted checkpoints."""
        merged = await self._merged(state)
        found = [
            name for name, seen in merged.items()
            if (await self._is_directory(state, name) if seen is None
                else seen[0] is Kind.DIRECTORY)
        ]  # fmt: skip
        found += [name for name in await self._staged_names(state) if name not in merged]
        return list(dict.fromkeys([*found, *state.unsealed]))

    async def _is_directory(self, state: DirectoryState, name: Name) -> bool:
        """Of a name that the overlay answers for, or did when the shared tier was asked: what was
        committed since it has no more.
        """
        if name in state.unsealed:
            return True
        try:
            node = self._lookup.in_overlay(state, name) or await self._lookup.find(state, name)
        except FileNotFoundError:
            return False
        return node is not None and node.kind is Kind.DIRECTORY

    async def _staged_names(self, state: DirectoryState) -> list[Name]:
        core = self._core
        if not core.places.exists(state.id):
            return []
        found = await core.at(state.id, core.shared.staged_groups)
        return [name for name in found if core.groups.is_group(state, name)]

    async def _merged(self, state: DirectoryState) -> dict[Name, Found | None]:
        """All names of a directory; None with those that the overlay answers for."""
        if self._core.written_over:
            await until_published(self._core, state.id)
        scan = None if self._core.calls.silent else self.scans.recent(state)
        if scan is None:
            scan = self.scans.begin(state)
            scan.no_more = self._whole_no_more(state)
            with watching(state) as scan.changed:
                scan.found = await self._shared_names(state)
            scan.no_more |= self._whole_no_more(state)
            self.scans.keep(state, scan)
        overlay = {name: entry.object is not None for name, entry in state.entries.items()}
        shared, changed = scan.found, scan.changed
        no_more = scan.no_more | self._whole_no_more(state)
        names: dict[Name, Found | None] = dict(shared)
        for name, there in {**overlay, **changed}.items():
            if there:
                names[name] = None
            else:
                names.pop(name, None)
        for name, group in state.unsealed.items():
            if self._core.groups.listed(group):
                names[name] = None
            elif name not in shared or name in no_more or name in {**overlay, **changed}:
                names.pop(name, None)
        return names

    def _whole_no_more(self, state: DirectoryState) -> set[Name]:
        """The sealed checkpoints in a directory of which files were removed: what they have left
        is whole no more, while the shared tier still has them under their names.
        """
        return {
            name for name, group in state.unsealed.items()
            if any(OLDER in op.fields or (op.kind is OpKind.REOPEN and op.flags == Reopen.WHOLE)
                   for op in self._core.backlog.ops_of_object(group))
        }  # fmt: skip

    async def _shared_names(self, state: DirectoryState) -> Mapping[Name, Found]:
        core = self._core
        if not core.places.exists(state.id):
            return {}
        try:
            told = self._lookup.instead.names(state)
            return await core.at(state.id, core.shared.listing, hasty=told is not None)
        except OSError as error:
            if state.removed:
                return {}  # it was open before, and went from the shared tier meanwhile
            told = self._lookup.instead.names(state) if is_failure(error) else None
            if told is None:
                raise
            return told

    async def is_empty(self, state: DirectoryState) -> bool:
        """Whether a directory has no names, but for those of unlisted checkpoints."""
        if self.shows_any(state):
            return False
        recent = self.scans.recent(state) is not None
        if not await self.names(state):
            return True
        if not recent:
            return False
        self.scans.forget(state)  # another node may have removed what was there a moment ago
        return not self.shows_any(state) and not await self.names(state)

    def shows_any(self, state: DirectoryState) -> bool:
        """Whether the overlay has a name in a directory that listings show."""
        is_unlisted = self._core.groups.is_unlisted
        return any(
            entry.object is not None and not is_unlisted(state.unsealed.get(name))
            for name, entry in state.entries.items()
        )

    async def batch(
        self, listing: Listing, start: int, attributed: int = BATCH
    ) -> list[tuple[int, Name]]:
        """Positions and names from `start` on; what is to be told of them is in `ahead`.

        At most `attributed` with their attributes; if that is 0, nothing is asked for what the
        shared tier's listing has told already.
        """
        try:
            return await self._batch(listing, start, attributed)
        except DirectoryGone:
            if not await self._follow_name(listing):
                raise
            return await self._batch(listing, start, attributed)

    async def _follow_name(self, listing: Listing) -> bool:
        """Has `listing` tell of the directory that has the name of its own by now, if any has.

        Another node has put that there, as whoever saves a checkpoint again does. The kernel looks
        a name up once more when an open says ESTALE, not when a listing does. OSError(ENOENT) when
        none has it, as of a directory that is open and was removed.
        """
        state, tree = listing.state, self._core.tree
        parent = None if state.parent is None else tree.directories.get(state.parent)
        node = None if parent is None else await self._lookup.find(parent, state.name)
        if parent is not None and node is None:
            raise missing(state.name)
        if node is None or node.directory is None:
            return False
        self._let_go(listing)
        listing.state = tree.directories[node.directory]
        return True

    async def _batch(self, listing: Listing, start: int, attributed: int) -> list[tuple[int, Name]]:
        names = await self._snapshot(listing, start)
        part = list(enumerate(names[start : start + min(attributed or BATCH, BATCH)], start))
        wanted = [
            (i, name) for i, name in part
            if i not in listing.ahead and not self._tell_dot(listing, i, name)
        ]  # fmt: skip
        if not attributed:
            wanted = [each for each in wanted if not self._tell_name(listing, *each)]
        if wanted:
            if not listing.ahead:
                listing.ahead_until = time.monotonic() + AHEAD_SECONDS
            await self._fetch(listing, wanted)
        return part

    def _tell_dot(self, listing: Listing, position: int, name: Name) -> bool:
        """Whether an entry is the directory itself or the one that it is in."""
        if name not in DOTS:
            return False
        listing.ahead[position] = Told(Kind.DIRECTORY, self._number_of_dot(listing.state, name))
        return True

    def _number_of_dot(self, state: DirectoryState, name: Name) -> int:
        above = state.id if name == b"." or state.parent is None else state.parent
        node = self._core.tree.by_object.get(above)
        return ROOT_INO if node is None else node.ino

    async def _snapshot(self, listing: Listing, start: int) -> list[Name]:
        """The names of a directory, taken anew by who reads it from the start."""
        if listing.names is None or start == 0:
            listing.found = await self._merged(listing.state)
            listing.names = [*DOTS, *listing.found]
            self._core.memory.listing(listing)
            self._let_go(listing)
        elif time.monotonic() > listing.ahead_until:
            self._let_go(listing)
        return listing.names

    async def told_by_name(
        self, listing: Listing, start: int, most: int
    ) -> list[tuple[Name, Kind, int]]:
        """Name, kind and number of up to `most` entries from `start` on: those for which nobody
        has to be asked, as far as they stand together. Of the next one `batch` knows more.
        """
        try:
            names = await self._snapshot(listing, start)
        except DirectoryGone:
            if not await self._follow_name(listing):
                raise
            names = await self._snapshot(listing, start)
        told: list[tuple[Name, Kind, int]] = []
        if listing.ahead:
            return told
        found, entries, tree = listing.found, listing.state.entries, self._core.tree
        by_shared, nodes, aliases = tree.by_shared, tree.nodes, tree.aliases
        tell, directory = told.append, Kind.DIRECTORY
        end = min(start + most, len(names))
        while start < end and (name := names[start]) in DOTS:
            tell((name, directory, self._number_of_dot(listing.state, name)))
            start += 1
        # a large tree is read by millions of names: as little as can be for each
        for name in names[start:end]:
            seen = found.get(name)
            if seen is None or name in entries:
                break
            kind, inode = seen
            if kind is directory:
                break
            if inode in by_shared:
                tell((name, kind, by_shared[inode].ino))
            elif inode in nodes:
                break  # the number is still that of something else
            else:
                tell((name, kind, aliases.get(inode, inode)))
        return told

    def _tell_name(self, listing: Listing, position: int, name: Name) -> bool:
        """Whether nothing has to be asked about an entry of which the name is enough."""
        found, state, tree = listing.found.get(name), listing.state, self._core.tree
        if found is None or found[0] is Kind.DIRECTORY or name in state.entries:
            return False
        kind, inode = found
        node = tree.by_shared.get(inode)
        if node is None and inode in tree.nodes:
            return False  # the number is still that of something else
        ino = tree.aliases.get(inode, inode) if node is None else node.ino
        listing.ahead[position] = Told(kind, ino)
        return True

    async def _fetch(
        self, listing: Listing, wanted: list[tuple[int, Name]], *, again: bool = True
    ) -> None:
        """Fetches `wanted`; `again`: what is not where it was a moment ago is looked for anew."""
        state, core = listing.state, self._core
        ask, moved = [], []
        for position, name in wanted:
            try:
                node = self._lookup.in_overlay(state, name)
            except FileNotFoundError:
                continue
            if node is None and name not in state.unsealed:
                if not self._tell_again(listing, position, name):
                    ask.append((position, name))
                continue
            if node is None and (node := await self._lookup.find(state, name)) is None:
                continue
            if not await self._hold(listing, position, node, None):
                moved.append((position, name))
        if ask and core.places.exists(state.id):
            moved += await self._fetch_shared(listing, ask, again)
        if moved and again:
            await self._fetch(listing, moved, again=False)

    def _tell_again(self, listing: Listing, position: int, name: Name) -> bool:
        """Whether an entry was told of just now, and nobody has to be asked for it again."""
        seen = self._lookup.seen.again(listing.state, name, self._core.issued)
        if seen is None or position in listing.ahead:
            return False
        until, node, told = seen
        node.lookups += 1
        listing.ahead[position] = Told(node.kind, node.ino, node, told)
        listing.ahead_until = min(listing.ahead_until, until)
        return True

    async def _fetch_shared(
        self, listing: Listing, ask: list[tuple[int, Name]], again: bool
    ) -> list[tuple[int, Name]]:
        """Asks the shared tier; returns what was not there any more."""
        state, moved, issued = listing.state, [], self._core.issued
        with watching(state) as changed:
            found = await self._stat_many(state, [name for _, name in ask])
            for (position, name), entry in zip(ask, found, strict=True):
                if name in changed:
                    await self._fetch(listing, [(position, name)], again=again)
                elif entry is not None and name in state.unsealed:
                    moved.append((position, name))
                elif entry is not None:
                    node = self._lookup.adopt(state, name, entry)
                    told = self._lookup.as_committed(node, entry.st)
                    if told is not None and position not in listing.ahead:
                        node.lookups += 1
                        self._lookup.seen.note(state, name, node, told, issued)
                        listing.ahead[position] = Told(node.kind, node.ino, node, told)
                    elif not await self._hold(listing, position, node, entry.st):
                        moved.append((position, name))
        return moved

    async def _stat_many(
        self, state: DirectoryState, names: list[Name]
    ) -> list[SharedEntry | None]:
        core, known = self._core, self._core.announced.get(state.id)
        told = None if known is None else [known.entry(name) for name in names]
        if told is not None and None in told:
            told = None  # a name that is there is never left out
        try:
            return await core.at(state.id, core.shared.stat_many, names, hasty=told is not None)
        except OSError as error:
            if told is None or not is_failure(error):
                raise
            return told

    async def _hold(
        self, listing: Listing, position: int, node: Node, st: os.stat_result | None
    ) -> bool:
        """Keeps a node and its attributes ready; the lookup is the kernel's once it is told.

        False: it was moved or removed meanwhile. Any other error is one of the listing: a name
        that is there is never left out.
        """
        node.lookups += 1
        try:
            attributes = await self._lookup.attributes(node, st)
        except OSError as error:
            self._forget(node.ino, 1)
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return False
        told = Told(node.kind, node.ino, node, attributes)
        if st is not None and node.directory is not None and listing.names is not None:
            self._lookup.seen.note(listing.state, listing.names[position], node, attributes)
        if listing.ahead.setdefault(position, told) is not told:
            self._forget(node.ino, 1)
        return True
