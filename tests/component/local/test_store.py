"""Objects on real file systems: what goes in comes out."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.harness.devices import LoopDevice, run, shut_down
from tierfs.errors import TierInUse, XattrsFull
from tierfs.local import ObjectStore, labels
from tierfs.model import ROOT, Attributes, Kind, ObjectId, new_object_id
from tierfs.osio import OS

NAME = b"a:b\xff\n"
ACL = b"system.posix_acl_access"


def make(
    store: ObjectStore,
    kind: Kind = Kind.FILE,
    content: bytes = b"",
    object_id: ObjectId | None = None,
    **values: object,
) -> ObjectId:
    object_id = object_id or new_object_id()
    fields = {"mode": 0o644, "uid": 0, "gid": 0, "parent": ROOT, "name": NAME, **values}
    if kind is not Kind.SYMLINK:
        fields.pop("target", None)
    fd = store.create(object_id, kind, **fields)  # type: ignore[arg-type]
    if fd >= 0:
        os.pwrite(fd, content, 0)
        os.close(fd)
    return object_id


def read(store: ObjectStore, object_id: ObjectId) -> bytes:
    fd = store.open_object(object_id, os.O_RDONLY)
    try:
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def path_of(directory: Path, object_id: ObjectId) -> Path:
    return directory / "objects" / f"{object_id & 0xFF:02x}" / f"{object_id:016x}"


@contextmanager
def fails(code: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is what is checked
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]


@pytest.mark.parametrize("umask", [0o022, 0o777])
@pytest.mark.parametrize("mode", [0, 0o644, 0o777, 0o6755, 0o7777])
@pytest.mark.parametrize("kind", [Kind.FILE, Kind.DIRECTORY])
def test_owner_and_mode_are_as_asked(store: ObjectStore, kind: Kind, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        found = store.attributes(make(store, kind, mode=mode, uid=1234, gid=4321))
    finally:
        os.umask(before)
    assert (found.kind, found.mode, found.uid, found.gid) == (kind, mode, 1234, 4321)


def test_nothing_is_inherited_from_where_the_tier_lies(
    directory: Path, open_store: Callable[..., ObjectStore]
) -> None:
    os.chown(directory, 0, 77)
    directory.chmod(0o2777)
    subprocess.run(["setfacl", "-d", "-m", "u:99:rwx", directory], check=True)
    store = open_store(directory)
    object_id = make(store, mode=0o640)
    found = store.attributes(object_id)
    assert (found.gid, found.mode, store.list_xattrs(object_id)) == (0, 0o640, [])
    assert stat.S_IMODE((directory / "objects").stat().st_mode) == 0o700


def test_what_an_object_stands_for(store: ObjectStore) -> None:
    for kind in (Kind.SYMLINK, Kind.FIFO, Kind.SOCKET):
        object_id = make(store, kind, mode=0o600)
        assert store.kind(object_id) is kind
        assert store.attributes(object_id) == store.attributes(object_id, kind)


@pytest.mark.parametrize("target", [b"x", b"../\xff\n/y", b"t" * 4095])
def test_the_target_of_a_symlink(store: ObjectStore, target: bytes) -> None:
    object_id = make(store, Kind.SYMLINK, target=target, mode=0o777)
    assert store.target(object_id) == target
    assert store.attributes(object_id).size == len(target)


def test_an_id_is_used_once(store: ObjectStore) -> None:
    object_id = make(store, content=b"first")
    with fails(errno.EEXIST):
        store.create(object_id, Kind.FILE, mode=0o600, uid=0, gid=0, parent=ROOT, name=b"second")
    assert read(store, object_id) == b"first"


def test_a_create_costs_at_most_six_calls(
    directory: Path, open_store: Callable[..., ObjectStore]
) -> None:
    calls: list[str] = []

    class Counting(OS):
        def _enter(self, step: str, *detail: object) -> None:
            calls.append(step)

    store = open_store(directory, Counting())
    object_id = make(store)
    store.remove(object_id)
    del calls[:]
    fd = store.create(object_id, Kind.FILE, mode=0o600, uid=7, gid=7, parent=ROOT, name=NAME)
    os.close(fd)
    assert len(calls) <= 5  # and one close


@pytest.mark.parametrize("kind", [Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK])
def test_a_create_that_fails_at_any_call_leaves_nothing(
    directory: Path, open_store: Callable[..., ObjectStore], kind: Kind
) -> None:
    left = 0

    class Failing(OS):
        def _enter(self, step: str, *detail: object) -> None:
            nonlocal left
            if len(detail) > 1:  # all but closing
                left -= 1
                if left == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(directory, Failing())
    failures = 0
    while True:
        left = failures + 1
        try:
            # Each in a fan-out directory that is not there yet: so each takes the same calls.
            make(store, kind, uid=5, target=b"t", object_id=ObjectId((1 << 62) + failures))
        except OSError:
            failures += 1
            left = 0
            assert store.is_empty()
        else:
            break
    assert failures >= 6


def test_flags_that_are_not_the_objects_business_are_dropped(store: ObjectStore) -> None:
    object_id = make(store, content=b"12345")
    flags = os.O_WRONLY | os.O_APPEND | os.O_DIRECT | os.O_TRUNC | os.O_CREAT | os.O_EXCL
    fd = store.open_object(object_id, flags)
    os.pwrite(fd, b"x", 1)
    os.close(fd)
    assert read(store, object_id) == b"1x345"
    with fails(errno.ENOENT):
        store.open_object(new_object_id(), os.O_RDWR | os.O_CREAT)


def test_attributes_change_one_by_one(store: ObjectStore) -> None:
    object_id = make(store, content=b"12345", mode=0o600)
    store.set_attributes(object_id, mtime_ns=1_000_000_007)
    store.set_attributes(object_id, atime_ns=-1_500_000_000)
    found = store.attributes(object_id)
    assert (found.mtime_ns, found.atime_ns) == (1_000_000_007, -1_500_000_000)
    store.set_attributes(object_id, uid=5)
    store.set_attributes(object_id, gid=6, size=3, mtime_ns=9)
    found = store.attributes(object_id)
    assert (found.uid, found.gid, found.size, found.mtime_ns) == (5, 6, 3, 9)
    assert read(store, object_id) == b"123"


def test_setuid_goes_with_the_owner_unless_the_mode_comes_too(store: ObjectStore) -> None:
    object_id = make(store, mode=0o6755)
    store.set_attributes(object_id, uid=5, gid=6, mode=0o6755)
    assert store.attributes(object_id).mode == 0o6755
    store.set_attributes(object_id, uid=7)
    assert store.attributes(object_id).mode == 0o755


def test_xattrs_that_the_file_system_has_no_place_for(
    store: ObjectStore, file_system: LoopDevice
) -> None:
    """Of ENOSPC there are two: nothing that is evicted helps where one file has too many."""
    object_id = make(store)
    big = b"v" * 60_000
    if file_system.fstype == "xfs":
        store.set_xattr(object_id, b"user.big", big)
    else:  # one block for all xattrs of a file
        with pytest.raises(XattrsFull):
            store.set_xattr(object_id, b"user.big", big)
        with pytest.raises(XattrsFull):
            store.create_stub(
                new_object_id(), store.attributes(object_id), {b"user.big": big}, ROOT, b"stub"
            )
    store.set_xattr(object_id, b"user.small", b"v")


@pytest.mark.parametrize(
    "value",
    [b"1:", b"1:.", b"1:..", b"1:a/b", b"1:../../x", b"1:a\0b", b"1:" + b"n" * 256, b"a", b"zz:a"],
)
def test_a_label_that_can_be_no_name_is_damaged(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        labels.parse_name(value)
    assert labels.parse_name(b"1f:a:b\xff") == (ObjectId(0x1F), b"a:b\xff")


def test_what_could_not_be_listed_is_refused() -> None:
    names = [b"user.%0250d" % index for index in range(254)]
    labels.check_listable(names, b"user.x")
    labels.check_listable(names, names[3])
    with fails(errno.ENOSPC):
        labels.check_listable([labels.NAME, labels.STUB, *names], b"user." + b"x" * 250)


def test_xattrs_and_ours_hidden(store: ObjectStore) -> None:
    object_id = make(store)
    store.set_xattr(object_id, b"user.x\xff", b"\x00v")
    store.set_xattr(object_id, b"trusted.t", b"")
    assert sorted(store.list_xattrs(object_id)) == [b"trusted.t", b"user.x\xff"]
    assert store.get_xattr(object_id, b"user.x\xff") == b"\x00v"
    with fails(errno.EEXIST):
        store.set_xattr(object_id, b"user.x\xff", b"", os.XATTR_CREATE)
    store.remove_xattr(object_id, b"user.x\xff")
    for name in (b"user.x\xff", labels.NAME, b"user.tierfs.state"):
        with fails(errno.ENODATA):
            store.get_xattr(object_id, name)
    with fails(errno.EPERM):
        store.set_xattr(object_id, labels.NAME, b"1:other")
    with fails(errno.EPERM):
        store.remove_xattr(object_id, labels.NAME)


@pytest.mark.parametrize("kind", [Kind.SYMLINK, Kind.FIFO, Kind.SOCKET])
def test_xattrs_of_what_is_neither_file_nor_directory(store: ObjectStore, kind: Kind) -> None:
    object_id = make(store, kind)
    for name in (b"trusted.t", b"security.s"):
        store.set_xattr(object_id, name, b"v")
        assert store.get_xattr(object_id, name) == b"v"
    with fails(errno.EPERM):
        store.set_xattr(object_id, b"user.x", b"v")
    with fails(errno.ENODATA):
        store.get_xattr(object_id, b"user.x")
    with fails(errno.EPERM):
        store.remove_xattr(object_id, b"user.x")


def acl_of(directory: Path, object_id: ObjectId, *options: str) -> list[str]:
    command = ["getfacl", "-cpn", *options, str(path_of(directory, object_id))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_acls_are_those_of_the_object(store: ObjectStore, directory: Path) -> None:
    donor = directory.parent / "donor"
    donor.touch(0o640)
    subprocess.run(["setfacl", "-m", "u:99:rw,m::rw", donor], check=True)
    acl = os.getxattr(donor, ACL)
    donor.unlink()

    file, folder, link = make(store), make(store, Kind.DIRECTORY), make(store, Kind.SYMLINK)
    store.set_xattr(file, ACL, acl)
    assert "user:99:rw-" in acl_of(directory, file)
    assert store.attributes(file).mode == 0o660
    assert store.get_xattr(file, ACL) == acl
    assert store.list_xattrs(file) == [ACL]
    store.set_xattr(folder, b"system.posix_acl_default", acl)
    assert "user:99:rw-" in acl_of(directory, folder, "-d")
    with fails(errno.EOPNOTSUPP):
        store.set_xattr(link, ACL, acl)


def test_a_stub_has_all_but_the_content(store: ObjectStore, directory: Path) -> None:
    stub = new_object_id()
    wanted = Attributes(Kind.FILE, 0o4750, 5, 6, 1 << 40, 11, 22, 0)
    store.create_stub(stub, wanted, {b"user.x": b"y"}, ROOT, NAME)
    found = store.attributes(stub)
    for name in ("kind", "mode", "uid", "gid", "size", "atime_ns", "mtime_ns"):
        assert getattr(found, name) == getattr(wanted, name)
    assert found.blocks * 512 < 1 << 16
    assert store.list_xattrs(stub) == [b"user.x"]
    assert store.is_stub(stub)
    store.mark_complete(stub)
    store.mark_complete(stub)
    assert not store.is_stub(stub)
    assert store.attributes(stub).mtime_ns == wanted.mtime_ns


def test_a_stub_of_a_symlink_has_its_size(store: ObjectStore) -> None:
    stub = new_object_id()
    wanted = Attributes(Kind.SYMLINK, 0o777, 5, 6, 3, 1, 2, 0)
    store.create_stub(stub, wanted, {}, ROOT, NAME, b"a/b")
    found = store.attributes(stub)
    assert (found.kind, found.size, found.mtime_ns) == (Kind.SYMLINK, 3, wanted.mtime_ns)
    assert store.target(stub) == b"a/b"


def test_a_stub_of_a_directory(store: ObjectStore) -> None:
    stub = new_object_id()
    store.create_stub(stub, Attributes(Kind.DIRECTORY, 0o1777, 5, 6, 0, 1, 2, 0), {}, ROOT, NAME)
    found = store.attributes(stub)
    assert (found.kind, found.mode, found.mtime_ns) == (Kind.DIRECTORY, 0o1777, 2)


@pytest.mark.parametrize("kind", [Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK])
def test_a_stub_replaces_what_a_killed_daemon_left_of_it(store: ObjectStore, kind: Kind) -> None:
    stub = new_object_id()
    left = Attributes(kind, 0o700, 5, 6, 7, 1, 2, 0)
    target = b"left" if kind is Kind.SYMLINK else b""
    store.create_stub(stub, left, {b"trusted.left": b"y"}, ROOT, NAME, target)
    wanted = Attributes(kind, 0o711, 8, 9, 3, 3, 4, 0)
    store.create_stub(stub, wanted, {}, ROOT, NAME, target)
    found = store.attributes(stub)
    assert (found.kind, found.mode, found.uid, found.mtime_ns) == (kind, 0o711, 8, 4)
    assert store.list_xattrs(stub) == []


def test_clone_shares_all_where_the_file_system_can(
    store: ObjectStore, directory: Path, file_system: LoopDevice
) -> None:
    source, target = make(store, content=b"x" * 10_000, mode=0o6711, uid=8, gid=9), new_object_id()
    store.set_xattr(source, b"user.x", b"y")
    store.set_attributes(source, atime_ns=33, mtime_ns=44)
    cloned = store.clone(source, target)
    assert cloned == (file_system.fstype == "xfs")
    if not cloned:
        assert list(store.ids()) == [source]
        return
    expected, found = store.attributes(source), store.attributes(target)
    for name in ("mode", "uid", "gid", "size", "atime_ns", "mtime_ns"):
        assert getattr(found, name) == getattr(expected, name)
    assert store.get_xattr(target, b"user.x") == b"y"
    assert os.getxattr(path_of(directory, target), labels.NAME) == b"1:" + NAME
    fd = store.open_object(source, os.O_WRONLY)
    os.pwrite(fd, b"new", 0)
    os.close(fd)
    assert read(store, target) == b"x" * 10_000


def test_clone_keeps_an_acl(store: ObjectStore, directory: Path, file_system: LoopDevice) -> None:
    if file_system.fstype != "xfs":
        pytest.skip("no reflink on ext4")
    source, target = make(store, mode=0o600), new_object_id()
    subprocess.run(["setfacl", "-m", "u:99:rw", path_of(directory, source)], check=True)
    assert store.clone(source, target)
    assert acl_of(directory, target) == acl_of(directory, source)


def test_holes_stay_holes(store: ObjectStore) -> None:
    object_id = make(store)
    fd = store.open_object(object_id, os.O_RDWR)
    os.pwrite(fd, b"end", 1 << 30)
    os.close(fd)
    found = store.attributes(object_id)
    assert found.size == (1 << 30) + 3
    assert found.blocks * 512 < 1 << 20


def test_remove_is_idempotent_and_open_files_go_on(store: ObjectStore) -> None:
    file, folder = make(store, content=b"12"), make(store, Kind.DIRECTORY)
    fd = store.open_object(file, os.O_RDONLY)
    for _ in range(2):
        store.remove(file)
        store.remove(folder)
    store.remove(new_object_id())
    assert os.pread(fd, 10, 0) == b"12"
    os.close(fd)
    assert store.is_empty()


def test_the_label_says_where_to_salvage(store: ObjectStore, directory: Path) -> None:
    parent, object_id = new_object_id(), make(store)
    label = os.getxattr(path_of(directory, object_id), labels.NAME)
    assert labels.parse_name(label) == (ROOT, NAME)
    store.relabel(object_id, parent, b"n" * 255)
    label = os.getxattr(path_of(directory, object_id), labels.NAME)
    assert labels.parse_name(label) == (parent, b"n" * 255)
    with pytest.raises(ValueError, match="colon"):
        labels.parse_name(b"nonsense")


def test_ids_and_foreign_files(store: ObjectStore, directory: Path) -> None:
    made = {make(store) for _ in range(50)} | {make(store, Kind.DIRECTORY)}
    (directory / "notes.txt").touch()
    (directory / "objects" / "README").touch()
    fan = path_of(directory, min(made)).parent
    (fan / "core").touch()
    odd = "0" * 14 + ("01" if fan.name == "00" else "00")  # an object's name in the wrong place
    (fan / odd).touch()
    assert set(store.ids()) == made
    paths = ["notes.txt", "objects/README", f"objects/{fan.name}/core", f"objects/{fan.name}/{odd}"]
    assert sorted(store.foreign()) == sorted(paths)


def test_usage_is_that_of_the_file_system(store: ObjectStore, directory: Path) -> None:
    found = os.statvfs(directory)
    total, free = store.usage()
    assert total == found.f_blocks * found.f_frsize
    assert 0 < free <= total


def test_missing_objects_are_enoent(store: ObjectStore, directory: Path) -> None:
    missing = new_object_id()
    calls: list[Callable[[], object]] = [
        lambda: store.attributes(missing),
        lambda: store.attributes(missing, Kind.FILE),
        lambda: store.sync(missing),
        lambda: store.target(missing),
        lambda: store.set_attributes(missing, mode=0),
        lambda: store.relabel(missing, ROOT, b"x"),
        lambda: store.get_xattr(missing, b"user.x"),
    ]
    for call in calls:
        with fails(errno.ENOENT):
            call()
    assert os.listdir(directory / "objects") == []


def test_a_full_file_system_says_so_and_nothing_is_left(
    make_device: Callable[..., LoopDevice], open_store: Callable[..., ObjectStore]
) -> None:
    device = make_device("full", size=96 << 20)
    store = open_store(device.mountpoint)
    kept = make(store, content=b"kept")
    store.sync(kept)
    device.fill()
    before = set(store.ids())
    with fails(errno.ENOSPC):
        for _ in range(100_000):
            before.add(make(store, content=bytes(4096)))
    left = set(store.ids()) - before
    assert len(left) <= 1  # made before its content found no room
    assert read(store, kept) == b"kept"


def test_synced_objects_survive_a_power_cut(make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("power")
    store = ObjectStore.open(device.mountpoint, OS())
    kinds = [Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK]
    made = {make(store, kind, b"content", target=b"t", mode=0o640): kind for kind in kinds}
    for object_id in made:
        store.sync(object_id)
    member = store.member
    shut_down(device)  # what is not on the disk yet never will be
    store.close()
    run("umount", device.mountpoint)
    device.mount()

    store = ObjectStore.open(device.mountpoint, OS())
    try:
        assert store.member == member
        assert {object_id: store.kind(object_id) for object_id in store.ids()} == made
        assert {read(store, i) for i, kind in made.items() if kind is Kind.FILE} == {b"content"}
        assert {store.attributes(i).mode for i in made} == {0o640}
    finally:
        store.close()


def test_who_has_the_tier_is_named_and_whether_he_is_ending(tmp_path: Path) -> None:
    store = ObjectStore.open(tmp_path, OS())
    with pytest.raises(TierInUse, match=rf"in use by process {os.getpid()}: unmount") as refused:
        ObjectStore.open(tmp_path, OS())
    assert not refused.value.ending
    store.note_end()
    with pytest.raises(TierInUse, match=rf"process {os.getpid()}, whose mount is gone") as refused:
        ObjectStore.open(tmp_path, OS())
    assert refused.value.ending
    store.close()
    store = ObjectStore.open(tmp_path, OS())
    with pytest.raises(TierInUse, match=rf"in use by process {os.getpid()}: unmount"):
        ObjectStore.open(tmp_path, OS())
    store.close()


def test_a_drive_that_was_let_go_of_is_back_when_it_can_be_used(
    make_device: Callable[..., LoopDevice],
) -> None:
    device = make_device("local", 64 * (1 << 20))
    path = device.mountpoint / "tier"
    path.mkdir()
    store = ObjectStore.open(path, OS())
    assert not store.has_returned()  # it is in use
    store.let_go()
    shut_down(device)
    assert not store.has_returned()
    device.unmount()
    assert not store.has_returned()
    path.mkdir()  # below the mount point
    assert not store.has_returned()
    path.rmdir()
    device.mount()
    with closing(ObjectStore.open(path, OS())):
        assert not store.has_returned()  # another one has it
    assert store.has_returned()
    run("mount", "-o", "remount,ro", device.mountpoint)
    assert not store.has_returned()
