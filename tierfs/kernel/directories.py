"""Open directories: OPENDIR, READDIRPLUS and RELEASEDIR, answered past pyfuse3.

A large tree is read by hundreds of thousands of entries; here each is one call of struct.
"""

from __future__ import annotations

from tierfs.kernel import bodies
from tierfs.kernel.answers import BLOCK_BYTES, NAME_SECONDS, TIMEOUT_SECONDS
from tierfs.kernel.readers import Readers
from tierfs.kernel.wire import Request
from tierfs.model import Kind
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.finding.listing import Listing, Told

SMALLEST_ENTRY = bodies.entry_size(b"x")


class Directories:
    """Answers them; errors are OSErrors."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.readers = Readers()

    def open(self, request: Request) -> bytes:
        """OPENDIR."""
        self.readers.opens(request.pid, request.nodeid)
        listing = self._fs.listings.open(self._fs.tree.directory(request.nodeid))
        return bodies.reply(request.unique, bodies.opened_directory(listing.number))

    def release(self, message: bytes) -> None:
        """RELEASEDIR."""
        self._fs.listings.release(bodies.handle_of(message))

    async def read(self, request: Request, message: bytes) -> bytes:
        """READDIRPLUS: as many entries as the kernel has room for."""
        number, position, room = bodies.read(message)
        listings, readers = self._fs.listings, self.readers
        listing = listings.get(number)
        with_attributes = readers.attributed(request.pid) > 0
        parts: list[bytes] = []
        files: dict[int, bytes] = {}
        probed = not with_attributes or not readers.wants_probe(request.pid)
        full = False
        if not with_attributes:
            most = room // SMALLEST_ENTRY
            names = await listings.told_by_name(listing, position, most)
            parts += bodies.plain_entries(names, position, room)
            full = len(parts) < len(names) or len(names) == most
            position += len(parts)
            room -= sum(map(len, parts))
        readers.told(request.pid, len(parts))
        while not full:
            attributed = readers.attributed(request.pid) if with_attributes else 0
            full = with_attributes and not attributed
            if full or not (batch := await listings.batch(listing, position, attributed)):
                break
            count = len(parts)
            for position, name in batch:
                told = listing.ahead.get(position)
                if told is None:
                    continue  # gone since the listing was made
                size = bodies.entry_size(name)
                if size > room:
                    full = True
                    break
                room -= size
                if not probed and told.node is not None and told.kind is not Kind.DIRECTORY:
                    probed = True
                    readers.probes(request.pid, request.nodeid, name)
                    parts.append(self._name_only(listing, position, name, told))
                else:
                    parts.append(self._entry(position, name, told))
                    if told.attributes is not None and told.attributes.nlink == 1:
                        files[told.ino] = name
                del listing.ahead[position]
            position += 1
            readers.told(request.pid, len(parts) - count)
        if files:
            self._fs.attributes.bare.told(listing.directory, files)
        return bodies.reply(request.unique, *parts)

    def _name_only(self, listing: Listing, position: int, name: bytes, told: Told) -> bytes:
        node = told.node
        assert node is not None
        part = bodies.plain_entry(node.ino, position + 1, name, told.kind.type_bits)
        self._fs.forget(node.ino, 1)
        return part

    def _entry(self, position: int, name: bytes, told: Told) -> bytes:
        node, attributes = told.node, told.attributes
        if node is None or attributes is None:
            return bodies.plain_entry(told.ino, position + 1, name, told.kind.type_bits)
        live = node.object is not None and node.object.live
        return bodies.full_entry(
            node.ino, position + 1, name, attributes, BLOCK_BYTES,
            NAME_SECONDS, 0.0 if live else TIMEOUT_SECONDS,
        )  # fmt: skip
