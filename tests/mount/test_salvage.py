"""`tierfs salvage`: a local tier without its journal, brought to the shared tier."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, frozen, wait_until
from tests.harness.node import CommandResult

LONG_AGO = 1_600_000_000_000_000_000
SHARD = os.urandom(200_000)


@pytest.fixture
def device(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """A shared tier that can be frozen, so that a backlog stays a backlog."""
    return make_device("shared", 512 << 20)


@pytest.fixture
def pending(make_node: Callable[..., Node], device: LoopDevice) -> Node:
    """A node that died with everything that `save` wrote pending; its shared tier works again."""
    node = make_node(shared=device.mountpoint).start()
    (node.mount / "old").mkdir()
    (node.mount / "old" / "a").write_bytes(b"first, committed")
    (node.mount / "old" / "same").write_bytes(b"committed and not changed")
    os.utime(node.mount / "old" / "a", ns=(LONG_AGO, LONG_AGO))
    node.settle()
    with frozen(device):
        save(node.mount)
        node.kill()
    node.close()
    return node


def write(path: Path, content: bytes, ns: int = LONG_AGO + 1_000_000_000) -> None:
    """A file that was certainly closed when the journal was lost."""
    path.write_bytes(content)
    os.utime(path, ns=(ns, ns))


def save(mount: Path) -> None:
    write(mount / "old" / "a", b"later, the same l")
    write(mount / "old" / "a", b"later, the same "[:16])
    (mount / "draft").mkdir(mode=0o750)
    (mount / "draft" / "deep").mkdir()
    write(mount / "draft" / "deep" / "shard", SHARD)
    (mount / "draft").rename(mount / "run")
    os.chown(mount / "run" / "deep" / "shard", 1234, 4321)
    os.setxattr(mount / "run" / "deep" / "shard", "user.note", b"kept")
    (mount / "run" / "link").symlink_to("deep/shard")
    write(mount / "run" / "x.tmp", b"renamed into place")
    (mount / "run" / "x.tmp").rename(mount / "run" / "x")
    (mount / "run" / "fresh").write_bytes(b"written at the last moment")


def lose_journal(node: Node, how: str) -> None:
    if how == "its end":
        wal = node.local / "journal.db-wal"
        os.truncate(wal, wal.stat().st_size // 4)
        return
    for path in node.local.glob("journal.db*"):
        if how == "deleted" or path.name != "journal.db":
            path.unlink()
    journal = node.local / "journal.db"
    if how == "cut":
        os.truncate(journal, 5000)
    if how == "version":
        journal.unlink()
        with sqlite3.connect(journal) as other:
            other.executescript("PRAGMA application_id = 1414088018; PRAGMA user_version = 99")


def salvage(node: Node, *words: str) -> CommandResult:
    return node.cli("salvage", node.local, "--shared", node.shared, "--json", *words)


def listed(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("how", ["deleted", "cut", "version"])
def test_what_was_pending_is_committed(pending: Node, how: str) -> None:
    node = pending
    lose_journal(node, how)
    objects = listed(node.local / "objects")
    if how == "version":
        assert node.cli(*node.mount_words()).code == 1
    result = salvage(node)
    assert result.code == 3, result.out + result.err
    done = result.json
    assert set(done["committed"]) == {"old/a", "run/deep/shard", "run/x", "run/link"}, done
    assert set(done["directories"]) == {"run", "run/deep"}
    assert [each["path"] for each in done["beside"]] == ["run/fresh"]
    assert done["failed"] == []
    shard = node.shared / "run" / "deep" / "shard"
    assert shard.read_bytes() == SHARD
    assert (shard.stat().st_uid, shard.stat().st_gid) == (1234, 4321)
    assert os.getxattr(shard, "user.note") == b"kept"
    assert (node.shared / "run").stat().st_mode & 0o777 == 0o750
    assert os.readlink(node.shared / "run" / "link") == "deep/shard"
    assert (node.shared / "old" / "a").read_bytes() == b"later, the same "
    assert not (node.shared / "run" / "fresh").exists()
    (beside,) = done["beside"]
    assert "doubtful" in beside["why"]
    assert Path(beside["kept"]).read_bytes() == b"written at the last moment"
    assert listed(node.local / "objects") == objects
    verified = node.cli("verify", "--json", "--shared", node.shared).json
    assert (verified["exit_code"], verified["without_digest"]) == (0, 1), "the symlink has none"


def test_again_and_with_nothing_doubtful(pending: Node) -> None:
    node = pending
    lose_journal(node, "deleted")
    first = salvage(node).json
    again = salvage(node).json
    assert again["committed"] == []
    assert again["beside"] == first["beside"]
    last = salvage(node, "--all-closed")
    assert last.code == 0, last.out
    assert last.json["committed"] == ["run/fresh"]
    assert (node.shared / "run" / "fresh").read_bytes() == b"written at the last moment"


def test_conflicts_go_where_they_are_told(pending: Node) -> None:
    node = pending
    lose_journal(node, "deleted")
    write(node.shared / "old" / "a", b"by another node", time.time_ns())
    (node.shared / "run").mkdir()
    write(node.shared / "run" / "x", b"another's, of another size")
    result = salvage(node, "--into", "found/here")
    assert result.code == 3
    kept = {each["path"]: each for each in result.json["beside"]}
    assert set(kept) == {"old/a", "run/x", "run/fresh"}
    assert "conflict" in kept["old/a"]["why"]
    assert kept["old/a"]["kept"] == str(node.shared / "found" / "here" / "old" / "a")
    assert (node.shared / "found/here/old/a").read_bytes() == b"later, the same "
    assert (node.shared / "found/here/run/x").read_bytes() == b"renamed into place"
    assert (node.shared / "old" / "a").read_bytes() == b"by another node"
    assert (node.shared / "run" / "x").read_bytes() == b"another's, of another size"
    assert (node.shared / "run" / "deep" / "shard").read_bytes() == SHARD
    assert salvage(node, "--into", "found/here").json["beside"] == result.json["beside"]


def test_after_write_back_there_is_nothing_to_do(node: Node) -> None:
    (node.mount / "d").mkdir()
    write(node.mount / "d" / "one", b"1" * 1000)
    write(node.mount / "d" / "two", b"2" * 1000)
    node.settle()
    (node.mount / "d" / "one").rename(node.mount / "d" / "moved")
    (node.mount / "d").rename(node.mount / "e")
    node.settle()
    assert node.umount().code == 0
    lose_journal(node, "deleted")
    before = listed(node.shared / "e")
    result = salvage(node)
    assert result.code == 0, result.out + result.err
    assert result.json["committed"] == result.json["directories"] == []
    assert listed(node.shared / "e") == before
    assert not (node.shared / "d").exists()


def test_a_checkpoint_that_is_not_whole_is_not_published(
    make_node: Callable[..., Node], device: LoopDevice
) -> None:
    node = make_node(shared=device.mountpoint).start()
    (node.mount / "run").mkdir()
    begun = node.mount / "run" / "checkpoint-5"
    begun.mkdir()
    write(begun / "first.bin", b"1" * 5000)
    stands = node.shared / "run" / ".staging_checkpoint-5"
    wait_until(lambda: (stands / "first.bin").exists(), "the first file to be committed")
    with frozen(device):
        write(begun / "second.bin", b"2" * 5000)
        later = node.mount / "run" / "checkpoint-6"
        later.mkdir()
        write(later / "only.bin", b"3" * 5000)
        write(node.mount / "run" / "latest", b"checkpoint-6")
        node.kill()
    node.close()
    lose_journal(node, "deleted")
    result = salvage(node)
    assert result.code == 3
    done = result.json
    assert set(done["unsealed"]) == {"run/checkpoint-5", "run/checkpoint-6"}
    assert [(each["path"], each["why"][:4]) for each in done["beside"]] == [("run/latest", "held")]
    assert (stands / "second.bin").read_bytes() == b"2" * 5000
    assert (node.shared / "run" / ".staging_checkpoint-6" / "only.bin").exists()
    assert sorted(p.name for p in (node.shared / "run").iterdir()) == [
        ".staging_checkpoint-5",
        ".staging_checkpoint-6",
    ]


def test_a_whole_checkpoint_gets_no_file_of_the_next_generation(
    make_node: Callable[..., Node], device: LoopDevice
) -> None:
    node = make_node(shared=device.mountpoint).start()
    whole = node.mount / "checkpoint-5"
    whole.mkdir()
    for name in ("one.bin", "two.bin"):
        write(whole / name, b"first" * 1000)
    node.settle()
    stands = node.shared / "checkpoint-5"
    before = listed(stands)
    assert len(before) == 2
    with frozen(device):
        write(whole / "one.bin", b"later" * 1000, LONG_AGO + 2_000_000_000)
        write(whole / "three.bin", b"later" * 1000)
        node.kill()
    node.close()
    lose_journal(node, "deleted")
    result = salvage(node)
    assert result.code == 3
    kept = {each["path"]: each for each in result.json["beside"]}
    assert set(kept) == {"checkpoint-5/one.bin", "checkpoint-5/three.bin"}, result.out
    assert "is whole" in kept["checkpoint-5/one.bin"]["why"]
    assert listed(stands) == before


@pytest.mark.parametrize("how", ["deleted", "cut", "its end"])
def test_a_mount_without_its_journal_salvages_first(pending: Node, how: str) -> None:
    """All that was closed is on the shared tier before the mount answers, or the mount refuses."""
    node = pending
    lose_journal(node, how)
    objects = listed(node.local / "objects")
    # a version that was already being sent when it was written again is still there
    earlier = {b"later, the same l"} & set(objects.values())
    held = node.shared / ".tierfs" / "staging"
    moved = held.rename(held.with_name("away"))
    held.write_bytes(b"nothing can be staged")
    refused = node.cli(*node.mount_words())
    assert refused.code == 1
    assert not node.is_mounted()
    assert listed(node.local / "objects") == objects
    held.unlink()
    moved.rename(held)
    node.expected = ["its journal was lost"]
    mounted = node.cli(*node.mount_words("--json"))
    assert mounted.code == 0, mounted.err
    assert "run/fresh: doubtful" in mounted.err
    node.pid = int(mounted.json["pid"])
    salvaged = node.status()["salvaged"]
    assert (salvaged["committed"], salvaged["beside"]) == (4, 1 + len(earlier)), mounted.err
    assert "THE JOURNAL WAS LOST" in node.cli("status", node.mount).out
    assert (node.mount / "run" / "deep" / "shard").read_bytes() == SHARD
    assert (node.mount / "old" / "a").read_bytes() == b"later, the same "
    assert not (node.mount / "run" / "fresh").exists()
    kept = [path for path in (node.shared / ".tierfs" / "quarantine").rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in kept]
    assert {b"written at the last moment", b"first, committed"} | earlier <= set(contents)
    write(node.mount / "run" / "fresh", b"once more")
    node.settle()
    assert (node.shared / "run" / "fresh").read_bytes() == b"once more"
    wait_until(lambda: len(listed(node.local / "objects")) <= 1, "what was salvaged to be swept")
    assert len(list(node.local.glob("journal.db.lost-*"))) == (0 if how == "deleted" else 1)
    assert node.umount().code == 0
    assert node.cli(*node.mount_words()).code == 0


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("name", b"1:../../x"),
        ("name", b"1:.tierfs"),
        ("kind", b"none"),
        ("kind", b"symlink"),
    ],
)
def test_what_has_a_damaged_label_is_kept_without_a_name(
    pending: Node, label: str, value: bytes
) -> None:
    """The mount comes up: one damaged label is no reason to refuse all that is whole."""
    node = pending
    lose_journal(node, "deleted")
    for path in (node.local / "objects").rglob("*"):
        if path.is_file() and path.read_bytes() in (SHARD, b"renamed into place"):
            os.setxattr(path, f"user.tierfs.{label}", value)
    node.expected = ["its journal was lost"]
    mounted = node.cli(*node.mount_words("--json"))
    assert mounted.code == 0, mounted.err
    node.pid = int(mounted.json["pid"])
    assert (node.mount / "old" / "a").read_bytes() == b"later, the same "
    kept = [path for path in (node.shared / ".tierfs" / "quarantine").rglob("*") if path.is_file()]
    links = [path for path in node.shared.rglob("*") if path.is_symlink()]
    assert {SHARD} <= {path.read_bytes() for path in kept}
    if label == "name":
        assert {b"renamed into place"} <= {path.read_bytes() for path in kept}
    assert not [path for path in links if path.name == "shard"]


def test_what_was_closed_is_kept_beside_what_was_being_written(
    make_node: Callable[..., Node], device: LoopDevice
) -> None:
    """A closed version that is being written again when all is lost: both are kept."""
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        write(node.mount / "state", b"closed version")
        half = os.open(node.mount / "state", os.O_RDWR)
        os.write(half, b"half of")
        node.kill()
    # not before the thaw: a thread of the daemon may be in the tier, and keeps the mount till then
    with contextlib.suppress(OSError):
        os.close(half)
    node.close()
    lose_journal(node, "deleted")
    node.expected = ["its journal was lost"]
    mounted = node.cli(*node.mount_words("--json"))
    assert mounted.code == 0, mounted.err
    node.pid = int(mounted.json["pid"])
    assert os.listdir(node.mount) == []
    quarantine = node.shared / ".tierfs" / "quarantine"
    kept = {path.read_bytes() for path in quarantine.rglob("*") if path.is_file()}
    assert {b"closed version", b"half ofversion"} <= kept


def test_refusals(node: Node, tmp_path: Path) -> None:
    used = salvage(node)
    assert used.code == 1
    assert "in use" in used.err
    stranger = node.cli("salvage", tmp_path, "--shared", node.shared)
    assert stranger.code == 1
    assert "no local tier" in stranger.err
    assert list(tmp_path.iterdir()) == []
