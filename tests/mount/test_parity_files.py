"""Content of files: each case on plain XFS first, then on the mount, pending and committed."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.errors import fails_with
from tests.harness.parity import Tree

KIB = 1 << 10
MIB = 1 << 20


def pattern(size: int, seed: int = 1) -> bytes:
    """`size` bytes that differ at every offset where blocks could be mixed up."""
    block = b"".join((seed * 1_000_003 + i).to_bytes(8, "little") for i in range(512))
    return (block * (size // len(block) + 1))[:size]


def test_write_and_read_back(tree: Tree) -> None:
    (tree / "small").write_bytes(b"hello")
    (tree / "large").write_bytes(pattern(5 * MIB + 17))
    (tree / "empty").touch()
    tree.commit_here()
    assert (tree / "small").read_bytes() == b"hello"
    assert (tree / "large").read_bytes() == pattern(5 * MIB + 17)
    assert (tree / "empty").read_bytes() == b""


def test_exclusive_create(tree: Tree) -> None:
    (tree / "f").write_bytes(b"1")
    tree.commit_here()
    with fails_with(errno.EEXIST):
        os.open(tree / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    (tree / "link").symlink_to("nowhere")
    with fails_with(errno.EEXIST):
        os.open(tree / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert (tree / "f").read_bytes() == b"1"


def test_open_errors(tree: Tree) -> None:
    (tree / "dir").mkdir()
    (tree / "file").write_bytes(b"x")
    (tree / "link").symlink_to("file")
    tree.commit_here()
    for path, flags, number in [
        ("absent", os.O_RDONLY, errno.ENOENT),
        ("absent/deep", os.O_CREAT | os.O_WRONLY, errno.ENOENT),
        ("dir", os.O_WRONLY, errno.EISDIR),
        ("file/deep", os.O_RDONLY, errno.ENOTDIR),
        ("file", os.O_RDONLY | os.O_DIRECTORY, errno.ENOTDIR),
        ("link", os.O_RDONLY | os.O_NOFOLLOW, errno.ELOOP),
    ]:
        with fails_with(number):
            os.open(tree / path, flags)


def test_truncating_open_of_existing_file(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(300 * KIB))
    tree.commit_here()
    (tree / "f").write_bytes(b"short")
    assert (tree / "f").stat().st_size == 5
    assert (tree / "f").read_bytes() == b"short"


def test_truncating_open_keeps_what_readers_hold(tree: Tree) -> None:
    (tree / "f").write_bytes(b"old content")
    tree.commit_here()
    with (tree / "f").open("rb") as reader:
        assert reader.read(3) == b"old"
        (tree / "new").write_bytes(b"new content")
        os.replace(tree / "new", tree / "f")
        assert reader.read() == b" content"
    assert (tree / "f").read_bytes() == b"new content"


def test_append(tree: Tree) -> None:
    (tree / "log").write_bytes(b"one\n")
    tree.commit_here()
    with (tree / "log").open("ab") as log:
        log.write(b"two\n")
    fd = os.open(tree / "log", os.O_WRONLY | os.O_APPEND)
    os.pwrite(fd, b"three\n", 0)  # Linux appends here, whatever the offset
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"four\n")
    os.close(fd)
    assert (tree / "log").read_bytes() == b"one\ntwo\nthree\nfour\n"


def test_positioned_reads_and_writes(tree: Tree) -> None:
    fd = os.open(tree / "f", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, pattern(256 * KIB, 2), 256 * KIB)
    os.pwrite(fd, pattern(256 * KIB, 1), 0)
    os.pwrite(fd, b"MIDDLE", 200 * KIB)
    assert os.pread(fd, 6, 200 * KIB) == b"MIDDLE"
    assert os.pread(fd, 10, 512 * KIB) == b""
    assert os.pread(fd, 100, 512 * KIB - 4) == pattern(256 * KIB, 2)[-4:]
    os.close(fd)
    tree.commit_here()
    want = bytearray(pattern(256 * KIB, 1) + pattern(256 * KIB, 2))
    want[200 * KIB : 200 * KIB + 6] = b"MIDDLE"
    assert (tree / "f").read_bytes() == want


def test_vectored_write_larger_than_one_request(tree: Tree) -> None:
    parts = [pattern(3 * MIB, seed) for seed in range(3)]
    fd = os.open(tree / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    assert os.writev(fd, parts) == 9 * MIB
    os.close(fd)
    assert (tree / "f").read_bytes() == b"".join(parts)


def test_holes_stay_holes(tree: Tree) -> None:
    with (tree / "sparse").open("wb") as file:
        file.truncate(200 * MIB)
        file.seek(100 * MIB)
        file.write(b"island" * 1000)
    tree.commit_here()
    assert (tree / "sparse").stat().st_size == 200 * MIB
    if tree.side == "committed":
        on_shared = (tree.pair.shared / tree.path.name / "sparse").stat()
        assert on_shared.st_blocks * 512 < MIB
    with (tree / "sparse").open("rb") as file:
        assert file.read(KIB) == bytes(KIB)
        assert os.pread(file.fileno(), 6, 100 * MIB) == b"island"
        assert os.pread(file.fileno(), 4, 200 * MIB - 4) == bytes(4)


def test_truncate_by_path_and_descriptor(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(100 * KIB))
    tree.commit_here()
    os.truncate(tree / "f", 10)
    assert (tree / "f").read_bytes() == pattern(10)
    with (tree / "f").open("r+b") as file:
        file.truncate(20)
    assert (tree / "f").read_bytes() == pattern(10) + bytes(10)
    with fails_with(errno.EISDIR):
        os.truncate(tree.path, 0)


def test_reopen_for_update(tree: Tree) -> None:
    (tree / "f").write_bytes(b"header" + bytes(10))
    tree.commit_here()
    with (tree / "f").open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"tail")
        file.seek(0)
        file.write(b"HEADER")
    with (tree / "f").open("ab") as file:
        file.write(b"!")
    assert (tree / "f").read_bytes() == b"HEADER" + bytes(10) + b"tail!"


def test_reader_sees_what_a_writer_wrote_before_close(tree: Tree) -> None:
    (tree / "f").write_bytes(b"first")
    tree.commit_here()
    with (tree / "f").open("r+b", buffering=0) as writer:
        writer.write(b"FIRST and more")
        assert (tree / "f").read_bytes() == b"FIRST and more"
        assert (tree / "f").stat().st_size == 14


def test_written_after_dup_and_close(tree: Tree) -> None:
    fd = os.open(tree / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    copy = os.dup(fd)
    os.write(fd, b"before ")
    os.close(fd)
    os.write(copy, b"after")
    os.close(copy)
    assert (tree / "f").read_bytes() == b"before after"


def test_written_by_forked_child_after_parent_closed(tree: Tree) -> None:
    fd = os.open(tree / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        os.read(go_read, 1)
        os.write(fd, b"child")
        os._exit(0)
    os.write(fd, b"parent ")
    os.close(fd)
    os.close(go_write)
    os.close(go_read)
    os.waitpid(child, 0)
    assert (tree / "f").read_bytes() == b"parent child"


def test_private_mapping_survives_replacement(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(2 * MIB, 1))
    tree.commit_here()
    with (tree / "f").open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    (tree / "f.new").write_bytes(pattern(2 * MIB, 9))
    os.replace(tree / "f.new", tree / "f")
    view[0:5] = b"local"
    assert view[5:] == pattern(2 * MIB, 1)[5:]
    view.close()
    assert (tree / "f").read_bytes() == pattern(2 * MIB, 9)


def test_shared_mapping_written_after_close(tree: Tree) -> None:
    with (tree / "f").open("w+b") as file:
        file.truncate(MIB)
        view = mmap.mmap(file.fileno(), MIB)
    view[0:5] = b"after"
    view[MIB - 5 : MIB] = b"close"
    view.flush()
    view.close()
    content = (tree / "f").read_bytes()
    assert content[:5] == b"after"
    assert content[-5:] == b"close"
    assert len(content) == MIB


def test_shared_mapping_of_existing_file(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(MIB))
    tree.commit_here()
    with (tree / "f").open("r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
        view[100:104] = b"edit"
        view.close()
    assert (tree / "f").read_bytes()[98:106] == pattern(MIB)[98:100] + b"edit" + pattern(MIB)[
        104:106
    ]


def test_shared_read_only_mapping(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(MIB))
    tree.commit_here()
    with (
        (tree / "f").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
    ):
        assert view[:] == pattern(MIB)


def test_fsync_of_files_and_directories(tree: Tree) -> None:
    with (tree / "f").open("wb") as file:
        file.write(b"x" * 1000)
        file.flush()
        os.fsync(file.fileno())
        file.write(b"y")
        file.flush()
        os.fdatasync(file.fileno())
    fd = os.open(tree.path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    assert (tree / "f").stat().st_size == 1001


def test_copying_calls(tree: Tree) -> None:
    (tree / "source").write_bytes(pattern(3 * MIB))
    tree.commit_here()
    source = os.open(tree / "source", os.O_RDONLY)
    target = os.open(tree / "ranged", os.O_WRONLY | os.O_CREAT, 0o644)
    left = 3 * MIB
    while left:
        left -= os.copy_file_range(source, target, left)
    os.close(target)
    os.lseek(source, 0, os.SEEK_SET)
    target = os.open(tree / "sent", os.O_WRONLY | os.O_CREAT, 0o644)
    offset = 0
    while offset < 3 * MIB:
        offset += os.sendfile(target, source, offset, 3 * MIB - offset)
    os.close(target)
    os.close(source)
    shutil.copy2(tree / "source", tree / "copied")
    for name in ("ranged", "sent", "copied"):
        assert (tree / name).read_bytes() == pattern(3 * MIB), name
    assert (tree / "copied").stat().st_mtime_ns == (tree / "source").stat().st_mtime_ns


def test_direct_io(tree: Tree) -> None:
    buffer = mmap.mmap(-1, MIB)
    buffer.write(pattern(MIB))
    fd = os.open(tree / "f", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
    assert os.write(fd, buffer) == MIB
    os.close(fd)
    with (tree / "f").open("ab") as file:
        file.write(b"unaligned tail")
    tree.commit_here()
    assert (tree / "f").read_bytes() == pattern(MIB) + b"unaligned tail"


def test_preallocation(tree: Tree) -> None:
    fd = os.open(tree / "f", os.O_CREAT | os.O_RDWR, 0o644)
    os.posix_fallocate(fd, 0, 64 * KIB)
    os.pwrite(fd, b"data", 0)
    os.close(fd)
    tree.commit_here()
    assert (tree / "f").read_bytes() == b"data" + bytes(64 * KIB - 4)


def test_wrong_direction(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    reading = os.open(tree / "f", os.O_RDONLY)
    writing = os.open(tree / "f", os.O_WRONLY)
    with fails_with(errno.EBADF):
        os.write(reading, b"y")
    with fails_with(errno.EBADF):
        os.read(writing, 1)
    with fails_with(errno.EINVAL):
        os.ftruncate(reading, 0)
    os.close(reading)
    os.close(writing)


def test_times_follow_writes(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    os.utime(tree / "f", ns=(10**18, 10**18))
    tree.commit_here()
    assert (tree / "f").stat().st_mtime_ns == 10**18
    (tree / "f").read_bytes()
    assert (tree / "f").stat().st_mtime_ns == 10**18
    with (tree / "f").open("ab") as file:
        file.write(b"y")
    assert (tree / "f").stat().st_mtime_ns > 10**18
    assert (tree / "f").stat().st_ctime_ns > 10**18


def test_inode_number_is_stable(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "dir").mkdir()
    before = [(tree / name).stat().st_ino for name in ("f", "dir")]
    tree.commit_here()
    os.rename(tree / "f", tree / "g")
    listed = {entry.name: entry.inode() for entry in os.scandir(tree.path)}
    assert [(tree / name).stat().st_ino for name in ("g", "dir")] == before
    assert [listed["g"], listed["dir"]] == before


def test_block_size_suits_large_reads(tree: Tree) -> None:
    (tree / "f").write_bytes(pattern(MIB))
    tree.commit_here()
    st = (tree / "f").stat()
    assert st.st_blocks * 512 >= MIB
    if tree.side != "plain":
        assert st.st_blksize >= 128 * KIB


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 64 * MIB - 1, 64 * MIB + 1])
def test_sizes_around_blocks_and_chunks(tree: Tree, size: int) -> None:
    (tree / "f").write_bytes(pattern(size))
    tree.commit_here()
    assert (tree / "f").stat().st_size == size
    assert (tree / "f").read_bytes() == pattern(size)


def test_execution_of_a_script(tree: Tree) -> None:
    script = tree / "run"
    script.write_text(f"#!{sys.executable}\nraise SystemExit(7)\n")
    script.chmod(0o755)
    tree.commit_here()
    assert subprocess.run([script], check=False).returncode == 7


def test_working_directory_inside(tree: Tree) -> None:
    (tree / "dir").mkdir()
    old = Path.cwd()
    os.chdir(tree / "dir")
    try:
        Path("f").write_bytes(b"relative")
        os.rename(tree / "dir", tree / "moved")
        Path("g").write_bytes(b"after the rename")
        assert Path("f").read_bytes() == b"relative"
    finally:
        os.chdir(old)
    assert sorted(os.listdir(tree / "moved")) == ["f", "g"]
