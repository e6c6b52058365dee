"""Names of runtime directories, and the session file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import wait_until
from tierfs.control import discovery
from tierfs.control.discovery import NoMount, Session, mount_id
from tierfs.control.supervision import RUNNING, State, read_state, write_state

SESSION = Session(
    mountpoint="/mnt/ckpt",
    local="/nvme",
    shared="/nfs",
    pid=7,
    node="a",
    member="0" * 32,
    started=1.5,
    version="1",
)


@pytest.mark.parametrize(
    ("mountpoint", "name"),
    [
        ("/mnt/ckpt", "mnt-ckpt"),
        ("/mnt//ckpt/", "mnt-ckpt"),
        ("/", "-"),
        ("/a-b/c", r"a\x2db-c"),
        ("/.hidden/x.y", r"\x2ehidden-x.y"),
        ("/ä b", r"\xc3\xa4\x20b"),
        ("/\udcff", r"\xff"),
    ],
)
def test_mount_id(mountpoint: str, name: str) -> None:
    assert mount_id(mountpoint) == name


def test_mount_ids_differ_where_mount_points_do() -> None:
    paths = ["/a/b", "/a-b", r"/a\x2db", "/a", "/b", *(f"/{'x' * 300}{n}" for n in range(3))]
    ids = {mount_id(path) for path in paths}
    assert len(ids) == len(paths)
    assert all(len(name) <= 200 for name in ids)


def test_mount_id_is_that_of_systemd() -> None:
    for path in ("/mnt/ckpt", "/a-b/.c", "/.x/ü"):
        try:
            escaped = subprocess.run(
                ["systemd-escape", "--path", path], capture_output=True, text=True, check=True
            )
        except FileNotFoundError:
            pytest.skip("no systemd-escape here")
        assert mount_id(path) == escaped.stdout.strip()


def test_session_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "RUNTIME", tmp_path)
    directory = discovery.session_directory("/mnt/ckpt")
    directory.mkdir()
    discovery.write_session(directory, SESSION)
    assert discovery.read_session("/mnt/ckpt") == SESSION
    assert [path.name for path in directory.iterdir()] == ["session.json"]
    discovery.remove_session(directory)
    with pytest.raises(NoMount, match="no tierfs daemon"):
        discovery.read_session("/mnt/ckpt")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 3}'])
def test_damaged_session_file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "RUNTIME", tmp_path)
    directory = discovery.session_directory("/m")
    directory.mkdir()
    (directory / "session.json").write_text(text)
    with pytest.raises(NoMount, match="not a session file"):
        discovery.read_session("/m")


def test_mount_points_are_unescaped() -> None:
    line = rb"36 35 0:57 / /mnt/a\040b\134c rw shared:1 - fuse.tierfs tierfs rw"
    assert discovery._tierfs_mountpoint(line) == rb"/mnt/a b\c"
    assert discovery._tierfs_mountpoint(line.replace(b"fuse.tierfs", b"fuse.other")) is None


def mounted_at(monkeypatch: pytest.MonkeyPatch, *places: str | Path) -> None:
    monkeypatch.setattr(discovery, "mountpoints", lambda: [str(place) for place in places])


def test_the_inner_mount_holds_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted_at(monkeypatch, tmp_path, tmp_path / "a")
    (tmp_path / "a").mkdir()
    assert discovery.find_mount(str(tmp_path / "a" / "x")) == (
        str(tmp_path / "a"),
        str(tmp_path / "a" / "x"),
    )
    assert discovery.find_mount(str(tmp_path / "ab"))[0] == str(tmp_path)


def test_symlinks_on_the_way_are_followed_the_last_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mnt"
    (mount / "run").mkdir(parents=True)
    (mount / "latest").symlink_to("run")
    (tmp_path / "way").symlink_to(mount / "latest")
    mounted_at(monkeypatch, mount)
    assert discovery.find_mount(str(mount / "latest"))[1] == str(mount / "latest")
    assert discovery.find_mount(str(mount / "latest" / "x"))[1] == str(mount / "run" / "x")
    assert discovery.find_mount(str(tmp_path / "way"))[1] == str(mount / "run")
    for link in (mount / "latest", tmp_path / "way"):  # of commands about checkpoints
        assert discovery.find_mount(str(link), follow=True) == (str(mount), str(mount / "run"))


def test_the_mount_point_itself_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted_at(monkeypatch, "/mnt/hung")

    def touched(path: str) -> str:
        raise AssertionError(f"looked up {path}: that can hang with the mount")

    monkeypatch.setattr(discovery.os.path, "realpath", touched)
    assert discovery.find_mount("/mnt/hung") == ("/mnt/hung", "/mnt/hung")


def test_which_mount_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    mounted_at(monkeypatch)
    with pytest.raises(NoMount, match="no tierfs mount here"):
        discovery.find_mount()
    mounted_at(monkeypatch, "/mnt/a")
    assert discovery.find_mount()[0] == "/mnt/a"
    mounted_at(monkeypatch, "/mnt/a", "/mnt/b")
    with pytest.raises(NoMount, match=r"several.*/mnt/a, /mnt/b"):
        discovery.find_mount()
    monkeypatch.chdir(tmp_path)
    mounted_at(monkeypatch, "/mnt/a", tmp_path)
    assert discovery.find_mount()[0] == str(tmp_path)


def test_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted_at(monkeypatch, "/mnt/a")
    with pytest.raises(NoMount, match=r"/etc: not inside a tierfs mount \(mounted: /mnt/a\)"):
        discovery.find_mount("/etc")


def test_a_supervisor_that_is_gone_is_none_whoever_has_its_number(tmp_path: Path) -> None:
    state = State(pid=os.getpid(), worker_pid=1, state=RUNNING, generation=1, restarts=0, error="")
    write_state(tmp_path, state)
    assert read_state(tmp_path) is None
    words = [sys.executable, "-c", "input()", "tierfs.supervisor"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        write_state(tmp_path, replace(state, pid=process.pid))
        wait_until(lambda: read_state(tmp_path) is not None, "its command line")
        process.communicate(b"\n")
    assert read_state(tmp_path) is None
