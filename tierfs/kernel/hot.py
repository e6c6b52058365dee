"""Requests that come for every file, answered past pyfuse3.

Each would go through two socket messages, three rounds of the loop and pyfuse3's own thread of
tasks, several times what the answer itself costs (docs/decisions/0015-requests-past-pyfuse3.md).
"""

from __future__ import annotations

import errno
import logging
import os

from tierfs.kernel import bodies, wire
from tierfs.kernel.answers import BLOCK_BYTES, Answers, Entry
from tierfs.kernel.boundary import refusal
from tierfs.kernel.directories import Directories
from tierfs.kernel.resent import RESENT, Requests
from tierfs.kernel.wire import Opcode, Request
from tierfs.model import Kind
from tierfs.namespace.callers import Caller
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.outage.asking import on_behalf_of
from tierfs.namespace.overlay.nodes import Handle
from tierfs.namespace.requests import Request as Naming
from tierfs.namespace.requests import carrying_out
from tierfs.osio.processes import process_of

log = logging.getLogger(__name__)


class Hot:
    """Answers them by the namespace, with the same error boundary as the handlers of pyfuse3.

    Attributes:
        may_write_directly: the kernel keeps its page cache of a file right when that is written
            past it.
    """

    opcodes = frozenset(
        {
            Opcode.LOOKUP, Opcode.GETATTR, Opcode.GETXATTR, Opcode.CREATE, Opcode.OPEN,
            Opcode.FLUSH, Opcode.RELEASE, Opcode.OPENDIR, Opcode.READDIRPLUS, Opcode.RELEASEDIR,
            Opcode.UNLINK, Opcode.RMDIR, Opcode.TMPFILE,
        }
    )  # fmt: skip

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._answers = Answers(fs)
        self._directories = Directories(fs)
        self.may_write_directly = False

    def forget(self, request: Request, message: memoryview) -> None:
        """FORGET and BATCH_FORGET, which nobody answers."""
        for ino, count in bodies.forgotten(request, message):
            try:
                self._fs.forget(ino, count)
            except Exception:
                log.exception("forget failed")

    def at_once(self, request: Request, message: bytes) -> bytes | None:
        """The reply, if nothing has to be waited for."""
        node = self._fs.tree.nodes.get(request.nodeid)
        if node is None:
            return None
        if request.opcode == Opcode.GETATTR:
            found = self._fs.lookup.directory_at_hand(node)
            return None if found is None else _getattr(request, Entry.of(node, found))
        if request.opcode == Opcode.GETXATTR:
            name = bodies.getxattr(message).name
            if name not in self._fs.virtual.names and self._fs.attributes.surely_without(
                node, name
            ):
                return wire.error_reply(request.unique, errno.ENODATA)
        return None

    def naming(self, request: Request, message: bytes, requests: Requests) -> Naming | None:
        """The number under which a name is made or removed. In the order of the messages."""
        if request.opcode == Opcode.CREATE:
            return requests.take(Opcode.CREATE, request.nodeid, bodies.create(message).name)
        if request.opcode in (Opcode.UNLINK, Opcode.RMDIR):
            opcode = Opcode(request.opcode)
            return requests.take(opcode, request.nodeid, bodies.name_at(message))
        return None

    def leaves(self, message: bytes) -> None:
        """A RELEASE has come, which nobody waits for: no OPEN read after it may overtake it."""
        self._fs.files.leave(bodies.handle_of(message))

    async def answer(self, request: Request, message: bytes, naming: Naming | None) -> bytes:
        """The reply to `message`, an error included; `naming` is its number if it makes a name."""
        try:
            with on_behalf_of(request.pid):
                return await self._carry_out(request, message, naming)
        except Exception as error:
            return refusal(request, error)

    async def _carry_out(self, request: Request, message: bytes, naming: Naming | None) -> bytes:
        answers, files, unique = self._answers, self._fs.files, request.unique
        match request.opcode:
            case Opcode.LOOKUP:
                name = bodies.name_at(message)
                found = await answers.lookup(request.nodeid, name, request.pid)
                self._directories.readers.looks_up(
                    request.pid, request.nodeid, name,
                    is_directory=found.node.kind is Kind.DIRECTORY,
                )  # fmt: skip
                return bodies.reply(unique, _entry(found))
            case Opcode.GETATTR:
                return _getattr(request, await answers.getattr(request.nodeid))
            case Opcode.GETXATTR:
                return await self._getxattr(request, message)
            case Opcode.CREATE:
                return await self._create(request, message, naming)
            case Opcode.TMPFILE:
                return await self._create_nameless(request, message)
            case Opcode.OPEN:
                flags = bodies.open_flags(message)
                handle = await answers.open(request.nodeid, flags, opener(request, 0))
                self._fs.core.memory.opened(handle, unique & ~RESENT)
                return bodies.reply(unique, self._opened(handle, flags))
            case Opcode.FLUSH:
                await self._fs.flush(files.handle(bodies.handle_of(message)), request.pid)
            case Opcode.RELEASE:
                await files.release(files.handle(bodies.handle_of(message)))
            case Opcode.UNLINK:
                with carrying_out(naming):
                    state = self._fs.tree.directory(request.nodeid)
                    await self._fs.unlink(state, bodies.name_at(message), request.pid)
            case Opcode.RMDIR:
                with carrying_out(naming):
                    state = self._fs.tree.directory(request.nodeid)
                    await self._fs.names.rmdir(state, bodies.name_at(message))
            case Opcode.OPENDIR:
                return self._directories.open(request)
            case Opcode.READDIRPLUS:
                return await self._directories.read(request, message)
            case Opcode.RELEASEDIR:
                self._directories.release(message)
            case _:
                return wire.error_reply(unique, errno.ENOSYS)
        return wire.error_reply(unique, 0)

    async def _create(self, request: Request, message: bytes, naming: Naming | None) -> bytes:
        asked = bodies.create(message)
        handle, entry = await self._answers.create(
            naming,
            request.nodeid,
            asked.name,
            asked.mode,
            asked.flags,
            opener(request, asked.umask),
        )
        return self._created(request, handle, entry, asked.flags)

    async def _create_nameless(self, request: Request, message: bytes) -> bytes:
        """pyfuse3 has no handler for O_TMPFILE. A file that an earlier worker made is given again;
        one that it did not write down nobody has."""
        asked = bodies.create(message)
        handle, entry = await self._answers.create_nameless(
            request.unique & ~RESENT, request.nodeid, asked.mode, opener(request, asked.umask)
        )
        return self._created(request, handle, entry, asked.flags)

    def _created(self, request: Request, handle: Handle, entry: Entry, flags: int) -> bytes:
        self._fs.core.memory.opened(handle, request.unique & ~RESENT)
        return bodies.reply(request.unique, _entry(entry), self._opened(handle, flags))

    def _opened(self, handle: Handle, flags: int) -> bytes:
        # What can only be written cannot be mapped: there the page cache is one copy more. The
        # file of the local tier has one of its own.
        return bodies.open_out(
            handle.number, handle.backing, keep_cache=handle.keep_cache, flush=handle.writable,
            direct=self.may_write_directly and flags & os.O_ACCMODE == os.O_WRONLY,
        )  # fmt: skip

    async def _getxattr(self, request: Request, message: bytes) -> bytes:
        asked = bodies.getxattr(message)
        value = await self._answers.getxattr(request.nodeid, asked.name)
        if not asked.size:
            return wire.count_reply(request.unique, len(value))
        if len(value) > asked.size:
            return wire.error_reply(request.unique, errno.ERANGE)
        return bodies.reply(request.unique, value)


def opener(request: Request, umask: int) -> Caller:
    """Who opens a file: its process is asked for at the close (a killed writer)."""
    return Caller(request.uid, request.gid, process_of(request.pid), umask)


def _getattr(request: Request, entry: Entry) -> bytes:
    return bodies.reply(request.unique, bodies.attr_out(entry.attr_seconds, _attributes(entry)))


def _entry(entry: Entry) -> bytes:
    ino, attributes = entry.node.ino, _attributes(entry)
    return bodies.entry_out(ino, entry.seconds, entry.attr_seconds, attributes)


def _attributes(entry: Entry) -> bytes:
    return bodies.attributes(entry.node.ino, entry.attributes, BLOCK_BYTES)
