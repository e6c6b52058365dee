"""G6: a daemon that is killed, hangs or is replaced while applications work in its mount."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LoopDevice, Node, compare, frozen, hangs, wait_until
from tests.harness.node import CHECKOUT
from tests.harness.swarm import Swarm

ENDED = [r"worker \d+ ended \(killed by SIGKILL\)"]


@pytest.fixture
def make_node(make_node: Callable[..., Node]) -> Callable[..., Node]:
    """Nodes with a supervisor, whatever the run is about."""

    def make(*words: Any, **options: Any) -> Node:
        made = make_node(*words, **options)
        made.settings["supervisor"] = True
        return made

    return make


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    node = make_node()
    node.expected = list(ENDED)
    return node.start()


def test_status_names_supervisor_and_worker(node: Node) -> None:
    status = node.status()
    assert status["supervisor_pid"] == node.pid
    assert status["worker_pid"] == node.supervisor()["worker_pid"] != node.pid
    assert status["restarts"] == 0
    node.kill_worker()
    assert node.status()["restarts"] == 1


def test_open_files_go_on(node: Node) -> None:
    with (node.mount / "new").open("w+b") as new:
        new.write(b"before ")
        new.flush()
        node.kill_worker()
        new.write(b"after")
        new.flush()
        new.seek(0)
        assert new.read() == b"before after"
    node.settle()
    assert (node.shared / "new").read_bytes() == b"before after"


def test_open_unlinked_files_survive(node: Node) -> None:
    (node.mount / "local").write_bytes(b"local")
    (node.shared / "foreign").write_bytes(b"from the shared tier")
    fds = [os.open(node.mount / name, os.O_RDONLY) for name in ("local", "foreign")]
    for name in ("local", "foreign"):
        (node.mount / name).unlink()
    node.settle()
    node.kill_worker()
    contents = [os.pread(fd, 100, 0) for fd in fds]
    sizes = [os.fstat(fd).st_size for fd in fds]
    for fd in fds:
        os.close(fd)
    assert contents == [b"local", b"from the shared tier"]
    assert sizes == [5, 20]
    assert os.listdir(node.mount) == []


def test_a_file_made_where_another_is_being_removed_survives(node: Node) -> None:
    """The worker dies in the moment after the open, before the row of the new file is written."""
    name = node.mount / "name"
    name.write_bytes(b"old")
    node.settle()
    with (node.mount / "open").open("wb") as open_file:
        open_file.write(b"flushed, and not closed")
        open_file.flush()
        os.close(os.dup(open_file.fileno()))
        name.unlink()  # waits for the file that is open
        before = node.supervisor()
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.kill(before["worker_pid"], signal.SIGKILL)
        wait_until(lambda: node.is_served(before["generation"]), "the next worker", timeout=60)
        os.write(fd, b"new")
        os.close(fd)
        assert name.read_bytes() == b"new"
    node.settle()
    assert (node.shared / "name").read_bytes() == b"new"


def test_stores_through_a_mapping_arrive(node: Node) -> None:
    (node.mount / "f").write_bytes(bytes(4096))
    with (node.mount / "f").open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 4096)
    mapping[:6] = b"first "
    node.kill_worker()
    mapping[6:12] = b"second"
    mapping.close()
    node.settle()
    assert (node.shared / "f").read_bytes()[:12] == b"first second"


def test_inode_numbers_and_working_directories_stay(node: Node) -> None:
    (node.mount / "d" / "e").mkdir(parents=True)
    (node.mount / "d" / "e" / "f").write_bytes(b"x")
    (node.shared / "seen").write_bytes(b"y")
    paths = [node.mount / name for name in ("d", "d/e", "d/e/f", "seen")]
    before = [path.stat().st_ino for path in paths]
    inside = os.open(node.mount / "d" / "e", os.O_RDONLY | os.O_DIRECTORY)
    node.settle()
    (node.mount / "d").rename(node.mount / "moved")
    node.kill_worker()
    assert os.listdir(inside) == ["f"]
    with open(os.open("f", os.O_RDONLY, dir_fd=inside)) as file:
        assert file.read() == "x"
    os.close(inside)
    moved = [Path(str(path).replace("/d", "/moved")) for path in paths]
    assert [path.stat().st_ino for path in moved] == before


def test_a_listing_goes_on_where_it_was(node: Node) -> None:
    names = {f"f{index:04}" for index in range(500)}
    for name in names:
        (node.shared / name).touch()
    with os.scandir(node.mount) as listing:
        seen = [next(listing).name for _ in range(10)]
        node.kill_worker()
        seen += [entry.name for entry in listing]
    assert sorted(seen) == sorted(names)


@pytest.mark.parametrize("unlinked", [False, True])
def test_a_locked_file_stays_locked(node: Node, unlinked: bool) -> None:
    """Locks are the kernel's own: the worker never hears of them."""
    with (node.mount / "f").open("w") as one:
        fcntl.flock(one, fcntl.LOCK_EX)
        node.kill_worker()
        with (node.mount / "f").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if unlinked:
            (node.mount / "f").unlink()


def swarm(node: Node, seconds: float, seed: int) -> None:
    """Kills the worker at random while four processes work; then everything must be right."""
    node.expected += [r"worker \d+ ended"]
    chance = random.Random(seed)
    work = Swarm(node.mount, 4, seconds, seed)
    work.start()
    kills, limit = 0, time.monotonic() + seconds - 2
    while work.working() and time.monotonic() < limit:
        # while the next one starts, too, but mostly when it serves
        if chance.random() < 0.75:
            wait_until(lambda: node.is_served(), "a worker", timeout=60)
        time.sleep(chance.uniform(0, 2))
        try:
            os.kill(node.supervisor()["worker_pid"], signal.SIGKILL)
            kills += 1
        except ProcessLookupError:
            continue  # the last one has just been killed
    reports = work.reports()
    assert not [report.error for report in reports if report.error]
    assert kills >= seconds / 8
    assert sum(report.operations for report in reports) > 4 * seconds
    for report in reports:
        assert report.differences(node.mount, node.mount) == []
    node.settle(timeout=120)
    for report in reports:
        assert report.differences(node.mount, node.shared) == []


@pytest.mark.soak
def test_kill_at_random(node: Node) -> None:
    swarm(node, 30, 1)


@pytest.mark.soak
@pytest.mark.parametrize("passthrough", [True, False])
def test_kill_at_random_for_long(make_node: Callable[..., Node], passthrough: bool) -> None:
    node = make_node("long")
    node.settings["passthrough"] = passthrough
    node.expected = list(ENDED)
    node.start()
    swarm(node, 120, 2 + passthrough)


def dying(make_node: Callable[..., Node], name: str, armed: Path) -> Node:
    """A node, not started, whose worker dies once, where `armed` says."""
    node = make_node(name)
    node.environment["TIERFS_TEST_DIE_AT_REPLY"] = str(armed)
    node.environment["PYTHONPATH"] = f"{CHECKOUT / 'tests' / 'harness' / 'at_reply'}:{CHECKOUT}"
    node.expected = list(ENDED)
    return node


@pytest.mark.parametrize("where", ["init unwritten", "init"])
def test_the_first_request_of_all_is_answered(
    make_node: Callable[..., Node], tmp_path: Path, where: str
) -> None:
    armed = tmp_path / "armed"
    armed.write_text(where)
    node = dying(make_node, "a", armed).start()
    (node.mount / "f").write_bytes(b"x")
    assert not armed.exists()
    assert node.status()["restarts"] == 1
    assert node.status()["passthrough"] is (os.environ.get("TIERFS_TEST_PASSTHROUGH") != "off")
    node.settle()
    assert (node.shared / "f").read_bytes() == b"x"


def calls_in(directory: Path) -> dict[str, tuple[Callable[[], object], set[str]]]:
    """Each change of names in `directory`, and the names that are there afterwards."""
    old, new, target, empty = (directory / name for name in ("old", "new", "target", "empty"))
    exclusive = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    return {
        "create": (lambda: os.close(os.open(new, exclusive)), {"old", "new", "target", "empty"}),
        "mkdir": (lambda: os.mkdir(new), {"old", "new", "target", "empty"}),
        "symlink": (lambda: os.symlink("old", new), {"old", "new", "target", "empty"}),
        "link": (lambda: os.link(old, new), {"old", "new", "target", "empty"}),
        "unlink": (lambda: os.unlink(old), {"target", "empty"}),
        "rmdir": (lambda: os.rmdir(empty), {"old", "target"}),
        "rename": (lambda: os.rename(old, new), {"new", "target", "empty"}),
        "replace": (lambda: os.rename(old, target), {"target", "empty"}),
    }


@pytest.mark.parametrize("where", ["reply", "noted", "post"])
@pytest.mark.parametrize("committed", [False, True])
def test_a_request_asked_again_is_answered_once(
    make_node: Callable[..., Node], tmp_path: Path, where: str, committed: bool
) -> None:
    """The worker dies when the change is journaled and not answered, when a removal is noted ahead
    of the journal, or when it is about to be journaled."""
    armed = tmp_path / "armed"
    node = dying(make_node, "a", armed).start()
    expected = {}
    for step in calls_in(node.mount):
        directory = node.mount / step
        directory.mkdir()
        (directory / "old").write_bytes(b"old")
        (directory / "target").write_bytes(b"target")
        (directory / "empty").mkdir()
    if committed:
        node.settle()
    for step in calls_in(node.mount):
        call, expected[step] = calls_in(node.mount / step)[step]
        armed.write_text(where)
        call()
        assert not armed.exists(), step
        with (node.mount / step / "target").open("ab") as file:
            file.write(b" and more")
        assert set(os.listdir(node.mount / step)) == expected[step], step
    assert node.status()["restarts"] == len(expected)
    node.settle()
    for step, names in expected.items():
        assert set(os.listdir(node.shared / step)) == names, step
    compare(node.mount, node.shared)


@pytest.mark.parametrize("committed", [False, True])
def test_a_change_of_an_xattr_asked_again_is_answered_once(
    make_node: Callable[..., Node], tmp_path: Path, committed: bool
) -> None:
    """The worker dies when it is made and not answered; made again it would be an error."""
    armed = tmp_path / "armed"
    node = dying(make_node, "a", armed).start()
    file = node.mount / "f"
    file.write_bytes(b"content")
    if committed:
        node.settle()
    for call in (
        lambda: os.setxattr(file, "user.a", b"value", os.XATTR_CREATE),
        lambda: os.setxattr(file, "user.b", b"", os.XATTR_CREATE),
        lambda: os.removexattr(file, "user.b"),
    ):
        armed.write_text("reply")
        call()
        assert not armed.exists()
    with pytest.raises(FileExistsError):
        os.setxattr(file, "user.a", b"value", os.XATTR_CREATE)
    with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
        os.removexattr(file, "user.b")
    assert node.status()["restarts"] == 3
    node.settle()
    for path in (file, node.shared / "f"):
        names = [name for name in os.listxattr(path) if not name.startswith("user.tierfs.")]
        assert (names, os.getxattr(path, "user.a")) == (["user.a"], b"value")


def test_reload_takes_over(node: Node) -> None:
    before = node.supervisor()["worker_pid"]
    with (node.mount / "f").open("wb") as file:
        file.write(b"before")
        file.flush()
        result = node.cli("reload", node.mount, "--json")
        assert result.code == 0, result.err
        assert result.json["worker_pid"] not in (before, node.pid)
        file.write(b" and after")
    node.settle()
    assert (node.shared / "f").read_bytes() == b"before and after"
    assert node.status()["restarts"] == 1


def test_a_refused_mount_leaves_the_one_that_serves_its_supervisor(node: Node) -> None:
    node.expected = ["already", "in use"]
    before = node.supervisor()
    words = ["--local", node.local, "--shared", node.shared]
    assert node.cli("mount", node.mount, *words).code == 1
    assert node.supervisor() == before
    assert node.cli("reload", node.mount).code == 0


def test_a_version_that_does_not_start_leaves_the_mount_as_it_is(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node()
    broken = tmp_path / "broken"
    broken.mkdir()
    node.environment["PYTHONPATH"] = f"{broken}:{CHECKOUT}"
    node.expected = [r"which was to come next, ended with code 1", "Traceback"]
    node.start()
    before = node.supervisor()["worker_pid"]
    (broken / "trio.py").write_text("raise ImportError('a broken upgrade')\n")
    result = node.cli("reload", node.mount)
    (broken / "trio.py").unlink()
    assert result.code == 1
    assert "does not start" in result.err
    assert node.supervisor()["worker_pid"] == before
    (node.mount / "f").write_bytes(b"x")
    assert node.cli("reload", node.mount).code == 0
    assert node.supervisor()["worker_pid"] != before
    assert (node.mount / "f").read_bytes() == b"x"


def test_a_worker_that_is_stopped_is_replaced(node: Node) -> None:
    node.expected += [r"is replaced: it has not answered", r"ended \(it has not answered"]
    (node.mount / "f").write_bytes(b"x")
    before = node.supervisor()
    os.kill(before["worker_pid"], signal.SIGSTOP)
    assert (node.mount / "f").read_bytes() == b"x"
    (node.mount / "g").write_bytes(b"y")
    assert node.supervisor()["worker_pid"] != before["worker_pid"]
    node.settle()
    compare(node.mount, node.shared)


def test_a_worker_that_hangs_in_the_kernel_is_waited_for(
    make_node: Callable[..., Node], make_device: Callable[..., LoopDevice]
) -> None:
    """It is killed while it sends: what it was about to do must not overtake the next one."""
    shared = make_device("shared", 512 << 20)
    node = make_node(shared=shared.mountpoint).start()
    node.expected += [r"is replaced: it has not answered", "hangs in the kernel"]
    with frozen(shared):
        (node.mount / "g").write_bytes(b"being sent")
        before = node.supervisor()
        wait_until(lambda: hangs(before["worker_pid"]), "a thread to hang")
        os.kill(before["worker_pid"], signal.SIGKILL)
        wait_until(lambda: "hangs in the kernel" in node.supervisor()["error"], "that to be seen")
        assert node.supervisor()["generation"] == before["generation"]
        assert Path(f"/proc/{before['worker_pid']}").exists()
        beside = make_node("beside", shared=shared.mountpoint, local=node.local)
        refused = beside.cli(*beside.mount_words())
        assert f"in use by process {before['worker_pid']}, which was killed" in refused.err
        assert f"it hangs on {shared.mountpoint}" in refused.err
    (node.mount / "f").write_bytes(b"afterwards")
    assert node.supervisor()["generation"] == before["generation"] + 1
    node.settle()
    assert (node.shared / "g").read_bytes() == b"being sent"
    assert (node.shared / "f").read_bytes() == b"afterwards"


def test_workers_that_end_at_once_leave_a_clear_state(node: Node) -> None:
    node.expected += [r"worker \d+ ended", "workers in a row ended at once", "CRITICAL", "journal"]
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    opened = os.open(node.mount / "f", os.O_RDONLY)
    journal = node.local / "journal.db"
    aside = node.local / "aside"
    os.kill(node.supervisor()["worker_pid"], signal.SIGSTOP)
    journal.rename(aside)
    os.kill(node.supervisor()["worker_pid"], signal.SIGKILL)
    wait_until(
        lambda: node.supervisor()["state"] == "failed", "the supervisor to give up", timeout=60
    )
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (node.mount / "f").stat()
    result = node.cli("status", node.mount)
    assert result.code == 1
    assert "tierfs reload" in result.err
    aside.rename(journal)
    assert node.cli("reload", node.mount).code == 0
    assert os.pread(opened, 1, 0) == b"x"
    os.close(opened)
    assert (node.mount / "f").read_bytes() == b"x"


def test_the_end_of_the_supervisor_is_the_end_of_the_mount(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    worker = node.supervisor()["worker_pid"]
    node.kill()
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end, too")
    assert not node.is_alive()
    node.start()
    assert (node.mount / "f").read_bytes() == b"x"
    assert node.status()["restarts"] == 0


def test_a_service_manager_is_told_that_the_mount_answers(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """As packaging/tierfs@.service has it: Type=notify, the supervisor is the main process."""
    node = make_node()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        words = node.command(*node.mount_words("--foreground"))
        with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as supervisor:
            node.pid = supervisor.pid
            assert manager.recv(1000) == f"READY=1\nMAINPID={supervisor.pid}".encode()
            (node.mount / "f").write_bytes(b"x")
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(30) == 0
    assert not node.is_mounted()


def test_umount_and_sigterm_end_both(node: Node) -> None:
    worker = node.supervisor()["worker_pid"]
    node.terminate()
    assert not node.is_mounted()
    assert not Path(f"/proc/{worker}").exists()
    node.start()
    worker = node.supervisor()["worker_pid"]
    assert node.umount().code == 0
    for pid in (node.pid, worker):
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"process {pid} to end")
