"""Policies by path: what a close waits for, logs, data sets, files past the local tier."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Node, wait_until

MIB = 1 << 20


def test_a_log_is_sent_while_it_is_open_and_holds_nothing(
    make_node: Callable[..., Node],
) -> None:
    node = make_node()
    node.settings = {"log_interval": 1, "group_settle": 1}
    node.start()
    run, there = node.mount / "run", node.shared / "run"
    run.mkdir()
    with (run / "train.log").open("ab", buffering=0) as log:
        log.write(b"one\n")
        wait_until(lambda: _is(there / "train.log", b"one\n"), "the first part of the log")
        log.write(b"two\n")
        wait_until(lambda: _is(there / "train.log", b"one\ntwo\n"), "the second")
        inode = (there / "train.log").stat().st_ino
        # a marker beside it, and a flush that waits for everything
        (run / ".metadata").write_bytes(b"m")
        log.write(b"three\n")
        node.settle()
        assert _is(there / ".metadata", b"m")
        assert _is(there / "train.log", b"one\ntwo\nthree\n")
        assert (run / "train.log").read_bytes() == b"one\ntwo\nthree\n"
        assert node.cli("settled", run, "--timeout", "20").code == 0
    node.settle()
    assert (there / "train.log").stat().st_ino != inode
    wait_until(lambda: node.status()["pending_ops"] == 0, "the last close to be over")


def test_a_log_in_a_checkpoint_keeps_it_from_nothing(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings = {"log_interval": 1, "group_settle": 1}
    node.start()
    step, there = node.mount / "checkpoint-1", node.shared / "checkpoint-1"
    step.mkdir()
    (step / "model.safetensors").write_bytes(b"w" * 1000)
    with (step / "save.log").open("ab", buffering=0) as log:
        log.write(b"saving\n")
        (step / "trainer_state.json").write_bytes(b"{}")
        wait_until(there.exists, "the checkpoint to be published", timeout=30)
        wait_until(lambda: _is(there / "save.log", b"saving\n"), "its log")
        inode = there.stat().st_ino
        log.write(b"saved\n")
        wait_until(lambda: _is(there / "save.log", b"saving\nsaved\n"), "the rest of the log")
        assert there.stat().st_ino == inode  # it is no new generation
    node.settle()


def test_the_log_of_a_killed_writer_is_sent(make_node: Callable[..., Node]) -> None:
    node = make_node().start()
    code = (
        "import sys, time\nf = open(sys.argv[1], 'wb', 0)\nf.write(b'last words')\n"
        "print(1, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(node.mount / "job.err")], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    log = os.open(node.mount / "next.log", os.O_WRONLY | os.O_CREAT)
    os.write(log, b"open when the daemon dies")
    node.settle()
    os.write(log, b", too")
    assert _is(node.shared / "job.err", b"last words")
    node.kill()
    with contextlib.suppress(OSError):
        os.close(log)
    node.start()
    node.settle()
    assert _is(node.shared / "next.log", b"open when the daemon dies, too")
    assert node.status()["stuck"] == []


def _is(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


THROUGH = [
    {"pattern": "through/", "policy": "writethrough"},
    {"pattern": "synced/", "policy": "writeback", "fsync": "committed"},
]


def test_close_and_fsync_return_when_it_is_committed(
    make_node: Callable[..., Node], replacement: Callable[[], Node]
) -> None:
    node = make_node()
    node.settings = {"policies": THROUGH}
    node.start()
    for name in ("through", "synced"):
        (node.mount / name).mkdir()
    content = os.urandom(3 * MIB)
    there = node.shared / "through"
    for name in ("new", "x.tmp", ".metadata", "new"):
        (node.mount / "through" / name).write_bytes(content + name.encode())
        assert _is(there / name, content + name.encode())
        inode = (there / name).stat().st_ino
    # open for writing and not changed: nothing is sent again
    (node.mount / "through" / "new").open("r+b").close()
    node.settle()
    assert (there / "new").stat().st_ino == inode
    with (node.mount / "through" / "new").open("r+b") as file:
        file.write(b"begin")
        file.flush()
        os.fsync(file.fileno())
        assert (there / "new").read_bytes()[:6] == b"begin" + content[5:6]
        os.fsync(file.fileno())
        file.write(b"ning")
    assert (there / "new").read_bytes() == b"beginning" + content[9:] + b"new"
    os.truncate(node.mount / "through" / "new", 5)
    assert _is(there / "new", b"begin")
    with (node.mount / "synced" / "f").open("wb") as file:
        file.write(b"synced")
        file.flush()
        os.fsync(file.fileno())
        assert _is(node.shared / "synced" / "f", b"synced")
    told = node.cli("doctor", "--policy", node.mount / "through" / "any" / "x", "--json").json
    assert (told["policy"], told["pattern"]) == ("writethrough", "through/")
    assert (told["fsync"], told["close"]) == ("committed", "committed")
    told = node.cli("doctor", "--policy", node.mount / "any" / "x.log")
    assert "log (pattern '*.log')" in told.out
    assert "fsync: local, close: local" in told.out
    assert node.cli("doctor").code == 1
    config = node.root / "tierfs.toml"
    assert "synced/ is writeback, fsync committed" in node.cli("config", "check", config).out
    told = node.cli("config", "check", config, "--path", "/synced/x")
    assert told.out == "/synced/x: writeback (pattern 'synced/')\n"
    node.kill()
    assert (replacement().mount / "through" / "new").read_bytes() == b"begin"


def test_a_close_waits_for_the_commit_over_the_death_of_the_daemon(
    make_node: Callable[..., Node],
) -> None:
    if not _supervised():
        pytest.skip("needs a supervisor")
    node = make_node()
    node.settings = {"policies": THROUGH}
    node.start("--bwlimit", "64K")
    (node.mount / "through").mkdir()
    # a process of its own: what this one starts meanwhile would inherit the open file, and close it
    code = (
        "import os, sys, pathlib\nmount, shared = map(pathlib.Path, sys.argv[1:])\n"
        "content = os.urandom(1 << 20)\nmount.write_bytes(content)\n"
        "sys.exit(shared.read_bytes() != content)"
    )
    paths = (directory / "through" / "f" for directory in (node.mount, node.shared))
    with subprocess.Popen([sys.executable, "-c", code, *paths]) as saving:
        wait_until(lambda: node.status()["pending_files"] == 1, "the file to be on its way")
        node.expected.append("killed by SIGKILL")
        node.kill_worker()
        assert saving.poll() is None
        assert node.cli("set", node.mount, "bwlimit=off").code == 0
        assert saving.wait(60) == 0


def test_a_marker_may_be_closed_before_its_shards(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings = {"policies": THROUGH}
    node.start()
    (node.mount / "through").mkdir()
    with (node.mount / "through" / "shard.bin").open("wb") as shard:
        shard.write(b"not complete")
        (node.mount / "through" / ".metadata").write_bytes(
            b"m"
        )  # returns: nobody waits for himself
        assert not (node.shared / "through" / ".metadata").exists()
    node.settle()
    assert _is(node.shared / "through" / ".metadata", b"m")


def test_what_the_shared_tier_says_comes_out_of_close(
    make_node: Callable[..., Node], make_device: Callable[..., object]
) -> None:
    device = make_device("small", 64 * MIB)
    node = make_node(shared=Path(str(device.mountpoint)))  # type: ignore[attr-defined]
    node.settings = {"policies": THROUGH}
    node.expected.append("the shared tier is full")
    node.start()
    (node.mount / "through").mkdir()
    with pytest.raises(OSError, match="No space left"):
        (node.mount / "through" / "large").write_bytes(os.urandom(80 * MIB))
    assert (node.mount / "through" / "large").stat().st_size == 80 * MIB
    wait_until(lambda: node.status()["retrying"], "it to be tried again")
    # it is kept, and goes when there is room
    (node.mount / "through" / "large").unlink()
    node.settle()
    (node.mount / "through" / "small").write_bytes(b"fits")
    assert _is(node.shared / "through" / "small", b"fits")


def _cached(node: Node, path: Path) -> bool:
    return bool(node.cli("locate", path, "--json").json["tier"] == "both")


def test_a_data_set_comes_to_the_local_tier_behind_its_readers(
    make_node: Callable[..., Node],
) -> None:
    writer = make_node("writer").start()
    (writer.mount / "sets").mkdir()
    content = os.urandom(3 * MIB)
    (writer.mount / "sets" / "sent").write_bytes(content)
    (writer.mount / "sets" / "damaged").write_bytes(content)
    writer.settle()
    there = writer.shared / "sets"
    (there / "plain").write_bytes(content[:100])
    os.setxattr(there / "damaged", "user.tierfs.digest", b"sha256:64MiB:" + b"0" * 64)
    node = make_node("reader")
    node.settings = {"policies": [{"pattern": "sets/", "policy": "cache"}]}
    node.expected.append("sets/damaged: the copy for the local tier differs")
    node.start()
    sets = node.mount / "sets"
    with ThreadPoolExecutor(8) as readers:
        found = list(readers.map(lambda _: (sets / "sent").read_bytes(), range(24)))
    assert found == [content] * 24
    assert (sets / "plain").read_bytes() == content[:100]
    assert (sets / "damaged").read_bytes() == content
    for name in ("sent", "plain"):
        wait_until(lambda name=name: _cached(node, sets / name), f"the copy of {name}")
        assert _copies(node, (sets / name).read_bytes()) == 1
    wait_until(lambda: "differs" in node.log_text(), "the damage to be noticed")
    assert not _cached(node, sets / "damaged")
    assert (sets / "damaged").read_bytes() == content
    # somebody else replaces it: the copy is not served any more, and taken anew
    (writer.mount / "sets" / "sent").write_bytes(b"newer")
    writer.settle()
    wait_until(lambda: (sets / "sent").read_bytes() == b"newer", "the newer one")
    wait_until(lambda: _cached(node, sets / "sent"), "its copy")
    _refused(sets)


def _copies(node: Node, content: bytes) -> int:
    return sum(found == content for found in _objects(node))


def _refused(sets: Path) -> None:
    before = sorted(sets.iterdir())
    for change in (
        lambda: (sets / "new").write_bytes(b""),
        lambda: (sets / "sent").open("ab"),
        lambda: os.truncate(sets / "sent", 0),
        lambda: (sets / "sent").unlink(),
        lambda: (sets / "sent").rename(sets.parent / "sent"),
        lambda: (sets / "sent").chmod(0o600),
        lambda: os.utime(sets / "sent"),
        lambda: os.setxattr(sets / "sent", "user.x", b""),
        lambda: os.link(sets / "sent", sets.parent / "link"),
        lambda: (sets / "directory").mkdir(),
        lambda: (sets / "link").symlink_to("sent"),
        lambda: os.mkfifo(sets / "fifo"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            change()
    (sets.parent / "outside").write_bytes(b"")
    with pytest.raises(OSError, match="Read-only file system"):
        (sets.parent / "outside").rename(sets / "sent")
    assert sorted(sets.iterdir()) == before


def test_direct_files_never_lie_on_the_local_tier(
    make_node: Callable[..., Node], replacement: Callable[[], Node]
) -> None:
    node = make_node()
    node.settings = {
        "policies": [{"pattern": "big/", "policy": "direct"}],
        "log_level": "debug",
    }
    node.start()
    big, there = node.mount / "big", node.shared / "big"
    big.mkdir()
    content = os.urandom(5 * MIB + 1)
    with (big / "f").open("wb") as file:
        file.write(content)
        file.flush()
        assert (big / "f").read_bytes() == content
        assert _copies(node, content) == 0
        assert not (there / "f").exists()
    node.settle()
    assert _is(there / "f", content)
    assert (big / "f").read_bytes() == content
    with (big / "f").open("r+b") as file:
        file.write(b"edited")
        assert _is(there / "f", content)
    node.kill()
    node.start()
    assert (big / "f").read_bytes() == b"edited" + content[6:]
    node.settle()
    assert _is(there / "f", b"edited" + content[6:])
    (big / "f").open("r+b").close()
    (big / "f").rename(node.mount / "elsewhere")
    node.settle()
    objects = (node.local / "objects").glob("*/*")
    assert [path for path in objects if path.stat().st_size > MIB] == []
    assert replacement().mount.joinpath("elsewhere").stat().st_size == len(content)


SCRATCH = [
    {"pattern": "scratch/", "policy": "scratch"},
    {"pattern": "*.part", "policy": "scratch"},
]


@pytest.fixture
def scratch(make_node: Callable[..., Node]) -> Node:
    node = make_node()
    node.settings = {"policies": SCRATCH}
    node.start()
    (node.mount / "scratch").mkdir()
    return node


def test_scratch_files_stay_on_this_node(scratch: Node, make_node: Callable[..., Node]) -> None:
    node, place = scratch, scratch.mount / "scratch"
    content = os.urandom(2 * MIB)
    (place / "f").write_bytes(content)
    node.settle()
    status = node.status()
    assert (status["pending_ops"], status["open_for_write"]) == (0, 0)
    assert node.cli("locate", place / "f", "--json").json["tier"] == "local"
    with (place / "f").open("r+b") as file, (place / "f").open("rb") as reader:
        file.seek(1)
        file.write(b"in place")
        file.flush()
        os.fsync(file.fileno())
        content = content[:1] + b"in place" + content[9:]
        assert reader.read() == content
    os.link(place / "f", place / "second")
    (place / "f").rename(place / "g")
    (place / "g").chmod(0o600)
    os.setxattr(place / "g", "user.x", b"1")
    (place / "cut").write_bytes(b"12345")
    os.truncate(place / "cut", 2)
    (place / "again").write_bytes(b"first")
    (place / "again").write_bytes(b"2nd")
    (place / "gone").write_bytes(os.urandom(MIB))
    (place / "gone").unlink()
    (place / "cut").replace(place / "again")
    expected = {"g": content, "second": content, "again": b"12"}
    for end in (node.kill_worker, node.kill):
        assert _content(place) == expected
        if end == node.kill_worker:
            node.expected.append("killed by SIGKILL")
            if not _supervised():
                continue
        end()
        if end == node.kill:
            node.start()
    assert _content(place) == expected
    assert stat.S_IMODE((place / "second").stat().st_mode) == 0o600
    assert (place / "second").stat().st_nlink == 2
    other = make_node("other").start()
    assert list((other.mount / "scratch").iterdir()) == []
    assert list((node.shared / "scratch").iterdir()) == []
    with pytest.raises(OSError, match="not empty"):
        place.rmdir()
    for name in expected:
        (place / name).unlink()
    wait_until(lambda: _local_bytes(node) == 0, "the content to go")
    place.rmdir()
    node.settle()


def test_what_leaves_a_scratch_path_is_sent(scratch: Node) -> None:
    node, place, there = scratch, scratch.mount / "scratch", scratch.shared
    # the usual way to replace a file: the name never shows anything but whole content
    (node.mount / "final").write_bytes(b"old")
    node.settle()
    (node.mount / "final.part").write_bytes(b"new")
    inode = (there / "final").stat().st_ino
    (node.mount / "final.part").replace(node.mount / "final")
    assert (node.mount / "final").read_bytes() == b"new"
    node.settle()
    assert _is(there / "final", b"new")
    assert (there / "final").stat().st_ino != inode
    # an open one is sent when it is closed
    with (node.mount / "open.part").open("wb") as file:
        file.write(b"before")
        file.flush()
        (node.mount / "open.part").rename(node.mount / "open")
        file.write(b" and after")
    node.settle()
    assert _is(there / "open", b"before and after")
    # a rename that fails changes nothing
    (place / "kept").write_bytes(b"kept")
    with pytest.raises(PermissionError):
        (place / "kept").rename(node.mount / ".staging_reserved")
    node.settle()
    assert not (there / "scratch" / "kept").exists()
    # a link would be both; a copy is what mv makes then
    with pytest.raises(OSError, match="cross-device"):
        os.link(place / "kept", node.mount / "link")
    with pytest.raises(OSError, match="cross-device"):
        os.link(node.mount / "final", place / "link")
    # a directory takes its files along
    (place / "run").mkdir()
    (place / "run" / "f").write_bytes(b"taken along")
    (place / "run").rename(node.mount / "run")
    node.settle()
    assert _is(there / "run" / "f", b"taken along")
    # what was committed stays that
    (node.mount / "final").rename(place / "final")
    node.settle()
    assert _is(there / "scratch" / "final", b"new")
    assert sorted(path.name for path in (there / "scratch").iterdir()) == ["final"]
    node.kill()
    node.start()
    assert (place / "kept").read_bytes() == b"kept"


def _supervised() -> bool:
    return os.environ.get("TIERFS_TEST_SUPERVISOR") != "off"


def _content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _local_bytes(node: Node) -> int:
    return sum(map(len, _objects(node)))


def _objects(node: Node) -> list[bytes]:
    """The contents on the local tier; what goes while it is looked through is gone."""
    found = []
    for path in (node.local / "objects").glob("*/*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            found.append(path.read_bytes())
    return found
