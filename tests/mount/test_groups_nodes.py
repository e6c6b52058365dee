"""What the nodes know of each other's checkpoints: two mounts, of which one is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Node, wait_until

SUMS = "SHA256SUMS"
LEASE = 3.0
FILES = ("model.safetensors", "optimizer.pt", "trainer_state.json")

TEAR = """
import os, signal, sys
folder = sys.argv[1]
os.makedirs(folder)
for name in ("model.safetensors", "trainer_state.json"):
    open(f"{folder}/{name}", "wb").write(b"whole")
file = open(f"{folder}/optimizer.pt", "wb", buffering=0)
file.write(b"ha")
os.kill(os.getpid(), signal.SIGKILL)
"""


def save(folder: Path, text: str) -> None:
    """A whole checkpoint, its marker last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(f"{text} {name}")


def tear(node: Node, folder: Path) -> None:
    """A process that is killed in the last file of `folder`; what it closed is committed."""
    done = subprocess.run([sys.executable, "-c", TEAR, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert node.flush().code == 3


def contents(folder: Path) -> dict[str, str]:
    """The files of a checkpoint that its application has made."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != SUMS}


def standing(node: Node) -> dict[str, list[str]]:
    """The checkpoints by how they stand."""
    found = node.cli("checkpoints", node.mount, "--json").json
    lists = ("whole", "in_flight", "unsettled", "broken")
    names = {each: [os.path.basename(one["path"]) for one in found[each]] for each in lists}
    return {each: there for each, there in names.items() if there}


@pytest.fixture
def pair(make_node: Callable[..., Node]) -> tuple[Node, Node]:
    nodes = make_node("a"), make_node("b")
    for node in nodes:
        node.expected = ["torn", "another node writes the checkpoint"]
        node.settings |= {"lease": LEASE, "sha256sums": node.name == "b"}
        node.start()
    return nodes


def test_a_broken_checkpoint_is_known_to_every_node(pair: tuple[Node, Node]) -> None:
    lost, other = pair
    save(lost.mount / "run" / "checkpoint-1", "first")
    lost.settle()
    torn = lost.mount / "run" / "checkpoint-2"
    tear(lost, torn)
    wait_until(lambda: standing(other).get("broken") == ["checkpoint-2"], "the other to know it")
    # who may decide takes it back
    assert lost.cli("accept", torn / "optimizer.pt").code == 0
    lost.settle()
    assert standing(other) == {"whole": ["checkpoint-1", "checkpoint-2"]}
    tear(lost, lost.mount / "run" / "checkpoint-3")
    wait_until(lambda: standing(other).get("broken") == ["checkpoint-3"], "the other to know it")
    lost.kill()
    lost.close()
    shutil.rmtree(lost.local)

    run = other.mount / "run"
    (broken,) = other.cli("checkpoints", other.mount, "--json").json["broken"]
    assert broken["broken_files"] == ["optimizer.pt"]
    assert "optimizer.pt: its writer was killed" in broken["reason"]
    newest = other.cli("checkpoints", run, "--latest-complete").out.strip()
    assert newest == str(run / "checkpoint-2")
    settled = other.cli("settled", run, "--json").json
    assert (settled["latest"], settled["exit_code"]) == (newest, 0)
    assert [each["path"] for each in settled["broken"]] == [str(run / "checkpoint-3")]
    assert "checkpoint-3" in other.cli("settled", run).err
    explained = other.cli("doctor", "--profile", run / "checkpoint-3", "--json").json
    assert (explained["decision"], explained["reason"]) == ("broken", broken["reason"])
    assert sorted(os.listdir(run)) == ["checkpoint-1", "checkpoint-2"]
    # it is written again
    save(run / "checkpoint-3", "again")
    other.settle()
    assert standing(other) == {"whole": ["checkpoint-1", "checkpoint-2", "checkpoint-3"]}


AGAIN = """
import sys
for name in sys.argv[2:]:
    open(f"{sys.argv[1]}/{name}", "w").write("left")
"""


def test_what_a_lost_node_was_writing_again_is_not_mixed_with_what_another_writes(
    pair: tuple[Node, Node],
) -> None:
    lost, other = pair
    run, there = other.mount / "run", other.shared / "run"
    for name in ("checkpoint-1", "checkpoint-2", "checkpoint-3"):
        save(lost.mount / "run" / name, "old")
    lost.settle()
    for name in ("checkpoint-1", "checkpoint-2"):
        folder = lost.mount / "run" / name
        subprocess.run([sys.executable, "-c", AGAIN, folder, FILES[0], "added.pt"], check=True)
    wait_until(lambda: not lost.status()["pending_ops"], "the next generations to be staged")
    assert len(list(there.glob(".staging_checkpoint-*/added.pt"))) == 2
    lost.kill()

    shutil.rmtree(run / "checkpoint-2")
    (run / "checkpoint-1" / FILES[1]).write_text("new")
    (run / "checkpoint-1" / FILES[2]).write_text("new")
    other.settle()
    assert not (run / "checkpoint-2").exists()
    want = {FILES[0]: f"old {FILES[0]}", FILES[1]: "new", FILES[2]: "new"}
    for root in (there, run):
        assert contents(root / "checkpoint-1") == want
        assert sorted(os.listdir(root)) == ["checkpoint-1", "checkpoint-3"]
    done = subprocess.run(
        ["sha256sum", "-c", SUMS], cwd=there / "checkpoint-1", capture_output=True, check=True
    )
    assert done.stdout.count(b": OK") == len(want)  # also of what the other one had sent
    kept = (other.shared / ".tierfs" / "quarantine").glob("*/content/added.pt")
    assert [path.read_text() for path in kept] == ["left", "left"]

    lost.start()  # all that it wrote had been sent: it has nothing more to say
    lost.settle()
    for root in (there, lost.mount / "run"):
        assert contents(root / "checkpoint-1") == want
        assert sorted(os.listdir(root)) == ["checkpoint-1", "checkpoint-3"]


def test_what_a_lost_node_left_is_not_seen_while_it_is_not_known_that_it_is_lost(
    pair: tuple[Node, Node],
) -> None:
    """What another writes again and removes meanwhile are the sealed one's files."""
    lost, other = pair
    run, there = other.mount / "run", other.shared / "run"
    save(lost.mount / "run" / "checkpoint-1", "old")
    lost.settle()
    again = [sys.executable, "-c", AGAIN, lost.mount / "run" / "checkpoint-1", FILES[0], "added.pt"]
    subprocess.run(again, check=True)
    wait_until(lambda: not lost.status()["pending_ops"], "the next generation to be staged")
    lost.kill()

    (run / "checkpoint-1" / FILES[2]).write_text("new")
    want = {name: f"old {name}" for name in FILES} | {FILES[2]: "new"}
    assert contents(run / "checkpoint-1") == want
    save(run / "checkpoint-2", "new")
    shutil.rmtree(run / "checkpoint-1")
    other.settle()
    wait_until(lambda: sorted(os.listdir(there)) == ["checkpoint-2"], "the first one to go")
    assert os.listdir(run) == ["checkpoint-2"]


def test_two_nodes_that_save_one_checkpoint_at_the_same_time(pair: tuple[Node, Node]) -> None:
    """What the first has sent when the second begins is a part of it."""
    one, other = pair
    folder = one.mount / "run" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / FILES[0]).write_text("one")
    staged = one.shared / "run" / ".staging_checkpoint-1"
    wait_until((staged / FILES[0]).exists, "the first file to be sent")
    (other.mount / "run" / "checkpoint-1" / FILES[1]).write_text("other")
    wait_until((staged / FILES[1]).exists, "the second file to be sent")
    (seen,) = other.cli("checkpoints", other.mount, "--json").json["in_flight"]
    assert set(seen["members"]) == {node.status()["member"] for node in pair}
    (folder / FILES[2]).write_text("one")
    one.settle()
    assert contents(one.shared / "run" / "checkpoint-1") == dict(
        zip(FILES, ("one", "other", "one"), strict=True)
    )
    assert not (one.shared / ".tierfs" / "quarantine").exists()


def test_none_is_published_while_another_node_has_not_sent_all(pair: tuple[Node, Node]) -> None:
    """Its marker is written, and the node of that has nothing more to send."""
    one, other = pair
    folder, there = one.mount / "run" / "checkpoint-1", one.shared / "run" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / FILES[0]).write_text("one")
    with (other.mount / "run" / "checkpoint-1" / FILES[1]).open("w") as file:
        file.write("ot")
        file.flush()
        wait_until(lambda: len(members(one)) == 2, "the other one to be known")
        (folder / FILES[2]).write_text("one")
        flushed = one.cli("flush", "--wait", "--timeout", "5", one.mount)
        assert flushed.code == 2, flushed.out
        assert not there.exists()
        (shown,) = one.cli("checkpoints", one.mount, "--json").json["in_flight"]
        assert "another node still writes it" in shown["reason"]
        file.write("her")
    for node in pair:
        node.settle()
    assert contents(there) == dict(zip(FILES, ("one", "other", "one"), strict=True))


def members(node: Node) -> list[str]:
    """Who takes part in the only checkpoint that is in flight."""
    (seen,) = node.cli("checkpoints", node.mount, "--json").json["in_flight"]
    return seen["members"]


def test_none_is_published_that_a_lost_node_had_not_sent_all_of(pair: tuple[Node, Node]) -> None:
    one, other = pair
    folder, there = one.mount / "run" / "checkpoint-1", one.shared / "run" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / FILES[0]).write_text("one")
    torn = (other.mount / "run" / "checkpoint-1" / FILES[1]).open("w")
    wait_until(lambda: len(members(one)) == 2, "the other one to be known")
    other.kill()
    with pytest.raises(OSError, match=r"not connected|connection abort"):  # sent to it, or not yet
        torn.close()
    (folder / FILES[2]).write_text("one")
    flushed = one.flush(timeout=30)
    assert flushed.code == 6, flushed.out
    assert "is gone and had not sent all" in flushed.out
    assert not there.exists()
    # all of it is written again by who lives, and somebody says so
    (folder / FILES[1]).write_text("one")
    assert one.cli("commit", folder, "--expect", "3").code == 0
    one.settle()
    assert contents(there) == dict.fromkeys(FILES, "one")


def test_two_nodes_that_make_one_checkpoint_at_the_same_time(pair: tuple[Node, Node]) -> None:
    """Ranks that all make the directory, and wait for nobody."""
    ranks = []
    for number in range(3):
        for rank, node in enumerate(pair):
            folder = node.mount / "run" / f"step_{number}"
            words = [sys.executable, "-c", RANK, str(folder), str(rank)]
            ranks.append(subprocess.Popen(words))
        assert [each.wait(60) for each in ranks] == [0] * len(ranks)
        (pair[0].mount / "run" / f"step_{number}" / ".metadata").write_text("all")
    for node in pair:
        node.settle()
    for number in range(3):
        there = pair[0].shared / "run" / f"step_{number}"
        want = {f"__{rank}_{part}.distcp": f"{rank} {part}" for rank in (0, 1) for part in range(5)}
        assert contents(there) == want | {".metadata": "all"}


RANK = """
import os, sys
folder, rank = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
for part in range(5):
    open(f"{folder}/__{rank}_{part}.distcp", "w").write(f"{rank} {part}")
"""
