"""Changes that meet another change of the same file on its way to the shared tier."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, compare, frozen, immutable, wait_until

MIB = 1 << 20


@pytest.fixture
def slow_tier(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """A shared tier that a test can freeze."""
    return make_device("shared-slow")


@pytest.fixture
def slow_node(slow_tier: LoopDevice, make_node: Callable[..., Node]) -> Iterator[Node]:
    """A node on it; whatever is pending at the end must arrive as the mount shows it."""
    node = make_node(shared=slow_tier.mountpoint).start()
    yield node
    node.settle()
    compare(node.mount, node.shared)


def open_and_close(path: Path) -> None:
    """An open for writing that writes nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def test_opened_for_writing_and_closed_after_a_rename(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    old, new = slow_node.mount / "old", slow_node.mount / "new"
    old.write_bytes(b"content")
    slow_node.settle()
    with frozen(slow_tier):
        old.rename(new)
        open_and_close(new)
        assert new.read_bytes() == b"content"
        assert os.listdir(slow_node.mount) == ["new"]


def test_renamed_while_it_is_open_for_writing_and_not_written(slow_node: Node) -> None:
    old, new = slow_node.mount / "old", slow_node.mount / "new"
    old.write_bytes(b"content")
    slow_node.settle()
    with old.open("r+b"):
        old.rename(new)
    slow_node.settle()
    assert new.read_bytes() == b"content"
    assert not old.exists()


def test_opened_for_writing_and_closed_while_an_earlier_state_is_pending(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    path = slow_node.mount / "f"
    path.write_bytes(b"old")
    slow_node.settle()
    with frozen(slow_tier):
        path.write_bytes(b"new")
        open_and_close(path)
        assert path.read_bytes() == b"new"
        path.chmod(0o600)
        open_and_close(path)
        assert path.stat().st_mode & 0o777 == 0o600


def test_removed_after_another_file_took_the_name_of_one_that_is_being_sent(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    for index in range(4):
        first, second = slow_node.mount / f"f{index}", slow_node.mount / f"g{index}"
        with frozen(slow_tier):
            first.write_bytes(b"first")
            second.write_bytes(b"second")
            second.rename(first)
            first.unlink()
            assert not first.exists()
    slow_node.settle()
    assert os.listdir(slow_node.mount) == []


def test_rewritten_and_renamed_while_the_earlier_state_is_being_sent(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    for index in range(4):
        old, new = slow_node.mount / f"old{index}", slow_node.mount / f"new{index}"
        with frozen(slow_tier):
            old.write_bytes(b"first")
            with old.open("ab") as file:
                file.write(b"second")
            old.rename(new)
            assert not old.exists()
            assert new.read_bytes() == b"firstsecond"
    slow_node.settle()
    assert sorted(os.listdir(slow_node.mount)) == [f"new{index}" for index in range(4)]


def test_renamed_and_changed_while_the_rename_is_under_way(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    (slow_node.mount / "d").mkdir()
    (slow_node.mount / "d" / "f").write_bytes(b"f")
    slow_node.settle()
    for turn in range(6):
        here, there = ("d", "e") if turn % 2 == 0 else ("e", "d")
        (slow_node.mount / here).rename(slow_node.mount / there)
        os.utime(slow_node.mount / there, ns=(turn, turn))
        assert (slow_node.mount / there / "f").read_bytes() == b"f"
        (slow_node.mount / there / "f").chmod(0o600 + turn)
        os.setxattr(slow_node.mount / there / "f", "user.turn", b"%d" % turn)
        slow_node.flush()


def test_links_are_counted_whatever_is_pending_of_them(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    one, two = slow_node.mount / "one", slow_node.mount / "two"
    one.write_bytes(b"1")
    slow_node.settle()
    with frozen(slow_tier):
        os.link(one, two)
        one.chmod(0o600)
        assert one.stat().st_nlink == two.stat().st_nlink == 2
    slow_node.settle()
    one.chmod(0o640)
    assert one.stat().st_nlink == two.stat().st_nlink == 2
    two.unlink()
    assert one.stat().st_nlink == 1


@pytest.mark.parametrize("fstype", ["xfs", "ext4"])
def test_copy_up_keeps_the_hole_at_the_end(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node], fstype: str
) -> None:
    local = make_device(f"local-{fstype}", fstype=fstype)
    node = make_node(local=local.mountpoint / "tier")
    node.local.mkdir(exist_ok=True)
    node.start()
    path = node.mount / "sparse"
    path.write_bytes(b"head")
    os.truncate(path, MIB)
    node.settle()
    with path.open("r+b") as file:
        file.write(b"HEAD")
    assert path.read_bytes() == b"HEAD" + bytes(MIB - 4)


def test_what_was_removed_before_it_was_sent_stays_away_after_a_kill(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    for index in range(20):
        (slow_node.mount / f"f{index}").write_bytes(b"x")
    with frozen(slow_tier):
        for index in range(20):
            (slow_node.mount / f"f{index}").unlink()
        slow_node.kill()
    slow_node.start()
    assert os.listdir(slow_node.mount) == []
    assert slow_node.status()["stuck"] == []


def test_a_lost_local_file_is_an_error_and_not_a_missing_name(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    slow_node.expected = ["local content cannot be read", "the local tier failed"]
    path = slow_node.mount / "f"
    file = path.open("wb", buffering=0)
    file.write(b"f")
    (obj,) = (slow_node.local / "objects").glob("*/*")
    obj.unlink()
    with pytest.raises(OSError, match="Input/output error"):
        file.close()
    assert slow_node.flush().code == 3
    slow_node.kill()
    slow_node.start()
    with pytest.raises(OSError, match="Input/output error"):
        path.stat()
    assert slow_node.cli("discard", path).code == 0
    assert not path.exists()
    path.write_bytes(b"again")


@pytest.mark.parametrize("state", ["pending", "committed"])
def test_open_that_truncates_is_a_change(slow_node: Node, state: str) -> None:
    path = slow_node.mount / "f"
    path.write_bytes(b"content")
    os.utime(path, ns=(1, 1))
    if state == "committed":
        slow_node.settle()
    path.open("wb").close()
    assert path.stat().st_size == 0
    assert path.stat().st_mtime_ns > 1


def test_a_link_that_the_shared_tier_forbids_does_not_hang_its_caller(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    tier = make_device("forbidding")
    node = make_node(shared=tier.mountpoint).start()
    node.expected.append("immutable|forbidden")
    folder = node.mount / "d"
    folder.mkdir()
    (folder / "one").write_bytes(b"x")
    node.settle()
    with immutable(tier.mountpoint / "d"):
        os.link(folder / "one", folder / "two")
        wait_until(lambda: node.status()["stuck"], "the link to be stuck")
        assert (folder / "two").stat().st_nlink == 2
        assert sorted(os.listdir(folder)) == ["one", "two"]
        os.rename(folder / "one", folder / "three")
        assert (folder / "three").read_bytes() == b"x"
    node.settle()
    assert (tier.mountpoint / "d" / "three").stat().st_nlink == 2
