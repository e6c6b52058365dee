"""Names: made, moved, taken away, and listed."""

from __future__ import annotations

import os

import pytest

from tests.behaviour.calls import Calls, error_of
from tierfs.model import Kind


def test_rename_file(fs: Calls) -> None:
    fs.write_file("old", b"content")
    fs.pause()
    inode = fs.inode("old")
    fs.rename("old", "new")
    assert fs.listdir() == ["new"]
    assert fs.read_file("new") == b"content"
    assert fs.inode("new") == inode


def test_rename_over_existing(fs: Calls) -> None:
    fs.write_file("new", b"the one before")
    fs.pause()
    fs.write_file("old", b"content")
    fs.rename("old", "new")
    assert fs.listdir() == ["new"]
    assert fs.read_file("new") == b"content"


def test_rename_committed_over_committed(fs: Calls) -> None:
    fs.write_file("a", b"a")
    fs.write_file("b", b"b")
    fs.pause()
    fs.rename("a", "b")
    assert fs.tree().keys() == {"b"}
    assert fs.read_file("b") == b"a"
    fs.write_file("a", b"again")
    assert fs.read_file("a") == b"again"


def test_rename_keeps_an_open_target(fs: Calls) -> None:
    fs.write_file("a", b"a")
    fs.write_file("b", b"b")
    fs.pause()
    held = fs.open("b")
    fs.rename("a", "b")
    assert fs.pread(held, 10, 0) == b"b"
    fs.close(held)
    assert fs.read_file("b") == b"a"


def test_rename_while_open_for_writing(fs: Calls) -> None:
    fs.write_file("a", b"12345")
    fs.pause()
    fd = fs.open("a", os.O_RDWR)
    fs.pwrite(fd, b"x", 0)
    fs.rename("a", "b")
    fs.pwrite(fd, b"y", 1)
    fs.close(fd)
    assert fs.listdir() == ["b"]
    assert fs.read_file("b") == b"xy345"


def test_new_file_renamed_before_its_close(fs: Calls) -> None:
    fs.mkdir("d")
    fs.pause()
    fd = fs.open("a", os.O_WRONLY | os.O_CREAT)
    fs.write(fd, b"one")
    fs.rename("a", "d/b")
    fs.write(fd, b" two")
    fs.close(fd)
    assert fs.tree().keys() == {"d", "d/b"}
    assert fs.read_file("d/b") == b"one two"


def test_rename_there_and_back(fs: Calls) -> None:
    fs.write_file("a", b"content")
    fs.pause()
    for _ in range(3):
        fs.rename("a", "b")
        fs.rename("b", "a")
    assert fs.listdir() == ["a"]
    assert fs.read_file("a") == b"content"


def test_swap_by_a_third_name(fs: Calls) -> None:
    fs.write_file("a", b"a")
    fs.write_file("b", b"b")
    fs.pause()
    fs.rename("a", "t")
    fs.rename("b", "a")
    fs.rename("t", "b")
    assert (fs.read_file("a"), fs.read_file("b")) == (b"b", b"a")
    assert sorted(fs.listdir()) == ["a", "b"]


def test_rename_directory_with_children(fs: Calls) -> None:
    fs.mkdir("d")
    fs.mkdir("d/inner")
    fs.write_file("d/inner/committed", b"1")
    fs.pause()
    fs.write_file("d/inner/pending", b"2")
    fs.rename("d", "e")
    fs.write_file("e/inner/later", b"3")
    assert not fs.exists("d")
    assert fs.tree().keys() == {
        "e", "e/inner", "e/inner/committed", "e/inner/pending", "e/inner/later",
    }  # fmt: skip
    assert fs.read_file("e/inner/pending") == b"2"


def test_rename_directory_into_another_and_use_both(fs: Calls) -> None:
    fs.mkdir("a")
    fs.mkdir("b")
    fs.write_file("a/f", b"1")
    fs.pause()
    fs.rename("a", "b/a")
    fs.rename("b", "c")
    fs.write_file("c/a/g", b"2")
    fs.mkdir("b")
    fs.write_file("b/new", b"3")
    assert fs.tree().keys() == {"b", "b/new", "c", "c/a", "c/a/f", "c/a/g"}


def test_rename_directory_over_empty_one(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("d/f", b"1")
    fs.mkdir("empty")
    fs.pause()
    fs.rename("d", "empty")
    assert fs.tree().keys() == {"empty", "empty/f"}


def test_rename_refusals(fs: Calls) -> None:
    fs.mkdir("d")
    fs.mkdir("d/e")
    fs.write_file("f", b"1")
    fs.mkdir("full")
    fs.write_file("full/x", b"1")
    fs.pause()
    assert error_of(fs.rename, "absent", "x") == "ENOENT"
    assert error_of(fs.rename, "d", "f") == "ENOTDIR"
    assert error_of(fs.rename, "f", "d") == "EISDIR"
    assert error_of(fs.rename, "d", "full") == "ENOTEMPTY"
    assert error_of(fs.rename, "d", "d/e/x") == "EINVAL"
    assert fs.tree().keys() == {"d", "d/e", "f", "full", "full/x"}


def test_unlink_and_create_again(fs: Calls) -> None:
    fs.write_file("f", b"first")
    fs.pause()
    fs.unlink("f")
    assert not fs.exists("f")
    assert fs.listdir() == []
    fs.write_file("f", b"second")
    assert fs.read_file("f") == b"second"
    fs.unlink("f")
    assert error_of(fs.unlink, "f") == "ENOENT"
    assert error_of(fs.open, "f") == "ENOENT"


def test_whiteout_hides_what_the_shared_tier_still_has(fs: Calls) -> None:
    fs.mkdir("d")
    for name in "abc":
        fs.write_file(f"d/{name}", name.encode())
    fs.pause()
    fs.unlink("d/b")
    assert sorted(fs.listdir("d")) == ["a", "c"]
    assert error_of(fs.stat, "d/b") == "ENOENT"
    fs.drop_caches()
    assert error_of(fs.stat, "d/b") == "ENOENT"


def test_rmdir(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("d/f", b"1")
    fs.pause()
    assert error_of(fs.rmdir, "d") == "ENOTEMPTY"
    assert error_of(fs.unlink, "d") == "EISDIR"
    assert error_of(fs.rmdir, "d/f") == "ENOTDIR"
    fs.unlink("d/f")
    fs.rmdir("d")
    assert not fs.exists("d")
    assert error_of(fs.write_file, "d/g", b"") == "ENOENT"


def test_removed_directory_made_again_is_empty(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("d/old", b"1")
    fs.setxattr("d", "user.old", b"1")
    fs.chmod("d", 0o700)
    fs.pause()
    fs.unlink("d/old")
    fs.rmdir("d")
    fs.mkdir("d")
    assert fs.listdir("d") == []
    assert fs.listxattr("d") == []
    assert fs.stat("d").mode == 0o755
    fs.write_file("d/new", b"2")
    assert fs.tree().keys() == {"d", "d/new"}


def test_directory_replaced_by_file_and_file_by_directory(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("f", b"1")
    fs.pause()
    fs.rmdir("d")
    fs.write_file("d", b"now a file")
    fs.unlink("f")
    fs.mkdir("f")
    assert (fs.stat("d").kind, fs.stat("f").kind) == (Kind.FILE, Kind.DIRECTORY)
    fs.write_file("f/below", b"2")


def test_link(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("a", b"content")
    fs.pause()
    fs.link("a", "d/b")
    assert (fs.stat("a").nlink, fs.stat("d/b").nlink) == (2, 2)
    assert fs.inode("a") == fs.inode("d/b")
    assert error_of(fs.link, "a", "d/b") == "EEXIST"
    fs.unlink("a")
    assert fs.read_file("d/b") == b"content"
    assert fs.stat("d/b").nlink == 1


def test_written_through_one_of_two_names(fs: Calls) -> None:
    fs.write_file("a", b"content")
    fs.link("a", "b")
    fs.pause()
    fs.append("b", b"!")
    assert (fs.read_file("a"), fs.read_file("b")) == (b"content!", b"content!")
    assert fs.inode("a") == fs.inode("b")


def test_one_of_two_names_renamed(fs: Calls) -> None:
    fs.write_file("a", b"content")
    fs.pause()
    fs.link("a", "b")
    fs.rename("b", "c")
    fs.chmod("a", 0o600)
    assert (fs.stat("a").nlink, fs.stat("c").mode) == (2, 0o600)
    assert sorted(fs.listdir()) == ["a", "c"]


def test_rename_over_a_name_of_the_same_file_does_nothing(fs: Calls) -> None:
    fs.write_file("a", b"content")
    fs.link("a", "b")
    fs.pause()
    fs.rename("a", "b")
    assert sorted(fs.listdir()) == ["a", "b"]


def test_symlinks(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("d/f", b"content")
    fs.symlink("d", "way")
    fs.pause()
    fs.symlink("d/f", "file")
    fs.symlink("nowhere", "dangling")
    assert fs.read_file("way/f") == b"content"
    assert fs.read_file("file") == b"content"
    assert fs.readlink("dangling") == "nowhere"
    assert error_of(fs.open, "dangling") == "ENOENT"
    assert fs.stat("file").kind is Kind.SYMLINK
    assert error_of(fs.readlink, "d") == "EINVAL"


def test_symlink_replaced_by_rename(fs: Calls) -> None:
    fs.symlink("one", "latest")
    fs.pause()
    fs.symlink("two", "latest.tmp")
    fs.rename("latest.tmp", "latest")
    assert fs.readlink("latest") == "two"
    assert fs.listdir() == ["latest"]
    fs.unlink("latest")
    assert not fs.exists("latest")


def test_symlink_loop(fs: Calls) -> None:
    fs.symlink("b", "a")
    fs.symlink("a", "b")
    fs.pause()
    assert error_of(fs.open, "a") == "ELOOP"


def test_names_that_are_no_text(fs: Calls) -> None:
    names = ["sp ace", "new\nline", os.fsdecode(b"\xff\xfe"), "ü" * 100, "x" * 255]
    for name in names:
        fs.write_file(name, b"1")
    fs.pause()
    assert sorted(fs.listdir()) == sorted(names)
    assert error_of(fs.write_file, "x" * 256, b"") == "ENAMETOOLONG"


def test_listing_while_everything_is_committed(fs: Calls) -> None:
    names = {f"f{index:03}" for index in range(150)}
    for name in sorted(names)[:75]:
        fs.write_file(name, b"1")
    fs.pause()
    for name in sorted(names)[75:]:
        fs.write_file(name, b"2")
        if name.endswith("0"):
            seen = fs.listdir()
            assert len(seen) == len(set(seen)), "a name twice"
            assert set(seen) == {n for n in names if n <= name}
    assert set(fs.listdir()) == names


def test_forgotten_and_looked_up_again(fs: Calls) -> None:
    fs.mkdir("d")
    fs.write_file("d/f", b"content")
    fs.symlink("d/f", "s")
    fs.pause()
    fs.chmod("d/f", 0o600)
    before = fs.tree()
    held = fs.open("d/f")
    fs.drop_caches()
    assert fs.tree() == before
    assert fs.pread(held, 100, 0) == b"content"
    fs.close(held)
    fs.drop_caches()
    assert fs.tree() == before


@pytest.mark.parametrize("depth", [12])
def test_deep_tree_removed_from_below(fs: Calls, depth: int) -> None:
    paths = ["/".join("d" * (level + 1)) for level in range(depth)]
    for path in paths:
        fs.mkdir(path)
        fs.write_file(f"{path}/f", path.encode())
    fs.pause()
    for path in reversed(paths[1:]):
        fs.unlink(f"{path}/f")
        fs.rmdir(path)
    assert fs.tree().keys() == {"d", "d/f"}


def test_one_of_two_names_unlinked_and_the_other_used(fs: Calls) -> None:
    fs.write_file("a", b"content")
    fs.link("a", "b")
    fs.pause()
    fs.drop_caches()
    fd = fs.open("a")  # of two names only this one was looked at
    fs.chmod("a", 0o600)
    fs.unlink("a")
    assert fs.fstat(fd).nlink == 1
    assert (fs.stat("b").mode, fs.stat("b").nlink) == (0o600, 1)
    fs.pause()
    fs.chmod("b", 0o640)
    assert fs.read_file("b") == b"content"
    fs.close(fd)
