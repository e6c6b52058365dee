"""The shared tier hangs, fails or crawls: what goes on, what waits, and that all of it mends."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.harness import (
    FaultyTier,
    LoopDevice,
    Node,
    compare,
    fails_with,
    shut_down,
    wait_until,
)
from tests.harness.devices import run
from tests.harness.users import ALICE, BOB, as_user
from tierfs.control.discovery import session_directory
from tierfs.writeback.settings import WritebackSettings

MIB = 1 << 20
TIER_WAIT = 2.0
WORDS = [r"shared tier|EIO|Input/output|recovery waits|another node"]


@pytest.fixture
def tier(shared_dir: Path) -> Iterator[FaultyTier]:
    """The shared tier of these tests."""
    with FaultyTier(shared_dir / "real", shared_dir / "seen") as found:
        yield found


@pytest.fixture
def outage_node(tier: FaultyTier, make_node: Callable[..., Node]) -> Iterator[Node]:
    """A node on it, which waits for `TIER_WAIT`."""
    node = make_node(shared=tier.mountpoint)
    node.settings = {"tier_wait": TIER_WAIT}
    node.expected = WORDS
    yield node.start()
    tier.heal()
    node.close()


def state(node: Node) -> str:
    return str(node.status()["shared"]["state"])


def until_known(node: Node, *directories: Path) -> None:
    """Waits until the daemon has looked at these directories."""
    wanted = set(map(str, directories))
    wait_until(lambda: wanted <= set(node.status()["announced"]), "a look", timeout=30)


def test_what_has_to_be_asked_gets_an_error_in_time(tier: FaultyTier, outage_node: Node) -> None:
    node = outage_node
    (tier.directory / "theirs").mkdir()
    (tier.directory / "theirs" / "f").write_bytes(b"1")
    (node.mount / "mine").write_bytes(b"2")
    node.settle()
    assert state(node) == "healthy"
    with tier.hang():
        assert node.cli("set", node.mount, "tier_wait=60s").code == 0
        killed = subprocess.Popen(["stat", node.mount / "theirs" / "g"])
        wait_until(lambda: node.status()["hanging"], "the request to hang", timeout=30)
        killed.kill()
        killed.wait(20)
        assert node.cli("set", node.mount, f"tier_wait={TIER_WAIT}s").code == 0
        started = time.monotonic()
        with fails_with(errno.EIO):
            os.stat(node.mount / "theirs" / "f")
        assert TIER_WAIT - 0.1 < time.monotonic() - started < TIER_WAIT + 8
        wait_until(lambda: state(node) == "down", "the outage to be seen")
        told = node.cli("doctor", "--tiers", node.mount).out
        assert f"{node.shared}: down: nothing was answered" in told
        assert f"  {node.mount}\n" in told
        assert os.statvfs(node.mount).f_blocks > 0
    wait_until(lambda: state(node) == "healthy", "the tier to be believed again", timeout=30)
    assert (node.mount / "theirs" / "f").read_bytes() == b"1"
    compare(node.mount, tier.directory)


def rights_hold(run: Path) -> None:
    """Who may not be asked of the shared tier now is who might not before."""

    def save() -> None:
        (run / "hers" / "f.tmp").write_bytes(b"hers")
        os.rename(run / "hers" / "f.tmp", run / "hers" / "f")

    as_user(save, ALICE)
    assert (run / "hers" / "f").stat().st_uid == ALICE
    for refused in (run / "hers" / "g", run / "private" / "f", run / "private" / "g"):
        with fails_with(errno.EACCES):
            as_user(partial(refused.write_bytes, b"not his"), BOB)
    with fails_with(errno.EACCES):
        as_user(lambda: os.rename(run / "hers" / "f", run / "hers" / "taken"), BOB)


def looked_at(folder: Path) -> None:
    """As by `ls -l`, twice: the second time the ACLs of all are asked for at once."""
    for each in [*os.scandir(folder), *os.scandir(folder)]:
        each.stat(follow_symlinks=False)
        if each.name != "far":  # of a file that is not here nobody knows
            with fails_with(errno.ENODATA):
                os.getxattr(each.path, "system.posix_acl_access")


def test_a_job_goes_on_saving(tier: FaultyTier, outage_node: Node) -> None:
    """Directories in use: what is made, renamed and removed there needs no shared tier."""
    node, run = outage_node, outage_node.mount / "run"
    (run / "deep").mkdir(parents=True)
    for name, owner, mode in (("hers", ALICE, 0o755), ("private", 0, 0o700)):
        (run / name).mkdir(mode=mode)
        os.chown(run / name, owner, owner)
    (run / "private" / "f").write_bytes(b"private")
    for name in ("old", "gone", "latest", "kept", "read", "far"):
        (run / name).write_bytes(name.encode())
    (run / "deep" / "f").write_bytes(b"f")
    node.settle()
    assert node.cli("evict", run / "far").code == 0
    far = (run / "far").open("rb")  # from the shared tier
    until_known(node, run, run / "deep", run / "hers", run / "private")
    with tier.hang():
        wait_until(lambda: state(node) != "healthy", "the outage to be seen", timeout=30)
        assert node.cli("set", node.mount, "tier_wait=60s").code == 0
        started = time.monotonic()
        rights_hold(run)
        (run / "new").write_bytes(b"new")
        (run / "clash").write_bytes(b"ours")
        with fails_with(errno.EEXIST):
            os.mkdir(run / "deep")
        (run / "step-1").mkdir()
        (run / "step-1" / "shard").write_bytes(b"s" * 1000)
        os.rename(run / "old", run / "renamed")
        assert (run / "renamed").read_bytes() == b"old", "its local copy"
        (run / "gone").unlink()
        (run / "draft").write_bytes(b"newer")
        os.rename(run / "draft", run / "latest")
        (run / "deep" / "g").symlink_to("f")
        (run / "deep" / "f").write_bytes(b"F")  # a committed file, truncated
        with (run / "kept").open("ab") as file:
            file.write(b" and more")
        assert not (run / "gone").exists()
        assert not (run / "old").exists()
        assert (run / "latest").read_bytes() == b"newer"
        assert (run / "kept").read_bytes() == b"kept and more", "its local copy"
        assert (run / "read").read_bytes() == b"read"
        assert (run / "deep" / "f").stat().st_size == 1
        (run / "latest").write_bytes(b"who-knows")  # of what it names only the tier could tell
        assert (run / "latest").read_bytes() == b"who-knows"
        (run / "deep" / "h").symlink_to("who-knows")
        assert os.fstat(far.fileno()).st_size == 3
        far.close()
        looked_at(run)
        assert sorted(os.listdir(run)) == [
            "clash", "deep", "far", "hers", "kept", "latest", "new", "private", "read", "renamed",
            "step-1",
        ]  # fmt: skip
        assert time.monotonic() - started < 60, "nothing of this waits for the tier"
        assert node.cli("set", node.mount, f"tier_wait={TIER_WAIT}s").code == 0
        with fails_with(errno.EIO):  # who knows whether another node made it
            os.stat(run / "theirs")
        listed = subprocess.run(["ls", run], check=False, capture_output=True)
        assert listed.returncode != 0, "a process that began since must not resume from this"
        theirs = tier.directory / "run" / "clash"
        theirs.write_bytes(b"of another node")
        os.utime(theirs, (1, 1))
        assert node.status()["pending_ops"] >= 6
    node.settle(timeout=120)
    compare(node.mount, tier.directory)
    assert (tier.directory / "run" / "latest").read_bytes() == b"who-knows"
    assert not (tier.directory / "run" / "gone").exists()
    put_away = (tier.directory / ".tierfs" / "quarantine").glob("*/content")
    assert [path.read_bytes() for path in put_away] == [b"of another node"]


def save_in_the_outage(node: Node, mtime: int) -> None:
    """What a job saves, part of it under names that the other node makes as well."""
    run = node.mount / "run"
    (run / f"of-{node.name}").write_bytes(node.name.encode())
    (run / "step").mkdir()
    (run / "step" / f"shard-{node.name}").write_bytes(node.name.encode() * 1000)
    (run / "same").write_bytes(b"same")
    for name in ("made", "latest.tmp"):
        (run / name).write_bytes(f"{name} of {node.name}".encode())
        os.utime(run / name, (mtime, mtime))
    os.rename(run / "latest.tmp", run / "latest")


def test_two_nodes_save_in_one_outage(
    tier: FaultyTier, outage_node: Node, make_node: Callable[..., Node]
) -> None:
    """All of both arrives; of a name that both made the later stays, the other is put away."""
    first, second = outage_node, make_node("b", shared=tier.mountpoint)
    second.settings, second.expected = first.settings, WORDS
    (first.mount / "run").mkdir()
    first.settle()
    second.start()  # what another node makes would be known some seconds later only
    for node in (first, second):
        (node.mount / "run" / f"before-{node.name}").write_bytes(b"1")
        node.settle()
    for node in (first, second):
        until_known(node, node.mount / "run")
    with tier.hang():
        for node in (first, second):
            wait_until(lambda node=node: state(node) != "healthy", "the outage", timeout=30)
        save_in_the_outage(first, 2_000_000_000)
        save_in_the_outage(second, 1_000_000_000)
        assert [node.flush(timeout=1).code for node in (first, second)] == [2, 2]
    for node in (first, second):
        node.settle(timeout=120)
    run = tier.directory / "run"
    assert sorted(os.listdir(run)) == [
        "before-a", "before-b", "latest", "made", "of-a", "of-b", "same", "step",
    ]  # fmt: skip
    assert sorted(os.listdir(run / "step")) == ["shard-a", "shard-b"]
    assert (run / "made").read_bytes() == b"made of a"
    assert (run / "latest").read_bytes() == b"latest.tmp of a"
    put_away = (tier.directory / ".tierfs" / "quarantine").glob("*/content")
    assert sorted(path.read_bytes() for path in put_away) == [b"latest.tmp of b", b"made of b"]
    told = [line for node in (first, second) for line in node.log_text().splitlines()
            if "another node made the name during an outage here" in line]  # fmt: skip
    for name in ("made", "latest"):
        assert len([line for line in told if f"run/{name}" in line]) == 1, told
    for node in (first, second):
        wait_until(lambda node=node: sees(node, run), "both to see the same", timeout=30)
        compare(node.mount, tier.directory)


def sees(node: Node, run: Path) -> bool:
    """Whether the mount shows what the tier has in `run`."""
    here = node.mount / "run"
    made = ("made", "latest", "same")
    return sorted(os.listdir(here)) == sorted(os.listdir(run)) and all(
        (here / name).read_bytes() == (run / name).read_bytes()
        and (here / name).stat().st_mtime_ns == (run / name).stat().st_mtime_ns
        for name in made
    )


def test_an_empty_mount_point_is_never_written_into(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """The tier dies, is unmounted under the mount, comes back: all by itself, nothing is lost."""
    device = make_device("shared")
    node = make_node(shared=device.mountpoint)
    node.expected = [*WORDS, "not mounted|ENODEV|is not the shared"]
    node.start()
    (node.mount / "run").mkdir()
    (node.mount / "run" / "before").write_bytes(b"1")
    node.settle()
    until_known(node, node.mount / "run")
    shut_down(device)
    (node.mount / "run" / "while-dead").write_bytes(b"2")
    wait_until(lambda: state(node) in ("failing", "down"), "the failure to be seen", timeout=30)
    device.unmount(lazy=True)
    wait_until(
        lambda: "empty mount point" in node.status()["shared"]["reason"],
        "the bare directory to be noticed", timeout=30,
    )  # fmt: skip
    (node.mount / "run" / "while-gone").write_bytes(b"3")
    assert node.flush(timeout=1).code == 2
    assert list(device.mountpoint.iterdir()) == []
    device.mount()
    wait_until(lambda: state(node) == "healthy", "the tier to be found again", timeout=30)
    node.settle(timeout=60)
    compare(node.mount, device.mountpoint)
    assert sorted(os.listdir(device.mountpoint / "run")) == ["before", "while-dead", "while-gone"]


def test_a_worker_that_starts_while_the_tier_is_dead(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """The mount goes on with what is local, and joins the tier when that is there again."""
    device = make_device("shared")
    node = make_node(shared=device.mountpoint)
    node.settings = {"tier_wait": TIER_WAIT}
    node.expected = [*WORDS, "not mounted|ENODEV|is not the shared", r"worker \d+ ended \(killed"]
    node.start()
    if not node.status()["supervisor_pid"]:
        pytest.skip("needs the supervisor")
    (node.mount / "run").mkdir()
    (node.mount / "run" / "before").write_bytes(b"1")
    node.settle()
    written = session_directory(str(node.mount)) / "directories.json"
    wait_until(lambda: written.exists() and "before" in written.read_text(), "what is known")
    shut_down(device)
    with (node.mount / "open").open("wb") as file:
        file.write(b"2")
        node.kill_worker()
        file.write(b"3")
    assert (node.mount / "open").read_bytes() == b"23"
    (node.mount / "run" / "new").write_bytes(b"4")
    assert (node.mount / "run" / "before").read_bytes() == b"1"
    assert node.status()["shared"]["state"] == "down"
    with fails_with(errno.EIO, errno.ENODEV):
        os.stat(node.mount / "run" / "other")
    device.unmount(lazy=True)
    device.mount()
    wait_until(lambda: state(node) == "healthy", "the tier to be found again", timeout=30)
    node.settle(timeout=60)
    assert (device.mountpoint / "open").read_bytes() == b"23"
    compare(node.mount, device.mountpoint)


def is_retried(node: Node, number: int, error: str) -> bool:
    """Whether the file of that number is tried again because of `error`."""
    return any(
        each["path"].endswith(f"later{number}") and error in each["error"]
        for each in node.status()["retrying"]
    )


def test_slow_is_not_dead_and_one_that_hangs_is_one(tier: FaultyTier, outage_node: Node) -> None:
    node = outage_node
    content = os.urandom(1 << 20)
    # all places but one: files of the same age would end in any order beside each other
    stuck = [f"other/stuck{index}" for index in range(WritebackSettings().transfer_files - 1)]
    for name in ("other", "run"):
        (node.mount / name).mkdir()
    node.settle()
    with tier.hang("write", "*stuck*"), tier.crawl(1e6):
        for name in (*stuck, "run/f1", "run/f2"):
            (node.mount / name).write_bytes(content)
        wait_until(lambda: (tier.directory / "run" / "f2").exists(), "the others", timeout=60)
        assert (tier.directory / "run" / "f1").read_bytes() == content, "the older one goes first"
        assert state(node) != "down"
        assert os.listdir(tier.directory / "other") == []
        wait_until(lambda: node.status()["pending_files"] == len(stuck), "only these to be left")
        (node.mount / stuck.pop()).unlink()  # while it is sent: nobody waits for the end of that
        assert node.status()["pending_ops"] == len(stuck)
        os.stat(node.mount / "run" / "f1")
    for number, error in enumerate(("ENOSPC", "EDQUOT", "EROFS")):
        with tier.fail(error, "create|write"):
            (node.mount / f"later{number}").write_bytes(b"1")
            wait_until(partial(is_retried, node, number, error), f"{error} to be shown", timeout=60)
    node.settle(timeout=60)
    compare(node.mount, tier.directory)


def test_what_is_not_stored_as_it_was_sent_is_not_published(
    tier: FaultyTier, outage_node: Node
) -> None:
    """Short writes are gone on with; what reads back as something else is sent again."""
    node = outage_node
    node.expected = [*WORDS, "differs from what was sent"]
    short, wrong = os.urandom(300_001), os.urandom(3 * MIB + 1)
    (node.mount / "wrong").write_bytes(b"before")
    node.settle()
    with tier.cut(100_000, "*short"), tier.flip("*wrong"):
        for name, content in (("short", short), ("wrong", wrong)):
            (node.mount / name).write_bytes(content)
        wait_until((tier.directory / "short").exists, "the short one to arrive", timeout=60)
        told = wait_until(lambda: node.status()["retrying"], "the other to be tried", timeout=60)
        assert [each["path"] for each in told] == [str(node.mount / "wrong")]
        assert "differs from what was sent; it is sent again" in told[0]["error"]
        assert (tier.directory / "wrong").read_bytes() == b"before"
    node.settle()
    for name, content in (("short", short), ("wrong", wrong)):
        assert (tier.directory / name).read_bytes() == content
        assert (node.mount / name).read_bytes() == content
    compare(node.mount, tier.directory)
    staged = (tier.directory / ".tierfs" / "staging").rglob("*")
    assert [path for path in staged if path.is_file()] == []


@pytest.mark.parametrize("supervisor", [True, False])
def test_the_next_mount_waits_for_one_that_is_ending(
    tier: FaultyTier, make_node: Callable[..., Node], supervisor: bool
) -> None:
    """A call of the shared tier that was begun keeps the local tier for some seconds more."""
    node = make_node(shared=tier.mountpoint)
    node.settings = {"tier_wait": TIER_WAIT, "supervisor": supervisor}
    node.expected = WORDS
    node.start()
    with tier.delay(3.0, "write"):
        (node.mount / "f").write_bytes(b"content")
        staged = tier.directory / ".tierfs" / "staging"
        wait_until(lambda: [*staged.glob("*/*/*")], "it to be sent")
        run("umount", node.mount)
        held = (node.local / "lock").read_bytes()
        wait_until(lambda: b"ending" in (node.local / "lock").read_bytes(), f"its note ({held!r})")
        node.start()
    node.settle()
    compare(node.mount, tier.directory)


def test_an_unmounted_mount_is_not_taken_over_when_a_call_hangs(
    tier: FaultyTier, make_node: Callable[..., Node]
) -> None:
    """Its worker ends when the call does; nobody comes after it who would keep the local tier.

    Who mounts that again meanwhile is told what it waits for.
    """
    node = make_node(shared=tier.mountpoint)
    node.settings = {"tier_wait": TIER_WAIT, "supervisor": True}
    node.expected = [*WORDS, r"is replaced: it has not answered for 10 s", "in use by process"]
    node.start()
    supervisor = Path(f"/proc/{node.pid}/comm")
    with tier.hang("write"):
        (node.mount / "f").write_bytes(b"content")
        staged = tier.directory / ".tierfs" / "staging"
        wait_until(lambda: [*staged.glob("*/*/*")], "it to be sent")
        time.sleep(1.0)  # the write hangs
        run("umount", node.mount)
        wait_until(lambda: not supervisor.exists(), "its supervisor to end", timeout=60)
        refused = node.cli(*node.mount_words())
        assert refused.code == 1
        held = (node.local / "lock").read_text().split()[0]
        assert f"in use by process {held}, whose mount is gone" in refused.err
        assert f"it hangs on {node.shared}/.tierfs/staging/" in refused.err
        assert "thaw it" in refused.err
        assert "or name another local directory" in refused.err
    node.start()
    node.settle()
    compare(node.mount, tier.directory)
    assert "takes over" not in node.log_text()
