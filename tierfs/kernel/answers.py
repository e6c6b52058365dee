"""The calls that come for every file, answered without regard to who passes the answer on.

`Operations` gives them to pyfuse3, `Hot` writes them to the kernel itself.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace

from tierfs.model import Attributes, Kind
from tierfs.namespace.callers import Caller
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.finding.seen import BELIEVED_SECONDS
from tierfs.namespace.outage.asking import until_it_waits
from tierfs.namespace.overlay.nodes import DirectoryState, Handle, Node
from tierfs.namespace.requests import Request, carrying_out
from tierfs.osio.processes import is_making_directory, is_waiting

TIMEOUT_SECONDS = 0.5
"""How long the kernel may believe attributes (G10: other nodes' within 1 s)."""

NAME_SECONDS = BELIEVED_SECONDS
"""And names; those of a listing may be up to `AHEAD_SECONDS` older. A directory of a thousand files
is removed meanwhile, and each name that is believed no longer is looked up."""

NEWBORN_SECONDS = 0.05

BLOCK_BYTES = 128 << 10
"""st_blksize: loaders buffer by it (FRAMEWORKS.md 2)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernel is told of a node, and for how many seconds it may believe the attributes,
    and the name.
    """

    node: Node
    attributes: Attributes
    attr_seconds: float
    seconds: float = NAME_SECONDS

    @classmethod
    def of(cls, node: Node, attributes: Attributes) -> Entry:
        """The usual answer."""
        # stores through a mapping change the times unseen
        live = node.object is not None and node.object.live
        return cls(node, attributes, 0.0 if live else TIMEOUT_SECONDS)


class Answers:
    """Converts nothing: nodes and handles go by their numbers, errors are OSErrors."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    async def entry(self, node: Node, st: os.stat_result | None = None) -> Entry:
        """What stat(2) says of `node`."""
        return Entry.of(node, await self._fs.lookup.attributes(node, st))

    async def known(self, node: Node, st: os.stat_result | None = None) -> Entry:
        """That of a node that the kernel will know by this reply (a lookup is held)."""
        try:
            return await self.entry(node, st)
        except BaseException:
            self._fs.forget(node.ino, 1)
            raise

    async def lookup(self, parent: int, name: bytes, thread: int) -> Entry:
        """LOOKUP on behalf of `thread`; the node comes with a lookup more.

        A checkpoint that is not listed can be made, as if it were not there: then, ENOENT.
        """
        state, asked = self._fs.tree.directory(parent), False
        while True:
            node, st = await self._fs.lookup.resolve_with_stat(state, name)
            unlisted = self._fs.core.groups.is_unlisted(node.directory)
            if not unlisted or asked or is_waiting(thread):
                break
            await until_it_waits(thread)
            asked = True
        if unlisted and is_making_directory(thread):
            raise FileNotFoundError(errno.ENOENT, "not listed", os.fsdecode(name))
        node.lookups += 1
        entry = await self.known(node, st)
        if st is not None and node.kind in (Kind.FILE, Kind.DIRECTORY):
            self._fs.lookup.seen.note(state, name, node, entry.attributes)
        if st is not None and node.kind is not Kind.DIRECTORY:
            self._fs.lookup.told.note(node, entry.attributes)
        return replace(entry, seconds=0.0) if unlisted else entry

    async def getattr(self, ino: int) -> Entry:
        """GETATTR. Of a file that another node replaced since it was looked up, a moment ago, it
        is what the lookup said.
        """
        node = self._fs.tree.node(ino)
        try:
            return await self.entry(node)
        except OSError as error:
            told = self._fs.lookup.told.get(node) if error.errno == errno.ESTALE else None
            if told is None:
                raise
            return Entry(node, told, 0.0)

    async def getxattr(self, ino: int, name: bytes) -> bytes:
        """GETXATTR; OSError(ENODATA)."""
        node = self._fs.tree.node(ino)
        if name in self._fs.virtual.names:
            return await self._fs.virtual.value(node, name)
        return await self._fs.attributes.getxattr(node, name)

    async def create(
        self, request: Request | None, parent: int, name: bytes, mode: int, flags: int, who: Caller
    ) -> tuple[Handle, Entry]:
        """CREATE, as the kernel's `request`; the node comes with a lookup more.

        A file that is there is opened unless `flags` has O_EXCL: ESTALE has the kernel look the
        name up again. So it is when the worker before had just dropped one (torn, and written
        anew), was asked to make it, and was killed before it had written down either.
        """
        fs = self._fs
        with carrying_out(request):
            state = fs.tree.directory(parent)
            if request is not None and request.done:
                handle = await fs.files.create_again(state, name, who)
            else:
                handle = await self._make(state, name, mode, flags, who)
        try:
            found = handle.born or (await self.known(handle.node)).attributes
        except BaseException:
            await fs.files.release(handle)
            raise
        # nobody can have mapped it yet: open(2) is mostly followed by fstat(2)
        return handle, Entry(handle.node, found, NEWBORN_SECONDS)

    async def _make(
        self, state: DirectoryState, name: bytes, mode: int, flags: int, who: Caller
    ) -> Handle:
        try:
            return await self._fs.files.create(state, name, mode & 0o7777, who)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            raise OSError(errno.ESTALE, "it is there meanwhile", os.fsdecode(name)) from None

    async def create_nameless(
        self, unique: int, parent: int, mode: int, who: Caller
    ) -> tuple[Handle, Entry]:
        """TMPFILE, as the kernel's request `unique`; the node comes with a lookup more."""
        files = self._fs.files
        if (handle := files.answer(unique)) is not None:
            return handle, await self.entry(handle.node)
        handle = await files.create_nameless(self._fs.tree.directory(parent), mode & 0o7777, who)
        assert handle.born is not None
        return handle, Entry(handle.node, handle.born, NEWBORN_SECONDS)

    async def open(self, ino: int, flags: int, who: Caller) -> Handle:
        """OPEN."""
        return await self._fs.files.open(self._fs.tree.node(ino), flags, who)
