"""G3, G4, G6: the daemon dies at any step that makes, seals, overwrites or removes a checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness import Node, wait_until

FILES = ("model.safetensors", "optimizer.pt", "trainer_state.json")
HALF = ("model.safetensors", "optimizer.pt")


def save(run: Path, step: int, text: str) -> None:
    """What a Trainer does, and does again when it is started anew."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    for name in FILES:
        (folder / name).write_bytes(f"{text} {name}".encode())


@dataclass
class Onlooker:
    """Looks at the shared tier all the while, as a job elsewhere does that wants to resume.

    Attributes:
        texts: the contents that a whole checkpoint may have, each the same in all its files.
    """

    run: Path
    texts: frozenset[str]
    keeps_one: bool = False
    wrong: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Note what is wrong at this moment."""
        try:
            names = os.listdir(self.run)
        except FileNotFoundError:
            return
        whole = [name for name in names if name.startswith("checkpoint-") and self._is_whole(name)]
        # a listing is no snapshot: what was made and removed meanwhile may be missing in it
        if self.keeps_one and not whole and not self._any_whole():
            self.wrong.append(f"no whole checkpoint any more: {names}")

    def _any_whole(self) -> bool:
        return any(self._is_whole(f"checkpoint-{step}") for step in range(1, 4))

    def _is_whole(self, name: str) -> bool:
        while True:
            try:
                fd = os.open(self.run / name, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return False
            try:
                found = {each: self._read(fd, each) for each in os.listdir(fd)}
                here = os.fstat(fd).st_ino
            finally:
                os.close(fd)
            try:
                if os.stat(self.run / name).st_ino != here:
                    continue  # it was removed or replaced while it was read
            except FileNotFoundError:
                return False
            break
        if not any(found == self._content(text) for text in self.texts):
            self.wrong.append(f"{name}: {found}")
        return True

    @staticmethod
    def _content(text: str) -> dict[str, bytes]:
        return {each: f"{text} {each}".encode() for each in FILES}

    @staticmethod
    def _read(folder: int, name: str) -> bytes:
        try:
            fd = os.open(name, os.O_RDONLY, dir_fd=folder)
        except FileNotFoundError:
            return b""
        try:
            return os.read(fd, 1000)
        finally:
            os.close(fd)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look again and again."""
        over = threading.Event()

        def loop() -> None:
            while not over.wait(0.001):
                self.look()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass(frozen=True)
class Story:
    """What an application does, what was there before, and what has to come of it.

    Attributes:
        before: done and committed before the daemon that will die is started.
        doing: what the application does, from its beginning again if the mount dies under it.
        after: the checkpoints on the shared tier when all is done: number and content.
        texts: contents that whole checkpoints may have on the way.
        kept: files of the application that must be in quarantine at the end.
    """

    before: Callable[[Path], None]
    doing: Callable[[Path], None]
    after: dict[int, str]
    texts: frozenset[str]
    kept: int = 0


def nothing(run: Path) -> None:
    """A run that begins."""
    run.mkdir()


def one(run: Path) -> None:
    run.mkdir()
    save(run, 1, "old")


def two(run: Path) -> None:
    run.mkdir()
    save(run, 1, "old")
    save(run, 2, "old")


def remove(run: Path) -> None:
    """rm -rf, which may be begun again."""
    shutil.rmtree(run / "checkpoint-1", ignore_errors=not (run / "checkpoint-1").exists())


def save_again(run: Path) -> None:
    remove(run)
    save(run, 1, "new")


def delete_first(run: Path) -> None:
    remove(run)
    save(run, 2, "new")


def killed_writer(run: Path) -> None:
    """A trainer was killed in the middle: it wrote a shard that the next one does not write."""
    run.mkdir()
    code = (
        "import os, signal, sys\n"
        "folder = sys.argv[1] + '/checkpoint-1'\n"
        "os.mkdir(folder)\n"
        "for name in ('model.safetensors', 'left-over.pt'):\n"
        "    with open(f'{folder}/{name}', 'wb') as file: file.write(b'left')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, run], check=False)


STORIES = {
    "save": Story(nothing, lambda run: save(run, 1, "new"), {1: "new"}, frozenset({"new"})),
    "overwrite": Story(one, lambda run: save(run, 1, "new"), {1: "new"}, frozenset({"old", "new"})),
    "remove": Story(two, remove, {2: "old"}, frozenset({"old"})),
    "save-again": Story(one, save_again, {1: "new"}, frozenset({"old", "new"})),
    "delete-first": Story(one, delete_first, {2: "new"}, frozenset({"old", "new"})),
    "left-over": Story(
        killed_writer, lambda run: save(run, 1, "new"), {1: "new"}, frozenset({"new"}), kept=1
    ),
}

CASES = [
    ("save", "mkdir.rename:1"), ("save", "record.publish:1"), ("save", "manifest.publish:1"),
    ("save", "seal.rename:1"), ("save", "seal.fsync_dir:1"), ("save", "record.publish:3"),
    ("overwrite", "reopen.link:2"), ("overwrite", "linked.publish:1"),
    ("overwrite", "reopen.rename:1"), ("overwrite", "reopen.fsync_dir:1"),
    ("overwrite", "seal.exchange:1"), ("overwrite", "seal.fsync_dir:1"),
    ("overwrite", "trash.rename:1"),
    ("remove", "trash.rename:1"), ("remove", "trash.fsync_dir:1"), ("remove", "forget.rmdir:1"),
    ("save-again", "seal.exchange:1"), ("save-again", "trash.fsync_trash:1"),
    ("delete-first", "trash.rename:1"), ("delete-first", "seal.rename:1"),
    ("left-over", "record.publish:1"), ("left-over", "quarantine.rename:1"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "step"), CASES)
def test_death_at_a_step(make_node: Callable[..., Node], story: str, step: str) -> None:
    told = STORIES[story]
    node = make_node()
    node.settings["supervisor"] = False
    node.start()
    run = node.mount / "run"
    told.before(run)
    if told.kept:
        node.flush()
    else:
        node.settle()
    assert node.umount("--force").code == 0
    looking = Onlooker(node.shared / "run", told.texts, keeps_one=told.before in (one, two))
    node.environment["TIERFS_TEST_FAULT"] = f"{step}:kill"
    node.start()
    with looking.watching():
        try:
            told.doing(run)
        except OSError:
            wait_until(lambda: not node.is_alive(), f"the daemon to die at {step}")
        if node.is_alive():
            node.flush(timeout=30)
        wait_until(lambda: not node.is_alive(), f"the daemon to die at {step}")
        looking.look()
        del node.environment["TIERFS_TEST_FAULT"]
        node.start()
        told.doing(run)
        node.settle()
    assert looking.wrong == []
    check_end(node, told)


def check_end(node: Node, told: Story) -> None:
    """The shared tier and the mount have what the application wanted, and nothing else."""
    for root in (node.shared / "run", node.mount / "run"):
        found = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*") if path.is_file()
        }  # fmt: skip
        assert found == {
            f"checkpoint-{step}/{name}": f"{text} {name}".encode()
            for step, text in told.after.items() for name in FILES
        }  # fmt: skip
    staging = node.shared / ".tierfs" / "staging"
    wait_until(lambda: all(path.is_dir() for path in staging.rglob("*")), "the staging to be swept")
    kept = [*(node.shared / ".tierfs").glob("quarantine/*/content")]
    assert len(kept) == told.kept, kept


@pytest.mark.parametrize("again", [False, True])
def test_removed_while_it_is_written_again(node: Node, again: bool) -> None:
    """The older generation is all that is whole: it stays; the newer one goes as it came."""
    run = node.mount / "run"
    one(run)
    node.settle()
    (run / "checkpoint-1" / FILES[0]).write_bytes(b"a newer one, begun")
    shutil.rmtree(run / "checkpoint-1")
    node.settle()
    looking = Onlooker(node.shared / "run", frozenset({"old", "new"}), keeps_one=True)
    looking.look()
    assert node.umount().code == 0
    node.start()
    assert os.listdir(run) == []
    assert not (run / "checkpoint-1").exists()
    step = 1 if again else 2
    save(run, step, "new")
    node.settle()
    looking.look()
    assert looking.wrong == []
    wait_until(lambda: not node.status()["held"], "the older generation to go")
    node.settle()
    check_end(node, Story(one, one, {step: "new"}, frozenset()))
    assert [*(node.shared / ".tierfs" / "trash").iterdir()] == []


def test_what_leaves_a_checkpoint_before_its_name_is_removed(node: Node) -> None:
    """A file moved out, another put under its name, and that removed: what was moved is kept."""
    run = node.mount / "run"
    one(run)
    node.settle()
    node.environment["TIERFS_TEST_FAULT"] = "reopen.open:1+:EIO"
    node.expected = ["Input/output error"]
    node.restart()
    folder = run / "checkpoint-1"
    (folder / FILES[0]).write_bytes(b"new")
    os.rename(folder / FILES[1], run / "kept.pt")
    (folder / FILES[1]).write_bytes(b"another")
    (folder / FILES[1]).unlink()
    assert node.umount("--force").code == 0
    del node.environment["TIERFS_TEST_FAULT"]
    node.start()
    (folder / FILES[2]).write_bytes(b"new")
    node.settle()
    assert (node.shared / "run" / "kept.pt").read_bytes() == f"old {FILES[1]}".encode()
    assert sorted(os.listdir(node.shared / "run" / "checkpoint-1")) == [FILES[0], FILES[2]]


def test_another_node_finishes_the_seal_of_a_dead_one(make_node: Callable[..., Node]) -> None:
    """Where names cannot be exchanged, one is free for a moment: whoever looks then puts it right.

    The old checkpoint was taken away, and the new one has not its name yet.
    """
    node = make_node()
    node.settings["supervisor"] = False
    node.start()
    one(node.mount / "run")
    node.settle()
    assert node.umount().code == 0
    node.environment["TIERFS_TEST_FAULT"] = "seal.exchange:1:EINVAL,seal.rename:1:kill"
    node.start()
    save(node.mount / "run", 1, "new")
    node.flush(timeout=20)
    wait_until(lambda: not node.is_alive(), "the daemon to die")
    assert not (node.shared / "run" / "checkpoint-1").exists()
    other = make_node("b").start()
    seen = other.mount / "run" / "checkpoint-1" / FILES[0]
    assert seen.read_bytes() == f"new {FILES[0]}".encode()
    assert os.listdir(node.shared / "run") == ["checkpoint-1"]
