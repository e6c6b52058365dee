"""Local copies of what is committed: when they serve, when they go, and what their going costs."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Callable

import pytest

from tests.behaviour.calls import error_of
from tests.behaviour.direct import Direct
from tests.behaviour.stalls import broken, other_node_replaces, stalled, until_looked_at
from tests.harness import wait_until
from tierfs.model import Signature


def is_copy_current(direct: Direct, name: str) -> bool:
    """Whether the local copy is known to be of the present state of the shared file."""
    st = (direct.shared / name).stat()
    record = direct.run(direct.fs.core.journal.clean_copy, st.st_ino)
    return record is not None and record.signature == Signature.of(st)


def test_clean_copy_serves_reads(direct: Direct) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    direct.system.hook = broken("read.shared")
    assert direct.read_file("f") == b"content"
    assert direct.getxattr("f", "user.tierfs.tier") == b"both"


@pytest.mark.parametrize("content", [b"CHANGED", b"changed and longer"])
def test_clean_copy_is_not_served_after_a_change(direct: Direct, content: bytes) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    assert direct.read_file("f") == b"content"
    other_node_replaces(direct, "f", content)
    assert direct.read_file("f") == content
    assert direct.stat("f").size == len(content)


def test_clean_copy_is_not_served_after_a_change_in_place(direct: Direct) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    path = direct.shared / "f"
    times = path.stat()
    with path.open("r+b") as file:
        file.write(b"CONTENT")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the ctime still tells
    assert direct.read_file("f") == b"CONTENT"
    direct.append("f", b"!")
    assert direct.read_file("f") == b"CONTENT!"


def test_clean_copy_outlives_our_own_changes(direct: Direct) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    direct.chmod("f", 0o600)
    direct.settle()
    direct.rename("f", "g")
    direct.settle()
    wait_until(lambda: is_copy_current(direct, "g"), "the record of the copy to follow")
    direct.system.hook = broken("read.shared")
    assert direct.read_file("g") == b"content"


def test_what_is_opened_for_writing_beside_a_user_and_not_changed_is_not_sent(
    direct: Direct,
) -> None:
    """The file that was closed a moment ago is still there: it is the copy of what is committed."""
    direct.write_file("f", b"content")
    direct.settle()
    inode = (direct.shared / "f").stat().st_ino
    writer = direct.open("f", os.O_RDWR)
    reader = direct.open("f")
    direct.close(writer)
    direct.close(direct.open("f", os.O_RDWR))
    direct.settle()
    assert (direct.shared / "f").stat().st_ino == inode
    assert is_copy_current(direct, "f")
    direct.append("f", b"!")
    direct.settle()
    assert direct.pread(reader, 10, 0) == direct.read_file("f") == b"content!"
    direct.close(reader)
    assert (direct.shared / "f").read_bytes() == b"content!"


def test_evicted_copy_is_read_from_the_shared_tier(direct: Direct) -> None:
    direct.mkdir("d")
    for index in range(5):
        direct.write_file(f"d/{index}", b"%d" % index)
    direct.settle()
    direct.write_file("d/pending", b"kept")
    direct.drop_caches()
    assert direct.run(direct.fs.eviction.make, 1 << 60)
    assert direct.getxattr("d/0", "user.tierfs.tier") == b"shared"
    assert [direct.read_file(f"d/{index}") for index in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert direct.read_file("d/pending") == b"kept"


def test_eviction_leaves_what_is_pending(direct: Direct) -> None:
    """Staged and not renamed yet, it is the only copy still."""
    with stalled(direct, "put.rename") as stall:
        direct.write_file("f", b"content")
        assert stall.reached.wait(10)
        direct.run(direct.fs.eviction.make, 1 << 60)
        assert direct.read_file("f") == b"content"
    direct.settle()
    assert (direct.shared / "f").read_bytes() == b"content"


def test_eviction_leaves_what_is_open(direct: Direct) -> None:
    direct.write_file("f", b"content")
    direct.settle()
    fd = direct.open("f")
    direct.run(direct.fs.eviction.make, 1 << 60)
    direct.system.hook = broken("read.shared")
    assert direct.pread(fd, 10, 0) == b"content"
    direct.close(fd)


@pytest.mark.parametrize("times", [1, 1000])
def test_a_rename_does_not_fail_because_the_local_tier_is_full(direct: Direct, times: int) -> None:
    """It has happened before its object is told. What keeps the object's label may be full."""
    core = direct.fs.core
    direct.run_sync(
        lambda: setattr(core, "settings", dataclasses.replace(core.settings, full_wait=0.1))
    )
    direct.write_file("f", b"content")
    left = [True] * times

    def full(step: str, _: tuple[object, ...]) -> None:
        if step == "local.label" and left:
            left.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    direct.system.hook = full
    direct.rename("f", "g")
    direct.system.hook = None
    assert direct.read_file("g") == b"content"
    direct.settle()
    assert (direct.shared / "g").read_bytes() == b"content"


def test_evictions_leave_nothing_behind(direct: Direct) -> None:
    """Nor files, rows, objects, pins or promises: nothing grows with their number."""
    fs, core = direct.fs, direct.fs.core
    direct.mkdir("d")
    direct.settle()
    for round_ in range(4):
        for index in range(50):
            direct.write_file(f"d/{round_}-{index}", b"x")
        direct.settle()
        direct.drop_caches()
        assert direct.run(fs.eviction.make, 1 << 60)
        assert direct.run(core.journal.clean_totals) == (0, 0)
        assert [id_ for id_ in core.store.ids() if id_ not in core.tree.objects] == []
        held = (
            core.tree.objects, core.tree.by_object, core.spare, core.doomed,
            fs.chores.forgetting, core.promises.numbers(), core.pins, fs.room.waiters,
            fs.backpressure.waiters,
        )  # fmt: skip
        assert [len(each) for each in held if len(each) > 3] == []
    assert fs.eviction.evicted_files == 200


def test_copies_are_as_old_as_their_last_close(make_direct: Callable[..., Direct]) -> None:
    """They are committed in an order, and after a time, that says nothing of their use."""
    direct = make_direct(held=True)
    direct.write_file("f", b"content")
    closed = time.time_ns()
    direct.settle()
    assert 0 < used_ns(direct, "f") <= closed
    assert direct.read_file("f") == b"content"
    wait_until(lambda: used_ns(direct, "f") > closed, "its use to be noted")


def used_ns(direct: Direct, name: str) -> int:
    """When the local copy was used last, as far as the journal knows."""
    st = (direct.shared / name).stat()
    record = direct.run(direct.fs.core.journal.clean_copy, st.st_ino)
    return 0 if record is None else record.used_ns


CHANGES: dict[str, Callable[[Direct], object]] = {
    "mode": lambda direct: direct.chmod("f", 0o600),
    "times": lambda direct: direct.utime("f", 1, 1),
    "xattr": lambda direct: direct.setxattr("f", "user.x", b"v"),
    "name": lambda direct: direct.rename("f", "g"),
    "another name": lambda direct: direct.link("f", "g"),
    "mode and name": lambda direct: (direct.chmod("f", 0o600), direct.rename("f", "g")),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("writes", [False, True])
def test_clean_copy_serves_while_the_tier_fails_and_something_else_is_pending(
    make_direct: Callable[..., Direct], what: str, writes: bool
) -> None:
    direct = make_direct()
    direct.write_file("f", b"content")
    direct.settle()
    until_looked_at(direct)
    direct.restart(held=True)
    until_looked_at(direct)
    CHANGES[what](direct)
    name = "g" if direct.exists("g") else "f"
    direct.system.hook = broken("look.open", "read.shared")
    assert direct.read_file(name) == b"content"
    if writes:
        direct.append(name, b" and more")
        assert direct.read_file(name) == b"content and more"
    direct.system.hook = None
    direct.settle()
    want = b"content and more" if writes else b"content"
    assert (direct.shared / name).read_bytes() == direct.read_file(name) == want
    if "mode" in what:
        assert (direct.shared / name).stat().st_mode & 0o777 == 0o600


def test_clean_copy_is_not_read_unasked_where_that_is_not_wanted(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(outage_reads=False)
    direct.write_file("f", b"content")
    direct.settle()
    assert direct.read_file("f") == b"content"
    until_looked_at(direct)
    direct.system.hook = broken("look.open")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        direct.open("f")


@pytest.mark.parametrize("committed", [False, True])
def test_too_many_xattrs_of_one_file_evict_nothing(direct: Direct, *, committed: bool) -> None:
    """It is no lack of room, which would be made, and waited for."""
    for index in range(8):
        direct.write_file(f"clean{index}", b"content")
    direct.settle()
    clean = direct.run(direct.fs.core.journal.clean_totals)
    direct.write_file("f", b"x")
    if committed:
        direct.settle()
        clean = direct.run(direct.fs.core.journal.clean_totals)
    names = [f"user.{index:0250}" for index in range(254)]
    for name in names:
        direct.setxattr("f", name, b"")
    began = time.monotonic()
    assert error_of(direct.setxattr, "f", "user." + "x" * 250, b"") == "ENOSPC"
    assert time.monotonic() - began < 10
    assert direct.run(direct.fs.core.journal.clean_totals)[0] >= clean[0]
    direct.settle()
    assert set(names) <= set(os.listxattr(direct.shared / "f"))
