"""Between the kernel and pyfuse3: every message passes here, few are looked at.

pyfuse3 knows neither passthrough nor some requests. So it gets one end of a socket pair instead of
/dev/fuse (KERNEL_PATH.md, "The filter"). Of its replies those to INIT, OPEN and CREATE are changed;
requests that it has no handler for are answered here.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import pyfuse3
import trio

from tierfs.kernel import wire
from tierfs.kernel.backings import Backings
from tierfs.kernel.boundary import refusal
from tierfs.kernel.device import Device
from tierfs.kernel.extras import Extras
from tierfs.kernel.hot import Hot
from tierfs.kernel.leading import until_it_waits
from tierfs.kernel.once import ONCE, Once
from tierfs.kernel.resent import INIT_UNIQUE, NAMING, RESENT, Requests, name_in
from tierfs.kernel.waiting import NextRequest
from tierfs.kernel.wire import InitFlag, Opcode, Request
from tierfs.namespace.filesystem import FileSystem
from tierfs.osio.processes import is_member
from tierfs.threads import patience

log = logging.getLogger(__name__)

MESSAGE_BYTES = (1 << 20) + (64 << 10)
"""max_write of libfuse (1 MiB) and more than any header."""

SOCKET_BYTES = 8 << 20
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
"""asm-generic/socket.h: beyond the system's limits; needs CAP_NET_ADMIN."""

LEND_BYTES = 32 << 10
SPARE_BUFFERS = 8
IDLE_TASKS = 16

BURST = 32
"""Messages moved without letting others run,"""

LONG_BURST = 128
"""and while nobody waits for anything but the next answer."""

PATIENCE_SECONDS = 0.001
"""How long the step that reads a request may wait for threads before it goes on in the loop."""

SPIN_SECONDS = 0.004
"""How long the loop may have to wait for a burst: a round of it takes as long as an answer."""

ALWAYS = (
    InitFlag.DONT_MASK | InitFlag.HANDLE_KILLPRIV_V2 | InitFlag.HAS_RESEND
    | InitFlag.DIRECT_IO_ALLOW_MMAP | InitFlag.SETXATTR_EXT
)  # fmt: skip
STACK_DEPTH = 1

_REMEMBERED = frozenset({Opcode.OPEN, Opcode.CREATE})
_ASKING = frozenset({Opcode.GETATTR, Opcode.GETXATTR})
_FORGETS = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET})
_MAY_KILL = frozenset({Opcode.WRITE, Opcode.SETATTR, Opcode.OPEN, Opcode.SETXATTR})


class Filter:
    """The two pumps of one mount.

    `on_ready` is called when the kernel knows what it may use: before any other request. `init`
    is the INIT request that the kernel made of an earlier worker of this mount, b"" if that one
    died before it wrote it down, None if there was no earlier worker. pyfuse3 gets it, and the
    kernel then asks again what was not answered. `agreed` is set when INIT has been answered.
    """

    def __init__(
        self, device: Device, fs: FileSystem, backings: Backings, on_ready: Callable[[], None],
        requests: Requests, *, passthrough: bool, init: bytes | None = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._fs = fs
        self._backings = backings
        self._on_ready = on_ready
        self._passthrough = passthrough
        self._extras = Extras(fs)
        self._hot = Hot(fs)
        self._named = requests
        self._once = Once(fs, requests)
        self._init = init
        self.agreed = trio.Event()
        self._agreement = b""
        self._draining = self._disconnected = False
        self._gone = trio.Event()
        self._spin_until = 0.0
        self._next = NextRequest()
        self._buffer = bytearray(MESSAGE_BYTES)
        self._view = memoryview(self._buffer)
        self._asked = fs.watchdog
        self._quiet = trio.lowlevel.ParkingLot()
        self._awaited: dict[int, int] = {}
        self._spare: list[bytearray] = []
        self._lent = False
        self._idle: list[trio.lowlevel.Task] = []
        self._behind: deque[tuple[Request, bytes]] = deque()
        self._add = ALWAYS
        self._ours, theirs = _pair()
        self._theirs = theirs.detach()

    @property
    def path(self) -> str:
        """What pyfuse3 mounts: it takes a descriptor in this spelling as a device."""
        return f"/dev/fd/{self._theirs}"

    async def run(self) -> None:
        """Moves messages until the mount is gone; then pyfuse3's loop ends too."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._replies)
                if self._init is not None:
                    await self._take_over(self._init)
                nursery.start_soon(self._serve, nursery)
                await self._gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.terminate()

    async def drain(self) -> None:
        """Takes no more requests; returns when all that were taken have their answer."""
        self._draining = True
        trio.lowlevel.notify_closing(self._device.fd)
        while not self._asked.idle:
            await self._quiet.park()

    def close(self) -> None:
        """Closes our end; pyfuse3 closes its own."""
        self._ours.close()

    async def _take_over(self, init: bytes) -> None:
        """Brings pyfuse3 to where the kernel is, then asks for what nobody answered."""
        if init:
            message = wire.with_unique(init, INIT_UNIQUE)
            self._negotiate(memoryview(message))
            await self._forward(message)
            await self.agreed.wait()
        self._device.send(wire.RESEND)

    # -- kernel to pyfuse3 -----------------------------------------------------------------------

    async def _serve(self, nursery: trio.Nursery) -> None:
        """One of the tasks that take turns: it reads requests until one of them has to wait."""
        while await self._read(nursery) and len(self._idle) < IDLE_TASKS:
            task = trio.lowlevel.current_task()
            self._idle.append(task)
            await trio.lowlevel.wait_task_rescheduled(partial(self._leave, task))

    def _leave(self, task: trio.lowlevel.Task, _: object) -> trio.lowlevel.Abort:
        self._idle.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    def _pass_turn(self, nursery: trio.Nursery) -> None:
        patience.end()
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop())
        else:
            nursery.start_soon(self._serve, nursery)

    async def _read(self, nursery: trio.Nursery) -> bool:
        """Serves what comes. True: it is another task's turn now. False: nothing comes any more."""
        while True:
            while self._behind:
                request, message = self._behind.popleft()
                if await self._carry_out(nursery, request, message):
                    return True
            if self._disconnected:
                self._gone.set()
            if self._disconnected or self._draining:
                return False
            try:
                await trio.lowlevel.wait_readable(self._device.fd)
            except trio.ClosedResourceError:
                continue
            self._spin_until = time.monotonic() + SPIN_SECONDS
            for number in range(LONG_BURST):
                if number and self._is_alone():
                    self._next.wait(self._device.fd)
                elif number >= BURST:
                    break
                try:
                    size = self._device.receive(self._buffer)
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in (errno.EINTR, errno.ENOENT):
                        continue  # the request was taken back before it was read
                    if error.errno in (errno.ENODEV, errno.ECONNABORTED):
                        self._disconnected = True
                        break
                    raise
                if await self._request(nursery, self._view[:size]):
                    return True
                if self._lent:
                    self._lent = False
                    self._buffer = self._spare.pop() if self._spare else bytearray(MESSAGE_BYTES)
                    self._view = memoryview(self._buffer)

    def _is_alone(self) -> bool:
        """Whether nobody waits for an answer, and the loop can wait."""
        return len(self._asked) == len(self._behind) and time.monotonic() < self._spin_until

    async def _request(self, nursery: trio.Nursery, message: memoryview) -> bool:
        """Answers a request, or sees to it that it is; whether it is another task's turn now."""
        request = Request.of(message)
        opcode = request.opcode
        if opcode in _FORGETS:
            self._hot.forget(request, message)
            if opcode == Opcode.BATCH_FORGET:  # there may be a million
                await trio.lowlevel.checkpoint()
            return False
        if opcode == Opcode.INTERRUPT:
            return False  # nothing here can be interrupted, and it takes no answer
        if opcode in _ASKING and (reply := self._hot.at_once(request, bytes(message))) is not None:
            self._send(reply)  # of no node or open file that the kernel did not know
            return False
        self._asked.begun(
            request.unique, wire.operation(opcode), request.nodeid, name_in(message, opcode)
        )
        kills = opcode in _MAY_KILL and wire.kills_privileges(message, opcode)
        if opcode in self._extras.opcodes and not kills:
            nursery.start_soon(self._answer, request, self._keep(message))
        elif opcode == Opcode.INIT:
            await self._begin(request, message)
        elif opcode in NAMING and (instead := self._named.came(request, message)) is not None:
            if len(instead) == wire.REPLY_HEADER.size:
                self._reply(instead)
            else:
                await self._forward(instead)
        elif opcode == Opcode.OPEN and request.unique & RESENT and self._opened_before(request):
            pass
        elif opcode in self._hot.opcodes and not kills:
            return await self._answer_hot(nursery, request, bytes(message))
        else:
            if opcode in _REMEMBERED:
                self._awaited[request.unique] = opcode
            if opcode == Opcode.SETXATTR:
                message = wire.short_setxattr(message)
            if kills:
                nursery.start_soon(self._kill_privileges, request, bytes(message))
            elif opcode in ONCE and self._once.concerns(message, opcode):
                nursery.start_soon(self._change_once, request, bytes(message))
            else:
                await self._forward(message)
        return False

    async def _answer_hot(self, nursery: trio.Nursery, request: Request, message: bytes) -> bool:
        """Whether that took so long that it is another task's turn now."""
        if request.opcode == Opcode.RELEASE:  # behind what somebody waits for
            self._hot.leaves(message)
            self._behind.append((request, message))
            return False
        return await self._carry_out(nursery, request, message)

    async def _carry_out(self, nursery: trio.Nursery, request: Request, message: bytes) -> bool:
        naming = self._hot.naming(request, message, self._named)
        patience.begin(PATIENCE_SECONDS)
        answering = self._hot.answer(request, message, naming)
        passed: list[trio.Nursery] = []

        def waits() -> None:
            passed.append(nursery)
            self._pass_turn(nursery)

        reply = await until_it_waits(answering, waits)
        patience.end()
        self._reply(reply)
        return bool(passed)

    async def _begin(self, request: Request, message: memoryview) -> None:
        if self._agreement:
            # an earlier worker wrote it down and did not answer it; pyfuse3 takes it once
            self._agree(self._agreement, request.unique)
            return
        self._fs.core.memory.init(bytes(message))
        self._negotiate(message)
        self._awaited[request.unique] = Opcode.INIT
        await self._forward(message)

    def _opened_before(self, request: Request) -> bool:
        """Gives once more the open file with which an earlier worker answered, if there is one."""
        handle = self._fs.files.answer(request.unique & ~RESENT)
        if handle is not None:
            self._reply(wire.open_reply(request.unique, handle.number, handle.backing))
        return handle is not None

    async def _forward(self, message: memoryview | bytes) -> None:
        while True:
            try:
                self._ours.send(message)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._ours)
            else:
                return

    def _negotiate(self, message: memoryview) -> None:
        offered = wire.offered(message)
        self._add = ALWAYS & offered
        self._hot.may_write_directly = (
            bool(offered & InitFlag.DIRECT_IO_ALLOW_MMAP)
            and wire.offered_minor(message) >= wire.FIRST_MINOR_WITH_RIGHT_PAGES
        )
        if not self._passthrough:
            self._backings.disable("turned off (--no-passthrough)")
        elif not offered & InitFlag.PASSTHROUGH:
            self._backings.disable("the kernel does not offer it (it takes Linux 6.9)")
        else:
            self._add |= InitFlag.PASSTHROUGH

    def _keep(self, message: memoryview) -> bytes | memoryview:
        """What stays as it is when the next request is read: large ones take their buffer along."""
        if len(message) < LEND_BYTES:
            return bytes(message)
        self._lent = True
        return message

    async def _answer(self, request: Request, message: bytes | memoryview) -> None:
        reply = await self._extras.answer(request, message)
        self._reply(reply)
        self._extras.sent(reply)
        lent = message.obj if isinstance(message, memoryview) else None
        if isinstance(lent, bytearray) and len(self._spare) < SPARE_BUFFERS:
            self._spare.append(lent)

    async def _change_once(self, request: Request, message: bytes) -> None:
        message = await self._once.begin(request, message)
        if len(message) == wire.REPLY_HEADER.size:
            self._reply(message)
        else:
            await self._forward(message)

    async def _kill_privileges(self, request: Request, message: bytes) -> None:
        """Setuid, setgid and capabilities go before the request is carried out."""
        attributes = self._fs.attributes
        try:
            node = self._fs.tree.node(request.nodeid)
            if request.opcode == Opcode.SETXATTR:
                await attributes.kill_setgid(node)
            else:
                await attributes.kill_privileges(
                    node, lambda gid: is_member(request.pid, gid, request.gid)
                )
        except Exception as error:
            self._awaited.pop(request.unique, None)
            self._reply(refusal(request, error))
        else:
            await self._forward(message)

    # -- pyfuse3 to kernel -----------------------------------------------------------------------

    async def _replies(self) -> None:
        buffer = bytearray(MESSAGE_BYTES)
        view = memoryview(buffer)
        while True:
            await trio.lowlevel.wait_readable(self._ours)
            for _ in range(BURST):
                try:
                    size = self._ours.recv_into(buffer)
                except BlockingIOError:
                    break
                if size == 0:
                    return
                self._pass_on(view[:size])

    def _pass_on(self, message: memoryview) -> None:
        _, error, unique = wire.REPLY_HEADER.unpack_from(message)
        opcode = self._awaited.pop(unique, None) if unique else None
        if unique == INIT_UNIQUE:
            self._agree(message)
        elif opcode is None or error:
            self._reply(message)
        elif opcode == Opcode.INIT:
            self._agree(message, unique)
        else:
            handle = self._fs.files.handles.get(wire.opened_handle(message, opcode))
            if handle is not None and handle.backing:
                wire.set_backing(message, opcode, handle.backing)
            if handle is not None:
                self._fs.core.memory.opened(handle, unique & ~RESENT)
            self._reply(message)

    def _agree(self, message: memoryview | bytes, unique: int = 0) -> None:
        """pyfuse3 has answered INIT; the kernel is told, as request `unique`, unless it was."""
        if not self._agreement:
            self._agreement = wire.with_init_flags(
                bytes(message), self._add, max_stack_depth=STACK_DEPTH
            )
        if unique:
            self._reply(wire.reply_with_unique(self._agreement, unique))
        if self._add & InitFlag.PASSTHROUGH:
            self._on_ready()
        self.agreed.set()

    def _reply(self, message: memoryview | bytes) -> None:
        try:
            self._fs.core.memory.flush()
        except OSError as error:
            log.error("what the kernel is told cannot be written down: %s", error)
        self._send(message)
        unique = wire.REPLY_HEADER.unpack_from(message)[2]
        self._named.answered(unique)
        self._asked.ended(unique)
        if self._asked.idle:
            self._quiet.unpark_all()

    def _send(self, message: memoryview | bytes) -> None:
        try:
            self._device.send(message)
        except OSError as error:
            # ENOENT: the caller was killed meanwhile; ENODEV: the mount is gone
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                _, code, unique = wire.REPLY_HEADER.unpack_from(message)
                log.error("reply %d to request %d refused: %s", code, unique, error)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            with contextlib.suppress(PermissionError):
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    return ours, theirs
