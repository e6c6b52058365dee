"""Content of files: written, appended, cut, opened again."""

from __future__ import annotations

import os

import pytest

from tests.behaviour.calls import Calls, error_of
from tests.behaviour.direct import Direct
from tierfs.model import Kind
from tierfs.namespace.content.descriptors import Descriptors


def test_create_write_read(fs: Calls) -> None:
    fs.write_file("f", b"one")
    fs.pause()
    assert fs.read_file("f") == b"one"
    at = fs.stat("f")
    assert (at.kind, at.size, at.mode, at.nlink) == (Kind.FILE, 3, 0o644, 1)


def test_write_at_offsets_leaves_zeros_between(fs: Calls) -> None:
    fd = fs.open("f", os.O_RDWR | os.O_CREAT)
    fs.pwrite(fd, b"end", 100_000)
    fs.pwrite(fd, b"start", 0)
    assert fs.fstat(fd).size == 100_003
    fs.close(fd)
    fs.pause()
    assert fs.read_file("f") == b"start" + bytes(99_995) + b"end"


def test_what_one_descriptor_writes_the_other_reads(fs: Calls) -> None:
    writer = fs.open("f", os.O_WRONLY | os.O_CREAT)
    reader = fs.open("f")
    fs.write(writer, b"seen before close")
    assert fs.pread(reader, 100, 0) == b"seen before close"
    fs.close(writer)
    fs.pause()
    assert fs.pread(reader, 100, 0) == b"seen before close"
    fs.close(reader)


def test_append(fs: Calls) -> None:
    fs.write_file("f", b"one")
    fs.pause()
    fs.append("f", b" two")
    fs.append("f", b" three")
    assert fs.read_file("f") == b"one two three"


def test_open_with_truncation(fs: Calls) -> None:
    fs.write_file("f", b"a long content")
    fs.pause()
    fs.write_file("f", b"short")
    assert fs.read_file("f") == b"short"


def test_truncation_alone_empties_the_file(fs: Calls) -> None:
    fs.write_file("f", b"content")
    fs.pause()
    fs.close(fs.open("f", os.O_WRONLY | os.O_TRUNC))
    assert fs.read_file("f") == b""


def test_truncate_by_name_shorter_and_longer(fs: Calls) -> None:
    fs.write_file("f", b"0123456789")
    fs.pause()
    fs.truncate("f", 4)
    assert fs.read_file("f") == b"0123"
    fs.truncate("f", 6)
    assert fs.read_file("f") == b"0123\0\0"


def test_truncate_by_descriptor(fs: Calls) -> None:
    fs.write_file("f", b"0123456789")
    fs.pause()
    fd = fs.open("f", os.O_RDWR)
    fs.ftruncate(fd, 3)
    assert (fs.fstat(fd).size, fs.stat("f").size) == (3, 3)
    fs.close(fd)
    assert fs.read_file("f") == b"012"


def test_copy_up_keeps_what_is_not_written(fs: Calls) -> None:
    fs.write_file("f", bytes(200_000) + b"tail")
    fs.chmod("f", 0o640)
    fs.setxattr("f", "user.mark", b"kept")
    fs.pause()
    inode = fs.inode("f")
    fd = fs.open("f", os.O_RDWR)
    fs.pwrite(fd, b"head", 0)
    fs.close(fd)
    assert fs.read_file("f") == b"head" + bytes(199_996) + b"tail"
    assert fs.stat("f").mode == 0o640
    assert fs.getxattr("f", "user.mark") == b"kept"
    assert fs.inode("f") == inode


def test_reader_sees_what_a_later_writer_writes(fs: Calls) -> None:
    fs.write_file("f", b"before")
    fs.pause()
    reader = fs.open("f")
    writer = fs.open("f", os.O_RDWR)
    fs.pwrite(writer, b"AFTER!", 0)
    assert fs.pread(reader, 100, 0) == b"AFTER!"
    fs.close(writer)
    fs.close(reader)


def test_opened_for_writing_and_closed_unchanged(fs: Calls) -> None:
    fs.write_file("f", b"same")
    fs.pause()
    item = fs.item("f")
    fs.close(fs.open("f", os.O_RDWR))
    assert fs.item("f") == item
    assert fs.read_file("f") == b"same"


def test_reopened_again_and_again(fs: Calls) -> None:
    for round_ in range(6):
        fs.write_file("f", b"x" * round_)
        if round_ == 3:
            fs.pause()
        fs.append("f", b"|")
        assert fs.read_file("f") == b"x" * round_ + b"|"


def test_fsync_of_an_open_file(fs: Calls) -> None:
    fd = fs.open("f", os.O_WRONLY | os.O_CREAT)
    fs.write(fd, b"synced")
    fs.fsync(fd)
    fs.write(fd, b" and more")
    fs.close(fd)
    fs.pause()
    assert fs.read_file("f") == b"synced and more"


def test_exclusive_create(fs: Calls) -> None:
    fs.write_file("f", b"there")
    fs.pause()
    assert error_of(fs.open, "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL) == "EEXIST"
    assert fs.read_file("f") == b"there"


def test_directory_is_not_opened_for_writing(fs: Calls) -> None:
    fs.mkdir("d")
    fs.pause()
    assert error_of(fs.open, "d", os.O_WRONLY) == "EISDIR"
    assert error_of(fs.open, "absent") == "ENOENT"


@pytest.mark.parametrize("close_first", ["reader", "writer"])
def test_unlinked_while_open(fs: Calls, close_first: str) -> None:
    fs.write_file("f", b"content")
    fs.pause()
    reader, writer = fs.open("f"), fs.open("f", os.O_RDWR)
    fs.unlink("f")
    assert not fs.exists("f")
    fs.pwrite(writer, b"CON", 0)
    assert fs.pread(reader, 100, 0) == b"CONtent"
    assert fs.fstat(reader).nlink == 0
    fs.write_file("f", b"another")
    first, last = (reader, writer) if close_first == "reader" else (writer, reader)
    fs.close(first)
    assert fs.pread(last, 100, 0) == b"CONtent"
    fs.close(last)
    assert fs.read_file("f") == b"another"


def test_unlinked_before_the_first_close(fs: Calls) -> None:
    fd = fs.open("f", os.O_RDWR | os.O_CREAT)
    fs.write(fd, b"never seen by name")
    fs.unlink("f")
    fs.pause()
    assert fs.pread(fd, 100, 0) == b"never seen by name"
    fs.close(fd)
    assert fs.listdir() == []


def test_written_through_two_descriptors(fs: Calls) -> None:
    one = fs.open("f", os.O_RDWR | os.O_CREAT)
    other = fs.open("f", os.O_RDWR)
    fs.pwrite(one, b"aa", 0)
    fs.close(one)
    fs.pwrite(other, b"bb", 2)
    fs.close(other)
    assert fs.read_file("f") == b"aabb"


def test_open_files_are_limited_by_the_descriptors_they_take(direct: Direct) -> None:
    """All that have one file open share its own (LTP fcntl12 opens one until there are no more)."""
    direct.run_sync(lambda: setattr(direct.fs.files, "_descriptors", Descriptors(6)))
    direct.write_file("shared", b"shared")
    direct.settle()
    fds = [direct.open("one", os.O_RDWR | os.O_CREAT)]
    fds += [direct.open("one", os.O_RDWR) for _ in range(50)]
    fds += [direct.open(f"f{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
    fds.append(direct.open("shared"))
    for path in ("more", "shared", "one"):
        assert error_of(direct.open, path, os.O_RDWR | os.O_CREAT) == "EMFILE"
    direct.close(fds.pop(-2))
    fds.append(direct.open("more", os.O_RDWR | os.O_CREAT))
    for number, fd in enumerate(fds):
        assert direct.pread(fd, 10, 0) == (b"shared" if number == len(fds) - 2 else b"")
        direct.close(fd)


def nameless(fs: Calls, content: bytes) -> int:
    """A file of O_TMPFILE in the directory of the case."""
    fd = fs.open("", os.O_TMPFILE | os.O_RDWR)
    fs.write(fd, content)
    return fd


def test_a_file_without_a_name_is_gone_with_its_last_descriptor(fs: Calls) -> None:
    fd = nameless(fs, b"content")
    fs.pause()
    fs.fsync(fd)
    at = fs.fstat(fd)
    assert (at.kind, at.size, at.mode, at.nlink) == (Kind.FILE, 7, 0o644, 0)
    assert fs.listdir() == []
    assert fs.pread(fd, 100, 0) == b"content"
    fs.close(fd)
    assert fs.listdir() == []


def test_a_file_without_a_name_gets_its_first(fs: Calls) -> None:
    """What publishes a file in one step: it is there whole or not at all."""
    fs.mkdir("d")
    fs.write_file("taken", b"other")
    fs.pause()
    fd = nameless(fs, b"content")
    for path in ("taken", "d"):
        assert error_of(fs.link_open, fd, path) == "EEXIST"
    fs.link_open(fd, "d/named")
    assert (fs.stat("d/named").nlink, fs.fstat(fd).nlink) == (1, 1)
    assert fs.read_file("d/named") == b"content"
    fs.pwrite(fd, b"C", 0)
    fs.close(fd)
    fs.pause()
    assert fs.read_file("d/named") == b"Content"
    fs.link("d/named", "second")
    assert fs.stat("second").nlink == 2
    assert fs.listdir("d") == ["named"]


def test_a_name_is_given_when_the_file_is_open_for_reading_alone(fs: Calls) -> None:
    fd = nameless(fs, b"content")
    if isinstance(fs, Direct):
        fs.link_open(fd, "a")
    else:
        reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        fs.close(fd)
        fd = reader
        fs.link_open(fd, "a")
    fs.close(fd)
    fs.settle()
    assert fs.read_file("a") == b"content"


def test_a_named_file_is_renamed_and_removed_as_any(fs: Calls) -> None:
    """While it is still open."""
    for name in ("a", "b", "c"):
        fd = nameless(fs, name.encode())
        fs.link_open(fd, name)
        if name == "a":
            fs.rename("a", "moved")
        elif name == "b":
            fs.unlink("b")
            assert fs.fstat(fd).nlink == 0
        fs.close(fd)
        fs.pause()
    assert sorted(fs.listdir()) == ["c", "moved"]
    assert fs.read_file("moved") == b"a"
