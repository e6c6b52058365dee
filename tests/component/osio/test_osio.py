"""The labelled system calls, on real files."""

from __future__ import annotations

import errno
import inspect
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import KILLED, FaultyOS, failing, fault_environment
from tierfs.errors import ConfigError
from tierfs.model import Kind
from tierfs.osio import OS, RENAME_EXCHANGE, RENAME_NOREPLACE, paths
from tierfs.osio.injection import Fault


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["openat2", "walk"])
def beneath(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OS:
    if request.param == "walk":

        def missing(*_: object) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(paths.libc, "openat2", missing)
    return OS()


def test_open_beneath_reaches_files_and_the_directory_itself(
    beneath: OS, tmp_path: Path, root: int
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"content")
    fd = beneath.open_beneath("t", root, b"a/b/file", os.O_RDONLY)
    assert os.read(fd, 100) == b"content"
    assert not os.get_inheritable(fd)
    os.close(fd)
    fd = beneath.open_beneath("t", root, b"", os.O_RDONLY | os.O_DIRECTORY)
    assert os.fstat(fd).st_ino == tmp_path.stat().st_ino
    os.close(fd)


def test_open_beneath_takes_paths_of_any_length(beneath: OS, tmp_path: Path, root: int) -> None:
    path = b"/".join([b"d" * 200] * 25)
    at = os.dup(root)
    for name in path.split(b"/"):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    fd = beneath.open_beneath("t", root, path, os.O_RDONLY | os.O_DIRECTORY)
    assert os.fstat(fd).st_ino == os.fstat(at).st_ino
    os.close(fd)
    os.close(at)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"link", errno.ELOOP),
        (b"dirlink/file", None),  # ELOOP by openat2, ENOTDIR by the walk
        (b"../outside", errno.EXDEV),
        (b"/etc/passwd", errno.EXDEV),
        (b"nothing", errno.ENOENT),
    ],
)
def test_open_beneath_never_escapes(
    beneath: OS, tmp_path: Path, root: int, path: bytes, number: int | None
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/file").touch()
    (tmp_path / "link").symlink_to("dir/file")
    (tmp_path / "dirlink").symlink_to("dir")
    with pytest.raises(OSError, match=os.fsdecode(path)) as caught:
        beneath.open_beneath("t", root, path, os.O_RDONLY)
    assert caught.value.errno in ((number,) if number else (errno.ELOOP, errno.ENOTDIR))


def test_rename_flags(tmp_path: Path, root: int) -> None:
    system = OS()
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        system.rename_at("t", root, b"a", root, b"b", RENAME_NOREPLACE)
    system.rename_at("t", root, b"a", root, b"b", RENAME_EXCHANGE)
    assert (tmp_path / "a").read_text() == "b"
    system.rename_at("t", root, b"a", root, b"b")
    assert (tmp_path / "b").read_text() == "b"


def test_list_dir_tells_every_kind(tmp_path: Path, root: int) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    (tmp_path / "l").symlink_to("nowhere")
    os.mkfifo(tmp_path / "p")
    os.mknod(tmp_path / "s", stat.S_IFSOCK | 0o600)
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.close(os.open(odd, os.O_CREAT))
    found = {item.name: item.kind for item in OS().list_dir("t", root)}
    assert found == {
        b"d": Kind.DIRECTORY, b"f": Kind.FILE, b"l": Kind.SYMLINK, b"p": Kind.FIFO,
        b"s": Kind.SOCKET, b"\xff": Kind.FILE,
    }  # fmt: skip
    assert len(OS().list_dir("t", root)) == len(found)


def test_attributes_through_a_descriptor_that_only_names(tmp_path: Path, root: int) -> None:
    system = OS()
    os.mkfifo(tmp_path / "p")
    fd = system.open_at("t", root, b"p", os.O_PATH)
    system.fchown("t", fd, 12, 13)
    system.fchmod("t", fd, 0o640)
    system.utime_fd("t", fd, 1_000_000_001, None)
    st = os.stat(tmp_path / "p")
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (12, 13, 0o640)
    assert st.st_atime_ns == 1_000_000_001
    assert st.st_mtime_ns != 1_000_000_001
    with pytest.raises(OSError, match=r"denied|permitted|supported"):
        system.set_xattr("t", fd, b"user.x", b"1")  # the kernel refuses user xattrs on fifos
    os.close(fd)


def test_symlink_owner_and_times(tmp_path: Path, root: int) -> None:
    system = OS()
    (tmp_path / "target").touch()
    before = os.stat(tmp_path / "target")
    system.symlink_at("t", root, b"l", b"target")
    system.chown_at("t", root, b"l", 5, 6)
    system.utime_at("t", root, b"l", None, 7)
    st = system.stat_at("t", root, b"l")
    assert (st.st_uid, st.st_gid, st.st_mtime_ns) == (5, 6, 7)
    assert system.readlink_at("t", root, b"l") == b"target"
    assert os.stat(tmp_path / "target")[:6] == before[:6]


def test_xattrs(tmp_path: Path, root: int) -> None:
    system = OS()
    (tmp_path / "f").touch()
    fd = system.open_at("t", root, b"f", os.O_RDONLY)
    system.set_xattr("t", fd, b"user.a", b"\0binary", os.XATTR_CREATE)
    assert system.list_xattr("t", fd) == [b"user.a"]
    assert system.get_xattr("t", fd, b"user.a") == b"\0binary"
    with pytest.raises(FileExistsError):
        system.set_xattr("t", fd, b"user.a", b"", os.XATTR_CREATE)
    system.remove_xattr("t", fd, b"user.a")
    with pytest.raises(OSError, match="No data") as caught:
        system.get_xattr("t", fd, b"user.a")
    assert caught.value.errno == errno.ENODATA
    os.close(fd)


def test_data_ranges_name_the_holes(tmp_path: Path) -> None:
    system = OS()
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 10 << 20)
    assert list(system.data_ranges("t", fd, 10 << 20)) == []
    os.pwrite(fd, b"x" * 4096, 1 << 20)
    os.pwrite(fd, b"x" * 4096, 9 << 20)
    assert list(system.data_ranges("t", fd, 10 << 20)) == [
        (1 << 20, (1 << 20) + 4096),
        (9 << 20, (9 << 20) + 4096),
    ]
    assert list(system.data_ranges("t", fd, (1 << 20) + 10)) == [(1 << 20, (1 << 20) + 10)]
    os.close(fd)


def test_short_writes_are_continued(tmp_path: Path) -> None:
    system = FaultyOS(short={"t": 1000})
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    system.pwrite_all("t", fd, os.urandom(100) * 100, 50)
    buffer = bytearray(20_000)
    assert system.pread_into("t", fd, buffer, 0) == 10_050
    assert buffer[50:150] == buffer[9_950:10_050]
    os.close(fd)


def test_fallocate_reserves_without_writing(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    OS().fallocate("t", fd, 0, 1 << 20)
    assert os.fstat(fd).st_size == 1 << 20
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    os.close(fd)


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert OS().lock_exclusive("t", first)
    assert not OS().lock_exclusive("t", second)
    os.close(first)
    assert OS().lock_exclusive("t", second)
    os.close(second)


def test_clone_answers_false_where_there_is_no_reflink(tmp_path: Path) -> None:
    source = os.open("/proc/self/status", os.O_RDONLY)  # another file system
    target = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    assert OS().clone("t", source, target) is False
    os.close(source)
    os.close(target)


def test_mounts_are_told_apart(root: int) -> None:
    proc = os.open("/proc", os.O_RDONLY)
    assert OS().mount_id("t", root) == OS().mount_id("t", root) != OS().mount_id("t", proc)
    assert not OS().is_nfs("t", root)
    os.close(proc)


def test_every_method_passes_the_seam() -> None:
    unlabelled = [
        name
        for name, value in inspect.getmembers(OS, inspect.isfunction)
        if not name.startswith("_") and not hasattr(value, "__wrapped__")
    ]
    assert unlabelled == ["data_ranges"]  # its steps are, one by one


def test_errors_name_step_and_path(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="No space") as caught:
        FaultyOS(failing("put.fsync", errno.ENOSPC)).fsync("put.fsync", fd)
    assert caught.value.filename == str(tmp_path / "f")
    assert caught.value.__notes__ == ["at step put.fsync"]
    os.close(fd)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("b:2:kill", KILLED), ("b:2:EIO", 5), ("b:3+:ENOSPC", 28), ("c:1:kill", 0)],
)
def test_faults_reach_a_subprocess(fault: str, status: int) -> None:
    program = (
        "import sys; from tierfs.osio import make_os\nos = make_os()\n"
        "try:\n for _ in range(3): os.close('a', os.open_root('b', '/'))\n"
        "except OSError as error: sys.exit(error.errno)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=fault_environment(fault))
    assert done.returncode == status


@pytest.mark.parametrize("text", ["", "a:1", "a:x:kill", "a:1:EWHAT", ":1:kill"])
def test_a_fault_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TIERFS_TEST_FAULT"):
        Fault.parse(text)
