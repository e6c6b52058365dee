"""Owners, modes, times, xattrs and ACLs: each case on plain XFS first, then on the mount."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from tests.harness.errors import fails_with
from tests.harness.parity import Tree
from tests.harness.users import ALICE, BOB, NOBODY, as_user

NS = 1_234_567_890_123_456_789


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_all(tree: Tree, name: str = "open", bits: int = 0o777) -> Path:
    """A directory in which other users may write."""
    path = tree / name
    path.mkdir()
    path.chmod(bits)
    return path


def test_modes(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "d").mkdir()
    assert (mode(tree / "f"), mode(tree / "d")) == (0o644, 0o755)
    tree.commit_here()
    (tree / "f").chmod(0o400)
    (tree / "d").chmod(0o2750)
    assert (mode(tree / "f"), mode(tree / "d")) == (0o400, 0o2750)


def test_umask_applies(tree: Tree) -> None:
    old = os.umask(0o077)
    try:
        os.close(os.open(tree / "f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(tree / "d", 0o777)
    finally:
        os.umask(old)
    tree.commit_here()
    assert (mode(tree / "f"), mode(tree / "d")) == (0o600, 0o700)


def test_chmod_and_utimens_after_close(tree: Tree) -> None:
    with (tree / "epoch=1-step=2.ckpt").open("wb") as file:
        file.write(b"x" * 1000)
    os.utime(tree / "epoch=1-step=2.ckpt", ns=(NS, NS + 1))
    (tree / "epoch=1-step=2.ckpt").chmod(0o600)
    tree.commit_here()
    (tree / "epoch=1-step=2.ckpt").chmod(0o644)
    st = (tree / "epoch=1-step=2.ckpt").stat()
    assert (st.st_mtime_ns, stat.S_IMODE(st.st_mode)) == (NS + 1, 0o644)


def test_attributes_of_a_file_that_is_open_for_writing_and_not_written(tree: Tree) -> None:
    (tree / "touched").write_bytes(b"x")
    (tree / "moded").write_bytes(b"y")
    tree.commit_here()
    for name, change in (
        ("touched", lambda fd: os.utime(fd, ns=(NS, NS + 1))),
        ("moded", lambda fd: os.fchmod(fd, 0o640)),
    ):
        fd = os.open(tree / name, os.O_WRONLY)  # as touch(1)
        change(fd)
        os.close(fd)
    tree.commit_here()
    assert (tree / "touched").stat().st_mtime_ns == NS + 1
    assert mode(tree / "moded") == 0o640


def test_owner_of_a_file_written_by_root(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    os.chown(tree / "f", ALICE, BOB)
    st = (tree / "f").stat()
    assert (st.st_uid, st.st_gid) == (ALICE, BOB)
    os.symlink("f", tree / "link")
    os.lchown(tree / "link", BOB, ALICE)
    st = (tree / "link").lstat()
    assert (st.st_uid, st.st_gid) == (BOB, ALICE)
    assert (tree / "f").stat().st_uid == ALICE


def test_times_of_every_kind(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "d").mkdir()
    (tree / "l").symlink_to("f")
    tree.commit_here()
    for index, name in enumerate(("f", "d", "l")):
        os.utime(tree / name, ns=(NS + index, NS + 10 + index), follow_symlinks=False)
    for index, name in enumerate(("f", "d", "l")):
        st = (tree / name).lstat()
        assert (st.st_atime_ns, st.st_mtime_ns) == (NS + index, NS + 10 + index), name


def test_extended_attributes(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "d").mkdir()
    tree.commit_here()
    for name in ("f", "d"):
        path = tree / name
        os.setxattr(path, "user.one", b"1")
        os.setxattr(path, "user.binary", bytes(range(256)))
        with fails_with(errno.EEXIST):
            os.setxattr(path, "user.one", b"2", os.XATTR_CREATE)
        with fails_with(errno.ENODATA):
            os.setxattr(path, "user.absent", b"2", os.XATTR_REPLACE)
        os.setxattr(path, "user.one", b"11", os.XATTR_REPLACE)
        assert os.getxattr(path, "user.one") == b"11"
        assert os.getxattr(path, "user.binary") == bytes(range(256))
        with fails_with(errno.ENODATA):
            os.getxattr(path, "user.absent")
        mine = sorted(name for name in os.listxattr(path) if not name.startswith("user.tierfs."))
        assert mine == ["user.binary", "user.one"]
        os.removexattr(path, "user.binary")
        with fails_with(errno.ENODATA):
            os.removexattr(path, "user.binary")


def test_extended_attribute_of_a_symlink(tree: Tree) -> None:
    (tree / "l").symlink_to("nowhere")
    tree.commit_here()
    with fails_with(errno.EPERM):
        os.setxattr(tree / "l", "user.x", b"1", follow_symlinks=False)


def test_reserved_attributes_are_refused(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    if tree.side == "plain":
        return
    for name in ("user.tierfs.state", "user.tierfs.digest", "user.tierfs.anything"):
        with fails_with(errno.EPERM):
            os.setxattr(tree / "f", name, b"forged")
        with fails_with(errno.EPERM):
            os.removexattr(tree / "f", name)
    want = b"committed" if tree.side == "committed" else b"pending"
    assert os.getxattr(tree / "f", "user.tierfs.state") in (want, b"committed")


def test_files_belong_to_who_makes_them(tree: Tree) -> None:
    folder = open_to_all(tree)

    def make() -> None:
        (folder / "f").write_bytes(b"alice")
        (folder / "d").mkdir()
        (folder / "l").symlink_to("f")

    as_user(make, ALICE)
    tree.commit_here()
    for name in ("f", "d", "l"):
        st = (folder / name).lstat()
        assert (st.st_uid, st.st_gid) == (ALICE, ALICE), name


def test_permissions_are_enforced(tree: Tree) -> None:
    (tree / "secret").write_bytes(b"root only")
    (tree / "secret").chmod(0o600)
    (tree / "closed").mkdir(mode=0o700)
    (tree / "closed" / "f").write_bytes(b"x")
    (tree / "readable").write_bytes(b"for all")
    tree.commit_here()
    for action in (
        lambda: (tree / "secret").read_bytes(),
        lambda: (tree / "closed" / "f").read_bytes(),
        lambda: os.listdir(tree / "closed"),
        lambda: (tree / "new").write_bytes(b""),
        lambda: os.unlink(tree / "readable"),
        lambda: os.rename(tree / "readable", tree / "moved"),
        lambda: (tree / "readable").open("r+b"),
    ):
        with fails_with(errno.EACCES):
            as_user(action, NOBODY)
    with fails_with(errno.EPERM):
        as_user(lambda: (tree / "readable").chmod(0o777), NOBODY)
    with fails_with(errno.EPERM):
        as_user(lambda: os.chown(tree / "readable", NOBODY, NOBODY), NOBODY)
    assert as_user(lambda: (tree / "readable").read_bytes(), NOBODY) == b"for all"


def test_sticky_directory(tree: Tree) -> None:
    folder = open_to_all(tree, bits=0o1777)
    as_user(lambda: (folder / "f").write_bytes(b"alice"), ALICE)
    tree.commit_here()
    with fails_with(errno.EPERM, errno.EACCES):
        as_user(lambda: os.unlink(folder / "f"), BOB)
    with fails_with(errno.EPERM, errno.EACCES):
        as_user(lambda: os.rename(folder / "f", folder / "g"), BOB)
    as_user(lambda: os.rename(folder / "f", folder / "g"), ALICE)
    assert os.listdir(folder) == ["g"]


def test_setgid_directory(tree: Tree) -> None:
    folder = open_to_all(tree)
    os.chown(folder, 0, BOB)
    folder.chmod(0o2777)
    tree.commit_here()
    as_user(lambda: ((folder / "f").touch(), (folder / "d").mkdir(), None)[-1], ALICE)
    assert (folder / "f").stat().st_gid == BOB
    assert (folder / "d").stat().st_gid == BOB
    assert mode(folder / "d") & stat.S_ISGID


def test_supplementary_groups(tree: Tree) -> None:
    (tree / "f").write_bytes(b"group")
    os.chown(tree / "f", 0, BOB)
    (tree / "f").chmod(0o640)
    tree.commit_here()
    with fails_with(errno.EACCES):
        as_user(lambda: (tree / "f").read_bytes(), ALICE)
    assert as_user(lambda: (tree / "f").read_bytes(), ALICE, groups=[BOB]) == b"group"
    as_user(lambda: os.chmod(tree / "f", 0o660), 0, 0)


def test_owner_changes_own_file(tree: Tree) -> None:
    folder = open_to_all(tree)
    as_user(lambda: (folder / "f").write_bytes(b"x"), ALICE)
    tree.commit_here()
    as_user(lambda: (folder / "f").chmod(0o600), ALICE)
    as_user(lambda: os.utime(folder / "f", ns=(NS, NS)), ALICE)
    as_user(lambda: os.chown(folder / "f", -1, BOB), ALICE, groups=[BOB])
    with fails_with(errno.EPERM):
        as_user(lambda: os.utime(folder / "f", ns=(NS, NS)), NOBODY)
    st = (folder / "f").stat()
    assert (stat.S_IMODE(st.st_mode), st.st_gid, st.st_mtime_ns) == (0o600, BOB, NS)


def test_setuid_does_not_survive_a_foreign_write(tree: Tree) -> None:
    (tree / "tool").write_bytes(b"#!/bin/sh\n")
    (tree / "tool").chmod(0o6777)
    assert mode(tree / "tool") == 0o6777

    def append() -> None:
        with (tree / "tool").open("ab") as file:
            file.write(b"id\n")

    as_user(append, ALICE)
    assert mode(tree / "tool") == 0o777


def test_setgid_without_execution_goes_with_a_write_from_outside_the_group(tree: Tree) -> None:
    """xfstests generic/683 to 687: by write, truncate, fallocate, with each mode of the group."""

    def append(path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    def allocate(path: Path) -> None:
        fd = os.open(path, os.O_RDWR)
        os.posix_fallocate(fd, 0, 1 << 16)
        os.close(fd)

    calls = {"append": append, "truncate": lambda path: os.truncate(path, 3), "falloc": allocate}
    for bits in (0o6666, 0o2766, 0o6676, 0o6777):
        for name, call in calls.items():
            for groups in ([], [BOB]):
                path = tree / f"{name}-{bits:o}-{len(groups)}"
                path.write_bytes(b"content")
                os.chown(path, 0, BOB)
                path.chmod(bits)
                tree.commit_here()
                as_user(lambda call=call, path=path: call(path), ALICE, groups=groups)
                tree.saw(path.name, mode(path))
                path.unlink()  # what stays goes with the commit (DEVIATIONS)


def test_chown_clears_setuid(tree: Tree) -> None:
    (tree / "tool").write_bytes(b"x")
    (tree / "tool").chmod(0o4755)
    tree.commit_here()
    os.chown(tree / "tool", ALICE, ALICE)
    assert mode(tree / "tool") == 0o755


def _acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


_UNSET = 0xFFFFFFFF
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 1, 2, 4, 16, 32


def test_access_control_list(tree: Tree) -> None:
    (tree / "f").write_bytes(b"for alice")
    (tree / "f").chmod(0o600)
    tree.commit_here()
    os.setxattr(
        tree / "f",
        "system.posix_acl_access",
        _acl(
            (_USER_OBJ, 6, _UNSET),
            (_USER, 4, ALICE),
            (_GROUP_OBJ, 0, _UNSET),
            (_MASK, 4, _UNSET),
            (_OTHER, 0, _UNSET),
        ),
    )
    assert as_user(lambda: (tree / "f").read_bytes(), ALICE) == b"for alice"
    with fails_with(errno.EACCES):
        as_user(lambda: (tree / "f").read_bytes(), BOB)
    with fails_with(errno.EACCES):
        as_user(lambda: (tree / "f").read_bytes(), NOBODY, 0)  # the mask is no group right
    assert mode(tree / "f") == 0o640


def test_setgid_goes_with_an_access_control_list_of_one_who_is_not_in_the_group(
    tree: Tree,
) -> None:
    """As with chmod: who may not give a file setgid does not keep it by the way."""
    for name in ("outside", "inside", "root", "default"):
        (tree / name).write_bytes(b"x")
        (tree / f"{name}-d").mkdir()
        for path in (tree / name, tree / f"{name}-d"):
            os.chown(path, ALICE, BOB)
            path.chmod(0o2755)
    tree.commit_here()
    entries = (_USER_OBJ, 7, _UNSET), (_USER, 4, BOB), (_GROUP_OBJ, 5, _UNSET), (_MASK, 7, _UNSET)
    acl = _acl(*entries, (_OTHER, 5, _UNSET))

    def give(name: str, kind: str = "access") -> None:
        paths = [tree / f"{name}-d"] if kind == "default" else [tree / name, tree / f"{name}-d"]
        for path in paths:
            os.setxattr(path, f"system.posix_acl_{kind}", acl)

    as_user(lambda: give("outside"), ALICE)
    as_user(lambda: give("inside"), ALICE, groups=[BOB])
    as_user(lambda: give("default", "default"), ALICE)
    give("root")
    as_user(lambda: os.setxattr(tree / "outside", "user.note", b"\0" * 9), ALICE)
    tree.commit_here()
    found = {path.name: oct(mode(path)) for path in tree.path.iterdir()}
    assert found == {
        "outside": "0o775", "outside-d": "0o775", "inside": "0o2775", "inside-d": "0o2775",
        "root": "0o2775", "root-d": "0o2775", "default": "0o2755", "default-d": "0o2755",
    }  # fmt: skip
    assert os.getxattr(tree / "outside", "system.posix_acl_access") == acl
    assert os.getxattr(tree / "outside", "user.note") == b"\0" * 9


def test_default_access_control_list(tree: Tree) -> None:
    folder = open_to_all(tree)
    os.setxattr(
        folder,
        "system.posix_acl_default",
        _acl(
            (_USER_OBJ, 7, _UNSET),
            (_USER, 7, ALICE),
            (_GROUP_OBJ, 5, _UNSET),
            (_MASK, 7, _UNSET),
            (_OTHER, 0, _UNSET),
        ),
    )
    tree.commit_here()
    (folder / "f").write_bytes(b"inherited")
    (folder / "d").mkdir()
    assert as_user(lambda: (folder / "f").read_bytes(), ALICE) == b"inherited"
    with fails_with(errno.EACCES):
        as_user(lambda: (folder / "f").read_bytes(), BOB)
    assert "system.posix_acl_default" in os.listxattr(folder / "d")
    tree.saw("mode of the file", mode(folder / "f"))
    tree.saw("mode of the directory", mode(folder / "d"))


def test_default_access_control_list_instead_of_the_umask(tree: Tree) -> None:
    folder = open_to_all(tree)
    entries = (_USER_OBJ, 7, _UNSET), (_GROUP_OBJ, 7, _UNSET), (_OTHER, 5, _UNSET)
    os.setxattr(folder, "system.posix_acl_default", _acl(*entries))
    tree.commit_here()
    old = os.umask(0o077)
    try:
        (folder / "f").write_bytes(b"x")
        (folder / "d").mkdir()
    finally:
        os.umask(old)
    assert (mode(folder / "f"), mode(folder / "d")) == (0o664, 0o775)


def test_no_list_to_take_away_is_no_error(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "d").mkdir()
    tree.commit_here()
    os.removexattr(tree / "f", "system.posix_acl_access")
    for kind in ("access", "default"):
        os.removexattr(tree / "d", f"system.posix_acl_{kind}")
    os.setxattr(tree / "d", "system.posix_acl_default", _acl())
    assert os.listxattr(tree / "d") == []
    with fails_with(errno.ENODATA):
        os.removexattr(tree / "f", "user.none")


def test_as_many_names_of_xattrs_as_can_be_listed(tree: Tree) -> None:
    """A file whose xattrs Linux cannot list could not be sent: so it does not get there."""
    (tree / "f").write_bytes(b"x")
    names = [f"user.{index:0250}" for index in range(254)]
    for name in names[:100]:
        os.setxattr(tree / "f", name, b"")
    tree.commit_here()
    for name in names[100:]:
        os.setxattr(tree / "f", name, b"")
    if tree.side != "plain":  # XFS takes it, and lists nothing from then on
        with fails_with(errno.ENOSPC):
            os.setxattr(tree / "f", "user." + "x" * 250, b"")
    os.setxattr(tree / "f", names[7], b"one that is there")
    assert sorted(os.listxattr(tree / "f")) == names


def test_access_call(tree: Tree) -> None:
    (tree / "f").write_bytes(b"x")
    (tree / "f").chmod(0o640)
    tree.commit_here()
    assert os.access(tree / "f", os.R_OK | os.W_OK)
    assert not as_user(lambda: os.access(tree / "f", os.R_OK), ALICE)
    assert not os.access(tree / "absent", os.F_OK)


def test_attributes_through_a_descriptor(tree: Tree) -> None:
    with (tree / "f").open("wb") as file:
        os.fchmod(file.fileno(), 0o640)
        os.fchown(file.fileno(), ALICE, ALICE)
        os.setxattr(file.fileno(), "user.k", b"v")
        file.write(b"content")
        file.flush()
        os.utime(file.fileno(), ns=(NS, NS))
    tree.commit_here()
    st = (tree / "f").stat()
    assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_mtime_ns) == (0o640, ALICE, NS)
    assert os.getxattr(tree / "f", "user.k") == b"v"


def test_statvfs(tree: Tree) -> None:
    before = os.statvfs(tree.path)
    assert before.f_blocks * before.f_frsize > 1 << 30
    assert 0 < before.f_bavail <= before.f_blocks
    assert before.f_namemax == 255


def test_directory_attributes_set_while_its_files_are_sent(tree: Tree) -> None:
    for index in range(20):
        folder = tree / f"d{index}"
        folder.mkdir(mode=0o700)
        (folder / "f").write_bytes(b"x")
        os.utime(folder, ns=(NS, NS))
        os.chown(folder, ALICE, ALICE)
        folder.chmod(0o751)
    tree.commit_here()
    for index in range(20):
        st = (tree / f"d{index}").stat()
        assert (st.st_mtime_ns, st.st_uid, st.st_mode & 0o777) == (NS, ALICE, 0o751)
