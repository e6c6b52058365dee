"""Names and links: each case on plain XFS first, then on the mount."""

from __future__ import annotations

import errno
import os
import stat

from tests.harness.errors import fails_with
from tests.harness.parity import Tree, names
from tests.harness.renames import RENAME_NOREPLACE, renameat2


def test_rename_file(tree: Tree) -> None:
    (tree / "a").write_bytes(b"content")
    tree.commit_here()
    os.rename(tree / "a", tree / "b")
    assert names(tree.path) == ["b"]
    assert (tree / "b").read_bytes() == b"content"
    with fails_with(errno.ENOENT):
        (tree / "a").stat()


def test_rename_over_existing_file(tree: Tree) -> None:
    (tree / "a").write_bytes(b"new")
    (tree / "b").write_bytes(b"old")
    tree.commit_here()
    with (tree / "b").open("rb") as old:
        os.rename(tree / "a", tree / "b")
        assert old.read() == b"old"
    assert names(tree.path) == ["b"]
    assert (tree / "b").read_bytes() == b"new"


def test_rename_while_open_for_writing(tree: Tree) -> None:
    with (tree / ".tmpAbCdEf").open("w+b") as file:
        file.truncate(1000)
        file.write(b"header")
        os.rename(tree / ".tmpAbCdEf", tree / "model.safetensors")
        file.write(b" and more")
    tree.commit_here()
    assert names(tree.path) == ["model.safetensors"]
    content = (tree / "model.safetensors").read_bytes()
    assert content == b"header and more" + bytes(1000 - 15)


def test_rename_chain_onto_one_name(tree: Tree) -> None:
    for version in range(5):
        (tree / "latest.tmp").write_bytes(b"version %d" % version)
        os.replace(tree / "latest.tmp", tree / "latest")
        if version == 2:
            tree.commit_here()
    assert (tree / "latest").read_bytes() == b"version 4"
    assert names(tree.path) == ["latest"]


def test_swap_through_a_third_name(tree: Tree) -> None:
    (tree / "a").write_bytes(b"A")
    (tree / "b").write_bytes(b"B")
    tree.commit_here()
    os.rename(tree / "a", tree / "c")
    os.rename(tree / "b", tree / "a")
    os.rename(tree / "c", tree / "b")
    assert ((tree / "a").read_bytes(), (tree / "b").read_bytes()) == (b"B", b"A")


def test_rename_directory_with_everything_in_it(tree: Tree) -> None:
    (tree / "step.tmp" / "item").mkdir(parents=True)
    (tree / "step.tmp" / "item" / "shard").write_bytes(b"shard")
    (tree / "step.tmp" / "meta").write_bytes(b"meta")
    tree.commit_here()
    with (tree / "step.tmp" / "open").open("wb") as file:
        file.write(b"before ")
        os.rename(tree / "step.tmp", tree / "step")
        file.write(b"after")
    (tree / "step" / "late").write_bytes(b"late")
    os.rename(tree / "step" / "item", tree / "step" / "default")
    assert names(tree / "step") == ["default", "late", "meta", "open"]
    assert (tree / "step" / "open").read_bytes() == b"before after"
    assert (tree / "step" / "default" / "shard").read_bytes() == b"shard"
    assert not (tree / "step.tmp").exists()


def test_directory_name_reused_after_rename(tree: Tree) -> None:
    (tree / "d").mkdir()
    (tree / "d" / "first").write_bytes(b"1")
    tree.commit_here()
    os.rename(tree / "d", tree / "e")
    (tree / "d").mkdir()
    (tree / "d" / "second").write_bytes(b"2")
    assert names(tree / "d") == ["second"]
    assert names(tree / "e") == ["first"]


def test_rename_refusals(tree: Tree) -> None:
    for name in ("empty", "full"):
        (tree / name).mkdir()
    (tree / "full" / "f").write_bytes(b"x")
    (tree / "other").mkdir()
    (tree / "file").write_bytes(b"y")
    tree.commit_here()
    with fails_with(errno.ENOTEMPTY, errno.EEXIST):  # POSIX allows both; XFS says EEXIST
        os.rename(tree / "empty", tree / "full")
    for source, target, number in [
        ("file", "full", errno.EISDIR),
        ("empty", "file", errno.ENOTDIR),
        ("absent", "x", errno.ENOENT),
        ("empty", "absent/x", errno.ENOENT),
        ("full", "full/inside", errno.EINVAL),
        ("file", "file/x", errno.ENOTDIR),
    ]:
        with fails_with(number):
            os.rename(tree / source, tree / target)
    os.rename(tree / "full", tree / "empty")
    assert names(tree.path) == ["empty", "file", "other"]
    assert names(tree / "empty") == ["f"]


def test_rename_onto_itself_and_onto_a_hard_link(tree: Tree) -> None:
    (tree / "a").write_bytes(b"x")
    tree.commit_here()
    os.rename(tree / "a", tree / "a")
    os.link(tree / "a", tree / "b")
    os.rename(tree / "a", tree / "b")  # POSIX: both names stay
    assert names(tree.path) == ["a", "b"]


def test_rename_without_replacing(tree: Tree) -> None:
    (tree / "a").write_bytes(b"a")
    (tree / "b").write_bytes(b"b")
    tree.commit_here()
    with fails_with(errno.EEXIST):
        renameat2(tree / "a", tree / "b", RENAME_NOREPLACE)
    renameat2(tree / "a", tree / "c", RENAME_NOREPLACE)
    assert names(tree.path) == ["b", "c"]


def test_unlink(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "d").mkdir()
    tree.commit_here()
    with fails_with(errno.EISDIR):
        os.unlink(tree / "d")
    with fails_with(errno.ENOENT):
        os.unlink(tree / "absent")
    os.unlink(tree / "f")
    assert names(tree.path) == ["d"]
    (tree / "f").write_bytes(b"made again")
    assert (tree / "f").read_bytes() == b"made again"


def test_unlink_while_open(tree: Tree) -> None:
    (tree / "f").write_bytes(b"still ")
    tree.commit_here()
    with (tree / "f").open("r+b", buffering=0) as file:
        os.unlink(tree / "f")
        assert names(tree.path) == []
        file.seek(0, os.SEEK_END)
        file.write(b"here")
        file.seek(0)
        assert file.read() == b"still here"
        assert os.fstat(file.fileno()).st_nlink == 0
        (tree / "f").write_bytes(b"another file")
    assert (tree / "f").read_bytes() == b"another file"


def test_what_is_open_and_gone_can_still_be_asked(tree: Tree) -> None:
    """By a descriptor that reads, one that writes, one that does neither, and of a directory."""
    (tree / "f").write_bytes(b"content")
    (tree / "g").write_bytes(b"other")
    (tree / "h").write_bytes(b"replaced")
    (tree / "d").mkdir()
    os.chmod(tree / "d", 0o751)
    tree.commit_here()
    reads = os.open(tree / "f", os.O_RDONLY)
    path = os.open(tree / "g", os.O_PATH)
    old = os.open(tree / "h", os.O_PATH)
    directory = os.open(tree / "d", os.O_RDONLY | os.O_DIRECTORY)
    os.unlink(tree / "f")
    os.rename(tree / "g", tree / "h")
    os.unlink(tree / "h")
    os.rmdir(tree / "d")
    for _ in range(2):
        gone = [os.fstat(fd) for fd in (reads, path, old, directory)]
        assert [st.st_nlink for st in gone] == [0, 0, 0, 0]
        assert [st.st_size for st in gone[:3]] == [7, 5, 8]
        assert stat.S_IMODE(gone[3].st_mode) == 0o751
        tree.commit_here()
    os.fchmod(reads, 0o604)
    os.setxattr(reads, "user.a", b"b")
    assert (stat.S_IMODE(os.fstat(reads).st_mode), os.getxattr(reads, "user.a")) == (0o604, b"b")
    assert os.read(reads, 10) == b"content"
    assert os.listdir(directory) == []
    with fails_with(errno.ENOENT):
        os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
    for fd in (reads, path, old, directory):
        os.close(fd)


def test_symlinks(tree: Tree) -> None:
    (tree / "step_1").mkdir()
    (tree / "step_1" / "f").write_bytes(b"one")
    (tree / "step_2").mkdir()
    (tree / "step_2" / "f").write_bytes(b"two")
    (tree / "latest").symlink_to("step_1")
    (tree / "dangling").symlink_to("not/there yet")
    tree.commit_here()
    assert os.readlink(tree / "latest") == "step_1"
    assert (tree / "latest" / "f").read_bytes() == b"one"
    with fails_with(errno.ENOENT):
        (tree / "dangling").stat()
    (tree / "latest.tmp").symlink_to("step_2")
    os.replace(tree / "latest.tmp", tree / "latest")
    assert (tree / "latest" / "f").read_bytes() == b"two"
    (tree / "dangling").unlink()
    (tree / "dangling").symlink_to("step_2/f")
    assert (tree / "dangling").read_bytes() == b"two"
    st = (tree / "latest").lstat()
    assert stat.S_ISLNK(st.st_mode)
    assert st.st_size == len("step_2")


def test_symlink_loop_and_refusals(tree: Tree) -> None:
    (tree / "loop").symlink_to("loop")
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    with fails_with(errno.ELOOP):
        (tree / "loop").read_bytes()
    with fails_with(errno.EEXIST):
        os.symlink("x", tree / "f")
    with fails_with(errno.EINVAL):
        os.readlink(tree / "f")
    with fails_with(errno.ENOENT):
        os.symlink("", tree / "empty")
    os.symlink("x" * 1000, tree / "long")  # no name is that long
    assert os.readlink(tree / "long") == "x" * 1000


def test_hard_links(tree: Tree) -> None:
    (tree / "a").write_bytes(b"shared")
    tree.commit_here()
    os.link(tree / "a", tree / "b")
    assert (tree / "a").stat().st_nlink == 2
    assert (tree / "a").stat().st_ino == (tree / "b").stat().st_ino
    with (tree / "b").open("ab") as file:
        file.write(b" content")
    assert (tree / "a").read_bytes() == b"shared content"
    with fails_with(errno.EEXIST):
        os.link(tree / "a", tree / "b")
    (tree / "d").mkdir()
    with fails_with(errno.EPERM):
        os.link(tree / "d", tree / "e")
    os.unlink(tree / "a")
    assert (tree / "b").stat().st_nlink == 1
    assert (tree / "b").read_bytes() == b"shared content"


def test_create_if_absent_by_link(tree: Tree) -> None:
    (tree / "key.partial").write_bytes(b"value")
    os.link(tree / "key.partial", tree / "key")
    os.unlink(tree / "key.partial")
    tree.commit_here()
    assert names(tree.path) == ["key"]
    assert (tree / "key").read_bytes() == b"value"
    assert (tree / "key").stat().st_nlink == 1


def test_longest_and_strangest_names(tree: Tree) -> None:
    base = os.fsencode(tree.path)
    odd = [b"x" * 255, b"\xff\xfe not utf-8 \x80", b" ", b"new\nline", b"tab\t*?[]'\"\\"]
    odd.append("日本".encode())
    for name in odd:
        with open(os.path.join(base, name), "wb") as file:
            file.write(name)
    tree.commit_here()
    assert sorted(os.listdir(base)) == sorted(odd)
    for name in odd:
        with open(os.path.join(base, name), "rb") as file:
            assert file.read() == name
    with fails_with(errno.ENAMETOOLONG):
        (tree / ("y" * 256)).write_bytes(b"")
    with fails_with(errno.ENAMETOOLONG):
        (tree / ("y" * 256)).stat()


def test_longest_target_of_a_symlink(tree: Tree) -> None:
    """As long as the shared file system takes: on XFS 1023 bytes."""
    longest = "t" * 1023
    os.symlink(longest, tree / "link")
    with fails_with(errno.ENAMETOOLONG):
        os.symlink(longest + "t", tree / "longer")
    tree.commit_here()
    assert os.readlink(tree / "link") == longest
    assert names(tree.path) == ["link"]


def test_rename_between_directories(tree: Tree) -> None:
    (tree / "a").mkdir()
    (tree / "b").mkdir()
    (tree / "a" / "f").write_bytes(b"f")
    (tree / "a" / "sub").mkdir()
    (tree / "a" / "sub" / "g").write_bytes(b"g")
    tree.commit_here()
    os.rename(tree / "a" / "f", tree / "b" / "f")
    os.rename(tree / "a" / "sub", tree / "b" / "sub")
    assert names(tree / "a") == []
    assert names(tree / "b") == ["f", "sub"]
    assert (tree / "b" / "sub" / "g").read_bytes() == b"g"
    os.rmdir(tree / "a")
