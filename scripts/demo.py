"""The demonstration: a checkpoint outlives its node. Run by scripts/demo; needs root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tierfs.control import session_directory

Tensors = dict[str, np.ndarray]

SHARDS = 3
SHARD_BYTES = 32 << 20

_step = 0


def step(title: str, *lines: str) -> None:
    """Announce what happens next, in plain words."""
    global _step
    _step += 1
    print(f"\n{_step}. {title}", *(f"   {line}" for line in lines), sep="\n", flush=True)


def tierfs(*words: str | Path, capture: bool = True) -> str:
    """Run a tierfs command as a user would, showing it; its output if it is captured."""
    command = [str(word) for word in words]
    print(f"   $ tierfs {' '.join(command)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "tierfs", *command],
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"   exit code {done.returncode}: the demonstration failed here")
    return done.stdout or ""


class Node:
    """One machine: a local tier of its own, and a mount of the shared one."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.local = root / f"nvme-of-{name}"
        self.shared = root / "shared"
        self.mount = root / f"mount-on-{name}"
        self.pid = 0

    def start(self) -> None:
        """Mount."""
        self.mount.mkdir()
        self.local.mkdir()
        said = tierfs(
            "mount", self.mount, "--local", self.local, "--shared", self.shared,
            "--node", self.name, "--json",
        )  # fmt: skip
        self.pid = json.loads(said)["pid"]

    def die(self) -> None:
        """What a dead machine leaves: no process, no mount, no local drive."""
        os.kill(self.pid, signal.SIGKILL)
        tierfs("umount", "--force", self.mount)
        shutil.rmtree(self.local)
        shutil.rmtree(session_directory(str(self.mount)))


def make_tensors() -> list[Tensors]:
    """The shards of a little model with random weights."""
    random = np.random.default_rng(7)
    count = SHARD_BYTES // 4 // 2
    return [
        {f"layer{i}.{part}": random.random(count, dtype=np.float32) for part in ("up", "down")}
        for i in range(SHARDS)
    ]


def shard_name(number: int) -> str:
    """As the Hugging Face libraries name them."""
    return f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"


def save(folder: Path, shards: list[Tensors]) -> None:
    """Save a checkpoint as training frameworks do: shards, index, then the pointer to it."""
    folder.mkdir()
    weights = {}
    for number, tensors in enumerate(shards):
        save_file(tensors, folder / shard_name(number))
        weights.update(dict.fromkeys(tensors, shard_name(number)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    (folder.parent / "latest").write_text(folder.name)


def load(root: Path) -> list[Tensors]:
    """Load what `latest` points to."""
    folder = root / (root / "latest").read_text()
    weights = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return [load_file(folder / name) for name in sorted(set(weights.values()))]


def equal(left: list[Tensors], right: list[Tensors]) -> bool:
    """Whether both have the same tensors, bit for bit."""
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True)
    )


def show_tree(root: Path) -> None:
    """List the plain files of the shared tier."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and ".tierfs" not in path.parts:
            print(f"   {path.stat().st_size:>12,}  {path.relative_to(root)}")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder that is gone afterwards, mounts included."""
    base = os.environ.get("TMPDIR", "/var/tmp")
    root = Path(tempfile.mkdtemp(prefix="tierfs-demo-", dir=base))
    try:
        try:
            os.setxattr(root, "user.tierfs-demo", b"1")
        except OSError:
            sys.exit(f"{base}: its file system has no user xattrs; set TMPDIR to another folder")
        yield root
    finally:
        for mount in root.glob("mount-on-*"):
            subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(root, ignore_errors=True)


def story(root: Path) -> None:
    """The demonstration itself."""
    (root / "shared").mkdir()
    total = SHARDS * SHARD_BYTES >> 20
    first, second = Node("a", root), Node("b", root)

    step(
        "Node a mounts",
        "Two folders stand for two drives: fast NVMe that belongs to node a, and the shared",
        "NVMe-oF tier that every node sees.",
    )
    first.start()

    step("A checkpoint is saved", "Training code saves into the mount and knows nothing of tierfs.")
    shards = make_tensors()
    started = time.monotonic()
    save(first.mount / "checkpoint-100", shards)
    print(
        f"   {total} MiB saved and closed after {time.monotonic() - started:.2f} s, on NVMe only."
    )
    status = json.loads(tierfs("status", first.mount, "--json"))
    if status["pending_files"]:
        print(
            f"   {status['pending_files']} files ({status['pending_bytes']:,} bytes) are not shared"
        )
        print("   yet: sending began at once and goes on. They would be lost with the node.")
    else:
        print("   Sending began at once and is done already, as this checkpoint is small. What is")
        print("   not sent yet would be lost with the node; status says how much that is.")

    step(
        "The save is made safe",
        "flush --wait returns 0 only when every file was copied, read back from the shared tier,",
        "compared, and given its final name; `latest` comes last: it never points to half a",
        "checkpoint.",
    )
    tierfs("flush", "--wait", first.mount, capture=False)
    print("   On the shared tier there are plain files, readable with or without tierfs:")
    show_tree(root / "shared")

    step("Node a dies", "Its processes are killed and its local drive is gone for good.")
    first.die()

    step(
        "Node b takes over",
        "Another machine with an empty local drive mounts the same shared tier.",
    )
    second.start()
    loaded = load(second.mount)
    if not equal(shards, loaded):
        sys.exit("   The loaded checkpoint DIFFERS from the saved one: please report this.")
    print(f"   Loaded {total} MiB through `latest`; every tensor is equal, bit for bit.")

    step("Tidying up", "Unmounting waits until everything is shared; then the folders are removed.")
    tierfs("umount", second.mount)


def main() -> None:
    """Tell the story; leave nothing behind."""
    with workplace() as root:
        story(root)
    print("\nDone: the checkpoint outlived its node.")


if __name__ == "__main__":
    main()
