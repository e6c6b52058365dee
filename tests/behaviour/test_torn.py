"""A file is torn when its writer was killed in it, whichever worker hears of it, and never else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.behaviour.workers import Workers
from tests.harness import wait_until
from tierfs.errors import JournalError
from tierfs.model import OpKind
from tierfs.namespace.callers import Caller
from tierfs.namespace.content import settling
from tierfs.namespace.content.ending import Ending
from tierfs.namespace.overlay.nodes import LocalObject, Node

End = Callable[[subprocess.Popen[bytes]], None]


class Processes:
    """Processes that wait to be ended; what has ended is not waited for, as in its last close."""

    def __init__(self) -> None:
        self._made: list[subprocess.Popen[bytes]] = []

    def begin(self) -> subprocess.Popen[bytes]:
        """One that lives."""
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self._made.append(process)
        return process

    def close(self) -> None:
        """Ends all."""
        for process in self._made:
            process.kill()
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()


def begin(workers: Workers, process: subprocess.Popen[bytes], content: bytes = b"half") -> int:
    """An open file of `process`."""
    workers.caller = Caller(0, 0, process.pid, 0o022)
    fd = workers.open("a", os.O_CREAT | os.O_RDWR)
    workers.pwrite(fd, content, 0)
    return fd


def flush(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """The kernel asks for a close of `process`."""
    workers.run(workers.fs.flush, workers._fds[fd].handle, process.pid)


def release(workers: Workers, fd: int) -> None:
    workers.run(workers.fs.files.release, workers._fds.pop(fd).handle)


def state(workers: Workers) -> bytes:
    return workers.getxattr("a", "user.tierfs.state")


def die_all(workers: Workers) -> None:
    """The mount dies with its worker."""
    workers._kept.kept.clear()
    workers.stop()
    workers.start()


def check(workers: Workers, *, torn: bool) -> None:
    """What has become of the file once it is closed for good; also in one more worker."""
    for _ in range(2):
        if torn:
            wait_until(lambda: state(workers) == b"torn", "it to be torn", timeout=5)
            workers.go()
            assert not (workers.shared / "a").exists()
        else:
            workers.settle()
            assert state(workers) == b"committed"
        workers.kill()


def never(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """The worker lives."""
    flush(workers, fd, process)
    release(workers, fd)


def before_the_close(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """It dies before it is asked."""
    workers.kill()
    never(workers, fd, process)


def before_the_row(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """What it remembers speaks of the close, the journal does not; it is asked again."""
    workers.die_at_row(OpKind.PUT)
    with suppress(JournalError):  # there is a row of it only if something was written
        flush(workers, fd, process)
    workers.kill()
    never(workers, fd, process)


def before_the_answer(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """The row is written; it is asked again."""
    flush(workers, fd, process)
    workers.kill()
    never(workers, fd, process)


def before_the_release(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """The kernel has its answer."""
    flush(workers, fd, process)
    workers.kill()
    release(workers, fd)


def thrice(workers: Workers, fd: int, process: subprocess.Popen[bytes]) -> None:
    """One worker after the other dies in it."""
    workers.kill()
    for _ in range(2):
        workers.die_at_row(OpKind.PUT)
        with suppress(JournalError):
            flush(workers, fd, process)
        workers.kill()
    before_the_answer(workers, fd, process)


DEATHS = [
    never, before_the_close, before_the_row, before_the_answer, before_the_release, thrice,
]  # fmt: skip
Death = Callable[[Workers, int, subprocess.Popen[bytes]], None]


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize(("ends", "torn"), [(kill, True), (end, False), (None, False)])
def test_a_file_is_torn_if_its_writer_was_killed_in_it(
    workers: Workers, processes: Processes, ends: End | None, dies: Death, *, torn: bool
) -> None:
    """Killed, ended by itself with the file open, or alive in close(2)."""
    writer = processes.begin()
    fd = begin(workers, writer)
    if ends is not None:
        ends(writer)
    dies(workers, fd, writer)
    check(workers, torn=torn)


@pytest.mark.parametrize("dies", DEATHS)
def test_what_was_closed_is_not_torn_by_the_end_of_its_writer(
    workers: Workers, processes: Processes, dies: Death
) -> None:
    """close(2) of one of two descriptors has returned when the writer is killed."""
    writer = processes.begin()
    fd = begin(workers, writer, b"whole")
    flush(workers, fd, writer)
    kill(writer)
    dies(workers, fd, writer)
    check(workers, torn=False)


@pytest.mark.parametrize("dies", [before_the_row, before_the_answer])
def test_a_writer_that_is_killed_while_its_close_waits_has_closed(
    workers: Workers, processes: Processes, dies: Death
) -> None:
    """The close is its own; the next worker hears of it when the writer is a dying one."""
    writer = processes.begin()
    fd = begin(workers, writer, b"whole")
    if dies is before_the_row:
        workers.die_at_row(OpKind.PUT)
        with pytest.raises(JournalError):
            flush(workers, fd, writer)
        workers.succeed()
    else:
        flush(workers, fd, writer)
        workers.kill()
    flush(workers, fd, writer)
    kill(writer)
    release(workers, fd)
    check(workers, torn=False)


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("second", [kill, end, None])
def test_each_descriptor_of_a_killed_writer_is_closed_by_the_kernel(
    workers: Workers, processes: Processes, second: End | None, dies: Death
) -> None:
    """His own two, or one of a child that lives on, is killed or ends."""
    writer, child = processes.begin(), processes.begin()
    fd = begin(workers, writer)
    kill(writer)
    flush(workers, fd, writer)
    if second is kill:
        flush(workers, fd, writer)
    else:
        reap(writer)
    if second is not None:
        second(child)
    dies(workers, fd, child)
    check(workers, torn=True)


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("first", [kill, end, None])
def test_the_close_of_a_child_says_nothing_of_its_parent(
    workers: Workers, processes: Processes, first: End | None, dies: Death
) -> None:
    """A child that was made in the middle of the file lets go of it; then the writer is killed."""
    writer, child = processes.begin(), processes.begin()
    fd = begin(workers, writer)
    if first is not None:
        first(child)
    flush(workers, fd, child)
    kill(writer)
    dies(workers, fd, writer)
    check(workers, torn=True)


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("child_first", [False, True])
def test_a_file_that_a_child_closes_too_is_whole(
    workers: Workers, processes: Processes, dies: Death, *, child_first: bool
) -> None:
    writer, child = processes.begin(), processes.begin()
    fd = begin(workers, writer, b"whole")
    flush(workers, fd, child if child_first else writer)
    dies(workers, fd, writer if child_first else child)
    check(workers, torn=False)


def test_what_a_child_has_closed_is_kept_when_the_mount_dies(
    workers: Workers, processes: Processes
) -> None:
    """Its close has returned (G6); the writer is not there any more to say anything else."""
    writer, child = processes.begin(), processes.begin()
    fd = begin(workers, writer, b"whole")
    flush(workers, fd, child)
    die_all(workers)
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("dies", DEATHS)
def test_a_torn_file_is_mended_by_the_next_writer(
    workers: Workers, processes: Processes, dies: Death
) -> None:
    """Nothing of the torn one is left to be decided, whichever worker sees the end of it."""
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    dies(workers, fd, first)
    fd = begin(workers, second, b"whole")
    dies(workers, fd, second)
    check(workers, torn=False)
    assert (workers.shared / "a").read_bytes() == b"whole"


def test_a_torn_file_is_mended_by_a_writer_that_outlives_the_mount(
    workers: Workers, processes: Processes
) -> None:
    """The mount dies between its close and the end of it."""
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    never(workers, fd, first)
    fd = begin(workers, second, b"whole")
    flush(workers, fd, second)
    die_all(workers)
    workers.settle()
    assert (workers.shared / "a").read_bytes() == b"whole"


def without_reflink(workers: Workers) -> None:
    """As on ext4."""
    workers.system.clone = lambda label, source, target: False  # type: ignore[method-assign]


@pytest.mark.parametrize(("dies", "reflink"), [(never, False), *((dies, True) for dies in DEATHS)])
def test_a_torn_file_that_is_only_opened_stays_torn(
    workers: Workers, processes: Processes, dies: Death, *, reflink: bool
) -> None:
    """Who opens it for writing and writes nothing has decided nothing."""
    if not reflink:
        without_reflink(workers)
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    never(workers, fd, first)
    workers.caller = Caller(0, 0, second.pid, 0o022)
    fd = workers.open("a", os.O_RDWR)
    dies(workers, fd, second)
    check(workers, torn=True)


@pytest.mark.parametrize("late", [True, False])
def test_a_torn_file_that_is_only_opened_stays_torn_though_it_seems_to_be_mapped(
    workers: Workers, processes: Processes, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """The worker dies before the row of its last close; the next one looks whether it is mapped,
    and does so late, on a busy machine, or finds that it is."""
    settle = Ending.settle

    def settle_mapped(self: Ending, node: Node, obj: LocalObject, *, mapped: bool) -> object:
        return settle(self, node, obj, mapped=True)

    if late:
        monkeypatch.setattr(settling, "MAPPED_SECONDS", -1.0)
    else:
        monkeypatch.setattr(Ending, "settle", settle_mapped)
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    never(workers, fd, first)
    workers.caller = Caller(0, 0, second.pid, 0o022)
    fd = workers.open("a", os.O_RDWR)
    flush(workers, fd, second)
    workers.run(workers.rooms.journal.written)
    workers.die_at_row(OpKind.PUT)
    with suppress(JournalError):
        release(workers, fd)
    workers.kill()
    check(workers, torn=True)


def test_a_torn_file_that_is_only_opened_stays_torn_though_no_row_says_so(
    workers: Workers, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies before the row of the open is written; the open file is remembered."""
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    never(workers, fd, first)
    workers.caller = Caller(0, 0, second.pid, 0o022)
    post = workers.rooms.journal.post
    with monkeypatch.context() as patched:
        patched.setattr(workers.rooms.journal, "post", lambda *changes, later=False: post())
        fd = workers.open("a", os.O_RDWR)
    workers.kill()
    never(workers, fd, second)
    check(workers, torn=True)


@pytest.mark.parametrize("dies", DEATHS)
def test_without_reflink_a_torn_file_is_mended_in_place(
    workers: Workers, processes: Processes, dies: Death
) -> None:
    without_reflink(workers)
    first, second = processes.begin(), processes.begin()
    fd = begin(workers, first)
    kill(first)
    never(workers, fd, first)
    fd = begin(workers, second, b"whole")
    dies(workers, fd, second)
    check(workers, torn=False)
    assert (workers.shared / "a").read_bytes() == b"whole"


def rewrite(workers: Workers, process: subprocess.Popen[bytes]) -> int:
    """An open file of `process`, which was there before."""
    workers.caller = Caller(0, 0, process.pid, 0o022)
    return workers.open("a", os.O_RDWR)


@pytest.mark.parametrize("dies", DEATHS)
def test_what_a_killed_process_only_opened_is_whole(
    workers: Workers, processes: Processes, dies: Death
) -> None:
    workers.write_file("a", b"whole")
    workers.settle()
    writer = processes.begin()
    fd = rewrite(workers, writer)
    kill(writer)
    dies(workers, fd, writer)
    check(workers, torn=False)
    assert (workers.shared / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("order", ["opened before", "opened after", "opened behind"])
@pytest.mark.parametrize("written", [False, True])
def test_what_one_has_closed_is_whole_though_another_that_has_it_open_is_killed(
    workers: Workers, processes: Processes, dies: Death, order: str, *, written: bool
) -> None:
    """Before it is made the other's file, after it was opened, after it was written; G6.

    It is torn if the other has written to it since."""
    first, second = processes.begin(), processes.begin()
    if order == "opened before":
        workers.write_file("a", b"old")
        workers.settle()
        other = rewrite(workers, second)
        fd = rewrite(workers, first)
        workers.pwrite(fd, b"whole", 0)
    elif order == "opened after":
        fd = begin(workers, first, b"")
        other = rewrite(workers, second)
        workers.pwrite(fd, b"whole", 0)
    else:
        fd = begin(workers, first, b"whole")
        other = rewrite(workers, second)
    never(workers, fd, first)
    if written:
        workers.pwrite(other, b"half", 5)
    kill(second)
    dies(workers, other, second)
    if written:
        for _ in range(2):
            assert state(workers) == b"torn"
            workers.kill()
        return
    check(workers, torn=False)
    assert (workers.shared / "a").read_bytes() == b"whole"


def test_a_truncate_of_one_who_is_killed_in_it_is_over_as_a_whole(
    workers: Workers, processes: Processes
) -> None:
    """truncate(2) by a path: nothing of it is left to be written."""
    writer = processes.begin()
    never(workers, begin(workers, writer, b"whole"), writer)
    kill(writer)
    workers.truncate("a", 2)
    check(workers, torn=False)
    assert (workers.shared / "a").read_bytes() == b"wh"
