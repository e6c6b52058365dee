"""Checkpoints that dead writers left: listed by nobody, readable by name, made and written anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness import Node, wait_until

LEAVE = """
import os, signal, sys
folder = sys.argv[1]
os.mkdir(folder)
for name in ("model.safetensors", "optimizer.pt"):
    with open(f"{folder}/{name}", "wb") as file:
        file.write(b"left")
if sys.argv[2:]:
    open(f"{folder}/half", "wb").write(b"torn")
    file = open(f"{folder}/half", "wb", buffering=0)
    file.write(b"tor")
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave(folder: Path, *torn: str) -> None:
    """A process that is killed while it saves."""
    done = subprocess.run([sys.executable, "-c", LEAVE, str(folder), *torn], check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: folder.name not in os.listdir(folder.parent), "it to be unlisted")


def quarantined(node: Node) -> dict[str, str]:
    """What is in quarantine: where it was, and why it is there."""
    found = {}
    for why in (node.shared / ".tierfs" / "quarantine").glob("*/why.json"):
        values = json.loads(why.read_text())
        found[values["path"]] = values["why"]
    return found


def test_it_is_readable_by_name_and_can_be_made_again(node: Node) -> None:
    run = node.mount / "run"
    run.mkdir()
    folder = run / "checkpoint-1"
    leave(folder)
    assert (folder / "model.safetensors").read_bytes() == b"left"
    assert folder.is_dir()
    folder.mkdir()
    assert os.listdir(run) == ["checkpoint-1"]
    (folder / "model.safetensors").write_bytes(b"new")
    (folder / "trainer_state.json").write_bytes(b"new")
    assert (folder / "optimizer.pt").read_bytes() == b"left"
    node.settle()
    assert sorted(os.listdir(node.shared / "run" / "checkpoint-1")) == [
        "model.safetensors", "trainer_state.json",
    ]  # fmt: skip
    assert list(quarantined(node)) == ["run/.staging_checkpoint-1/optimizer.pt"]
    node.settings["incomplete_keep"] = 0
    node.restart()
    wait_until(lambda: not quarantined(node), "the quarantine to be emptied")


def test_mkdir_of_a_listed_one_says_that_it_is_there(node: Node) -> None:
    folder = node.mount / "checkpoint-1"
    folder.mkdir()
    try:
        folder.mkdir()
    except FileExistsError:
        return
    raise AssertionError("it was made twice")


def test_a_directory_with_nothing_else_in_it_can_be_removed(node: Node) -> None:
    run = node.mount / "run"
    run.mkdir()
    leave(run / "checkpoint-1")
    leave(run / "checkpoint-2", "torn")
    node.expected = ["torn"]
    shutil.rmtree(run)
    assert os.listdir(node.mount) == []
    node.settle()
    assert not (node.shared / "run").exists()
    assert sorted(quarantined(node)) == ["run/.staging_checkpoint-1", "run/.staging_checkpoint-2"]
    run.mkdir()
    (run / "f").write_bytes(b"f")
    node.settle()
    assert os.listdir(node.shared / "run") == ["f"]


def test_writers_that_die_with_the_daemon_leave_it_unlisted(node: Node) -> None:
    run = node.mount / "run"
    run.mkdir()
    code = LEAVE.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(flush=True); input()")
    writer = subprocess.Popen(
        [sys.executable, "-c", code, run / "checkpoint-1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert os.listdir(run) == ["checkpoint-1"]
        node.kill()
        writer.kill()
    node.start()
    assert os.listdir(run) == []
    folder = run / "checkpoint-1"
    assert (folder / "optimizer.pt").read_bytes() == b"left"
    (folder / "model.safetensors").write_bytes(b"new")
    (folder / "trainer_state.json").write_bytes(b"new")
    assert os.listdir(run) == ["checkpoint-1"]
    node.settle()
    assert sorted(os.listdir(node.shared / "run" / "checkpoint-1")) == [
        "model.safetensors", "trainer_state.json",
    ]  # fmt: skip
    assert list(quarantined(node)) == ["run/.staging_checkpoint-1/optimizer.pt"]


def test_a_worker_that_is_replaced_changes_nothing(node: Node) -> None:
    """The writer lives and goes on: the same generation, listed all the while, sealed at last."""
    node.expected = ["the next one takes over"]
    folder = node.mount / "checkpoint-1"
    folder.mkdir()
    (folder / "optimizer.pt").write_bytes(b"before")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(b"be")
        node.kill_worker()
        file.write(b"fore")
    assert os.listdir(node.mount) == ["checkpoint-1"]
    node.kill_worker()
    (folder / "trainer_state.json").write_bytes(b"after")
    node.settle()
    assert sorted(os.listdir(node.shared / "checkpoint-1")) == [
        "model.safetensors", "optimizer.pt", "trainer_state.json",
    ]  # fmt: skip
    assert (node.shared / "checkpoint-1" / "model.safetensors").read_bytes() == b"before"
    assert quarantined(node) == {}


def test_one_that_loses_its_end_marker_is_whole_no_more(node: Node) -> None:
    """It is unsealed first, so that nothing elsewhere takes for whole what is being edited."""
    run = node.mount / "run"
    folder = run / "checkpoint-1"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (folder / name).write_bytes(b"one")
    node.settle()
    (folder / "optimizer.pt").unlink()
    (folder / "trainer_state.json").unlink()
    assert node.flush().code == 6
    assert os.listdir(node.shared / "run") == [".staging_checkpoint-1"]
    assert os.listdir(node.shared / "run" / ".staging_checkpoint-1") == ["model.safetensors"]
    assert os.listdir(folder) == ["model.safetensors"]
    node.restart()
    assert os.listdir(folder) == ["model.safetensors"]
    (folder / "trainer_state.json").write_bytes(b"two")
    node.settle()
    assert sorted(os.listdir(node.shared / "run" / "checkpoint-1")) == [
        "model.safetensors", "trainer_state.json",
    ]  # fmt: skip
    assert quarantined(node) == {}


def test_other_files_of_a_sealed_one_are_removed_in_place(node: Node) -> None:
    folder = node.mount / "checkpoint-1"
    folder.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (folder / name).write_bytes(b"one")
    node.settle()
    before = (node.shared / "checkpoint-1").stat().st_ino
    (folder / "optimizer.pt").unlink()
    node.settle()
    assert (node.shared / "checkpoint-1").stat().st_ino == before
    assert sorted(os.listdir(node.shared / "checkpoint-1")) == [
        "model.safetensors", "trainer_state.json",
    ]  # fmt: skip


SAVE = """
import os, signal, sys
folder, text, *names = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
for name in names:
    with open(f"{folder}/{name}", "w") as file:
        file.write(text)
if text == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def save(folder: Path, text: str, *names: str) -> None:
    """A process of its own that writes the files `names` of a checkpoint; it may be "killed"."""
    subprocess.run([sys.executable, "-c", SAVE, str(folder), text, *names], check=False)


def test_an_end_marker_does_not_call_whole_what_is_written_over_afterwards(node: Node) -> None:
    """The first save is whole and not published yet when the next one begins, and is killed."""
    node.expected = ["the next one takes over"]
    folder = node.mount / "checkpoint-1"
    names = ("model.safetensors", "optimizer.pt", "trainer_state.json")
    save(folder, "first", *names)
    save(folder, "killed", "model.safetensors")
    assert node.flush().code == 6
    assert not (node.shared / "checkpoint-1").exists()
    node.kill_worker()
    assert node.flush().code == 6
    save(folder, "again", *names)
    node.settle()
    there = {path.name: path.read_text() for path in (node.shared / "checkpoint-1").iterdir()}
    assert there == dict.fromkeys(names, "again")
