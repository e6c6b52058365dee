"""Jobs that remove a checkpoint before the next is there, and jobs that write one again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.harness import LoopDevice, Node, Recorder, jobs, wait_until
from tests.harness.campaign import Watch
from tests.harness.checkpoints import Shape, paths_below

MIB = 1 << 20
ACCELERATE = Shape(
    "accelerate", "checkpoint_{}", ("model.safetensors", "optimizer.bin"), "random_states_0.pkl"
)
KILLED = """
import os, signal, sys
os.mkdir(sys.argv[1])
open(os.path.join(sys.argv[1], "optimizer.bin"), "wb").write(b"killed")
file = open(os.path.join(sys.argv[1], ".tmpAb3dEf"), "wb", buffering=0)
file.write(b"killed")
os.kill(os.getpid(), signal.SIGKILL)
"""


OVER = """
import os, signal, sys
names = os.listdir(sys.argv[1])
for name in sorted(names)[:2]:
    open(os.path.join(sys.argv[1], name), "wb").write(b"killed")
open(os.path.join(sys.argv[1], ".tmpAb3dEf"), "wb").write(b"killed")
file = open(os.path.join(sys.argv[1], sorted(names)[1]), "wb", buffering=0)
file.write(b"half")
for name in names:
    open(os.path.join(sys.argv[1], name), "rb").read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def shown(shared: Path) -> set[str]:
    """The checkpoints that stand under their names."""
    return {name for name in os.listdir(shared) if name.startswith("checkpoint")}


def test_a_job_that_keeps_one_checkpoint_publishes_while_it_goes_on(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """Accelerate with total_limit=1: each is removed before anything says that it is whole."""
    device = make_device("watched", 512 * MIB)
    node = make_node(shared=device.mountpoint).start()
    kind = jobs.KINDS["accelerate"]
    words = [kind.name, node.mount / kind.name, 1, 10_000, 0, 1]
    job = subprocess.Popen([sys.executable, jobs.__file__, *map(str, words)])
    try:
        with Watch(device, [kind]) as watch:
            wait_until(lambda: watch.steps.get(kind.name, 0) > 20, "it to publish", timeout=150)
            assert job.poll() is None
            job.kill()
            job.wait()
        assert watch.bad == []
    finally:
        job.kill()
        job.wait()
    run = device.mountpoint / kind.name
    wait_until(lambda: len(shown(run)) == 1, f"the older ones to go: {os.listdir(run)}")


def test_what_a_failed_save_left_is_not_published_when_it_is_removed(node: Node) -> None:
    """It has closed all, its profile asks for nothing more, and the job goes on."""
    ACCELERATE.save(node.mount, 1, 50_000)
    node.settle()
    failed = node.mount / ACCELERATE.folder(2)
    failed.mkdir()
    (failed / ACCELERATE.shards[0]).write_bytes(b"x" * 50_000)
    with Recorder(node.shared) as recorder:
        shutil.rmtree(failed)
        ACCELERATE.save(node.mount, 3, 50_000)
        node.settle()
        assert ACCELERATE.folder(2) not in recorder.appeared()
    assert shown(node.shared) == {ACCELERATE.folder(1), ACCELERATE.folder(3)}
    assert not any(name.startswith(".staging_") for name in os.listdir(node.shared))


def test_part_of_a_checkpoint_removed_is_no_removal_of_it(node: Node) -> None:
    """What is unlinked in it, and written again, goes as it always did."""
    ACCELERATE.save(node.mount, 1, 50_000)
    node.settle()
    folder = ACCELERATE.save(node.mount, 2, 50_000)
    (folder / ACCELERATE.shards[1]).unlink()
    (folder / ACCELERATE.shards[1]).write_bytes(b"again")
    (folder / ACCELERATE.marker).unlink()
    node.settle()
    assert paths_below(node.shared / ACCELERATE.folder(2)) == set(ACCELERATE.shards)
    assert (node.shared / ACCELERATE.folder(2) / ACCELERATE.shards[1]).read_bytes() == b"again"


def test_a_torn_file_of_a_killed_job_does_not_keep_the_next_from_being_sealed(node: Node) -> None:
    """Its successor saves the step again, with a temporary file of another name."""
    folder = node.mount / ACCELERATE.folder(1)
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: node.status()["stuck"], "the torn file to be told of")
    ACCELERATE.save_again(node.mount, 1, 50_000)
    node.settle()
    assert paths_below(node.shared / ACCELERATE.folder(1)) == {
        *ACCELERATE.shards,
        ACCELERATE.marker,
    }
    assert node.status()["stuck"] == []


def test_who_looks_when_a_job_was_killed_in_what_is_published_sees_what_is(node: Node) -> None:
    """Though the kernel still has what the job looked up: it wrote it over, and read it."""
    folder = ACCELERATE.save(node.mount, 1, 50_000)
    node.settle()
    published = {path: path.read_bytes() for path in folder.iterdir()}
    for _ in range(3):
        job = subprocess.run([sys.executable, "-c", OVER, folder], check=False)
        assert job.returncode == -signal.SIGKILL
        assert {path: path.read_bytes() for path in folder.iterdir()} == published
    node.settle()
    assert not any(name.startswith(".staging_") for name in os.listdir(node.shared))
    assert {path: path.read_bytes() for path in folder.iterdir()} == published
    kept = node.shared.glob(".tierfs/quarantine/*/content/*")
    assert {path.read_bytes() for path in kept} == {b"killed", b"half"}
