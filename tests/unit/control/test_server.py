"""The socket with both ends real: who calls, events, errors, clients that go away."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.harness.waiting import wait_until
from tierfs.control import access, client, discovery, requests
from tierfs.control.access import may_list, may_reach, only_visible
from tierfs.control.discovery import NoMount
from tierfs.control.protocol import LINE_LIMIT, ProtocolError
from tierfs.control.results import Decided, ListResult, Problem, Progress
from tierfs.control.server import ControlServer, Handler, Peer, Send
from tierfs.errors import TierfsError

MOUNT = "/mnt/of-the-test"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(discovery, "RUNTIME", tmp_path / "run")
    return tmp_path / "run"


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[ControlServer]:
    server = ControlServer(discovery.session_directory(MOUNT), handlers)
    server.listen()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            yield server
            nursery.cancel_scope.cancel()
    finally:
        await server.aclose()


async def asked(request: requests.Request, on_event: Callable[[Any], None] | None = None) -> Any:
    with trio.fail_after(20):
        return await trio.to_thread.run_sync(
            partial(client.call, MOUNT, request, on_event), abandon_on_cancel=True
        )


async def test_result_and_exit_code() -> None:
    async def accept(request: requests.Accept, peer: Peer, send: Send) -> tuple[Decided, int]:
        return Decided(path=request.path, state="pending"), 3

    async with serving(accept=accept):
        answer = await asked(requests.Accept(path="/m/\udcff"))
    assert answer == ({"path": "/m/\udcff", "state": "pending"}, 3)


async def test_events_come_in_order_before_the_result() -> None:
    async def ls(request: requests.List, peer: Peer, send: Send) -> tuple[ListResult, int]:
        for done in range(3):
            await send(Progress(total_files=3, done_files=done, total_bytes=9, done_bytes=done))
        return ListResult(path=request.path, entries=()), 0

    events: list[dict[str, Any]] = []
    async with serving(ls=ls):
        await asked(requests.List(path="/"), events.append)
    assert [event["done_files"] for event in events] == [0, 1, 2]
    assert {event["event"] for event in events} == {"progress"}


async def test_the_kernel_says_who_calls() -> None:
    seen: list[Peer] = []

    async def status(request: requests.Status, peer: Peer, send: Send) -> tuple[Decided, int]:
        seen.append(peer)
        return Decided(path="", state=""), 0

    async with serving(status=status):
        await asked(requests.Status())
    assert seen == [Peer(os.getpid(), os.geteuid(), os.getegid(), tuple(os.getgroups()))]


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (TierfsError("no such file here"), "no such file here", 1),
        (FileNotFoundError(2, "No such file or directory", "/m/x"), "/m/x: No such file", 1),
        (FileNotFoundError(2, "No such file or directory", b"/m/\xff"), "/m/\udcff: No", 1),
        (OSError(5, "Input/output error", "."), "/m/x: Input/output error", 1),
        (OSError(5, "Input/output error"), "/m/x: Input/output error", 1),
        (ZeroDivisionError(), "ls: internal error; see the log", 1),
    ],
)
async def test_errors_of_a_handler(
    error: Exception, said: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def ls(request: requests.List, peer: Peer, send: Send) -> tuple[ListResult, int]:
        raise error

    async with serving(ls=ls):
        with pytest.raises(TierfsError) as caught:
            await asked(requests.List(path="/m/x"))
        assert said in str(caught.value)
        assert caught.value.exit_code == code
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert bool(logged) == isinstance(error, ZeroDivisionError)


async def raw(data: bytes) -> bytes:
    """What the server answers to `data` and the end of the stream."""
    path = str(discovery.session_directory(MOUNT) / "control")
    with trio.fail_after(20):
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(data)
            received = b""
            while piece := await stream.receive_some():
                received += piece
            return received


@pytest.mark.parametrize("line", [b"rubbish\n", b'{"command":"no"}\n', b'{"command":"ls"}\n'])
async def test_rubbish_is_answered(line: bytes) -> None:
    async with serving():
        assert b'"error":"control socket: ' in await raw(line)


async def test_endless_request_is_cut() -> None:
    async with serving():
        with pytest.raises(trio.BrokenResourceError):
            await raw(b"x" * (3 * LINE_LIMIT))
        assert b"error" in await raw(b"still alive\n")


async def test_a_caller_that_does_not_say_what_it_wants_is_sent_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tierfs.control.server._REQUEST_SECONDS", 0.05)
    async with serving():
        address = str(discovery.session_directory(MOUNT) / discovery.SOCKET_NAME)
        async with await trio.open_unix_socket(address) as silent:
            await silent.send_all(b'{"command": ')
            with trio.fail_after(20):
                assert await silent.receive_some() == b""


async def test_client_that_goes_takes_its_request_back() -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def flush(request: requests.Flush, peer: Peer, send: Send) -> tuple[Decided, int]:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving(flush=flush):
        path = str(discovery.session_directory(MOUNT) / "control")
        stream = await trio.open_unix_socket(path)
        await stream.send_all(b'{"command":"flush","wait":true}\n')
        with trio.fail_after(20):
            await started.wait()
            await stream.aclose()
            await cancelled.wait()


async def test_idle_waits_for_answers() -> None:
    started, go = trio.Event(), trio.Event()
    order = []

    async def accept(request: requests.Accept, peer: Peer, send: Send) -> tuple[Decided, int]:
        started.set()
        await go.wait()
        order.append("answered")
        return Decided(path=request.path, state="pending"), 0

    async with serving(accept=accept) as server, trio.open_nursery() as nursery:
        await server.idle()

        async def client_() -> None:
            await asked(requests.Accept(path="/x"))

        async def shutdown() -> None:
            await server.idle()
            order.append("idle")

        nursery.start_soon(client_)
        await started.wait()
        nursery.start_soon(shutdown)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert order == ["answered", "idle"]


async def test_daemon_that_dies_is_told_apart_from_an_answer() -> None:
    async with serving() as server:
        pass
    server.listen()
    # Accepts and closes without a word, as the kernel does for a process that is killed.
    async with trio.open_nursery() as nursery:

        async def die() -> None:
            assert server._listener is not None
            await (await server._listener.accept()).aclose()

        nursery.start_soon(die)
        with pytest.raises(ProtocolError, match="ended before it answered"):
            await asked(requests.Status())
    await server.aclose()


async def test_silence_is_no_answer() -> None:
    async def status(request: requests.Status, peer: Peer, send: Send) -> tuple[Decided, int]:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(status=status):
        with pytest.raises(NoMount, match="does not answer"):
            await trio.to_thread.run_sync(
                partial(client.call, MOUNT, requests.Status(), silence=0.05)
            )


async def test_nobody_there() -> None:
    with pytest.raises(NoMount, match="does not answer"):
        await asked(requests.Status())


async def test_socket_is_for_everyone_and_replaces_a_stale_one(runtime: Path) -> None:
    directory = discovery.session_directory(MOUNT)
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "control"))
    async with serving():
        assert (directory / "control").stat().st_mode & 0o777 == 0o666
        assert b"error" in await raw(b"x\n")
    assert list(directory.iterdir()) == []


async def test_longest_mount_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket's path is longer than the 107 bytes of an address."""
    monkeypatch.setattr(sys.modules[__name__], "MOUNT", "/" + "m" * 150)

    async def accept(request: requests.Accept, peer: Peer, send: Send) -> tuple[Decided, int]:
        return Decided(path=request.path, state="pending"), 0

    async with serving(accept=accept):
        assert (await asked(requests.Accept(path="/x")))[1] == 0


def identities_of_threads() -> set[tuple[str, ...]]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread of another test has just ended
        found.add(tuple(line for line in lines if line.startswith(("Uid", "Gid", "Groups"))))
    return found


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes on other users' credentials")


@needs_root
class TestAccess:
    """Who may learn which names; asked with real directories and the kernel's own checks."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(0o755)
        for name, mode, owner, group in (
            ("open", 0o755, 0, 0),
            ("mine", 0o700, 1000, 1000),
            ("team", 0o750, 0, 2000),
            ("list-only", 0o744, 0, 0),
            ("enter-only", 0o711, 0, 0),
            ("acl", 0o700, 0, 0),
        ):
            folder = tmp_path / name
            folder.mkdir()
            folder.chmod(mode)
            os.chown(folder, owner, group)
        (tmp_path / "mine" / "below").mkdir()
        (tmp_path / "mine" / "below").chmod(0o777)
        return tmp_path

    async def names(self, tree: Path, peer: Peer) -> set[str]:
        folders = ["open", "mine", "team", "list-only", "enter-only", "mine/below"]
        items = [Problem(path=str(tree / name / "file"), reason="") for name in folders]
        shown, hidden = await only_visible(items, peer, trio.CapacityLimiter(1))
        assert len(shown) + hidden == len(items)
        return {str(Path(item.path).parent.relative_to(tree)) for item in shown}

    async def test_root_sees_all(self, tree: Path) -> None:
        assert len(await self.names(tree, Peer(1, 0, 0))) == 6

    async def test_owner(self, tree: Path) -> None:
        assert await self.names(tree, Peer(1, 1000, 1000)) == {"open", "mine", "mine/below"}

    async def test_supplementary_group(self, tree: Path) -> None:
        assert await self.names(tree, Peer(1, 1001, 1001, (5, 2000))) == {"open", "team"}

    async def test_primary_group(self, tree: Path) -> None:
        assert await self.names(tree, Peer(1, 1001, 2000)) == {"open", "team"}

    async def test_others(self, tree: Path) -> None:
        assert await self.names(tree, Peer(1, 65534, 65534)) == {"open"}

    async def test_acl(self, tree: Path) -> None:
        target = tree / "acl"
        await trio.run_process(["setfacl", "-m", "u:1000:rx", target])
        assert await may_list(str(target), Peer(1, 1000, 1000), trio.CapacityLimiter(1))
        assert not await may_list(str(target), Peer(1, 1001, 1001), trio.CapacityLimiter(1))

    async def test_reach(self, tree: Path) -> None:
        """A name that is known already needs no listing; one behind a closed door stays unknown."""
        for name, expected in (
            ("open/no", True), ("enter-only/no", True), ("list-only/no", False),
            ("mine/below", False), ("mine/no", False),
        ):  # fmt: skip
            found = await may_reach(str(tree / name), Peer(1, 1001, 1001), trio.CapacityLimiter(1))
            assert found is expected, name

    def test_this_process_stays_what_it_is(self, tree: Path) -> None:
        assert access._listable({str(tree / "mine")}, Peer(1, 65534, 65534)) == set()
        # The kernel's end of a thread comes a moment after join().
        wait_until(lambda: len(identities_of_threads()) == 1, "the thread to be gone")
        os.listdir(tree / "mine")

    async def test_nobody_gets_an_invalid_identity(self, tree: Path) -> None:
        with pytest.raises(PermissionError, match="cannot act as user"):
            await self.names(tree, Peer(1, 0xFFFFFFFF, 0xFFFFFFFF))
