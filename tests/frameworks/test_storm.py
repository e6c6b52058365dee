"""Savers that rotate, killed within and between their files, on a node that is killed as well.

All the while the oracle judges frozen copies of the shared tier, and in the end an empty node
resumes from what is there. `-m soak`; TIERFS_STORM_SECONDS says for how long.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.oracle import Oracle
from tests.frameworks.test_runners import PYTHON, RUNNERS
from tests.harness import LoopDevice, Node

MIB = 1 << 20
HERE = Path(__file__).parent
SAVERS = ("single", "accel", "pretrained", "dcp")
"""Modes of 04_hf, and 02_torch_dcp with two ranks."""

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not RUNNERS.is_dir(), reason=f"no framework runners in {RUNNERS}"),
    pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason="TIERFS_FW_PYTHON is not set"),
]


def start(saver: str, directory: Path, scratch: Path) -> subprocess.Popen[bytes]:
    """A saver in a session of its own, so that all its ranks die at once."""
    words: list[str | Path] = [PYTHON, RUNNERS / "04_hf" / "hf.py", directory, "save", saver]
    if saver == "dcp":
        words = ["bash", RUNNERS / "02_torch_dcp" / "run.sh", directory, "save"]
    directory.mkdir()
    environment = {
        "FW_PY_TORCH": PYTHON, "FW_EXPECT": str(scratch / "expect"), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(RUNNERS / "_lib"), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with (scratch / "printed").open("w") as printed:
        return subprocess.Popen(
            words, env={**os.environ, **environment}, start_new_session=True, stdout=printed,
            stderr=subprocess.STDOUT,
        )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """The saver with all its ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Rounds:
    """One saver after the other."""

    def __init__(self, node: Node, seed: int, scratch: Path) -> None:
        self._node = node
        self._random = random.Random(seed)
        self._scratch = scratch
        self.kills: dict[str, int] = {"worker": 0, "daemon": 0, "saver": 0}

    def one(self, number: int) -> None:
        """A saver that is killed or not, while its node is."""
        saver = self._random.choice(SAVERS)
        process = start(saver, self._node.mount / f"{number}-{saver}", self._scratch)
        try:
            # one that died between the old shards and the new index leaves that on any disk
            mortal = saver != "pretrained" and self._random.random() < 0.7
            end = time.monotonic() + self._random.uniform(8, 40) if mortal else float("inf")
            while process.poll() is None and time.monotonic() < end:
                self._strike(process, mortal=mortal)
            if process.poll() is None:
                self.kills["saver"] += 1
                kill(process)
            printed = (self._scratch / "printed").read_text()[-3000:]
            allowed = (0, -signal.SIGKILL) if mortal else (0,)
            assert process.returncode in allowed, f"{saver}: {printed}"
        finally:
            kill(process)
            if self._random.random() < 0.5:
                shutil.rmtree(self._node.mount / f"{number}-{saver}", ignore_errors=True)

    def _strike(self, process: subprocess.Popen[bytes], *, mortal: bool) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._random.uniform(1, 6))
            return
        if self._random.random() < 0.9:
            self.kills["worker"] += 1
            self._node.kill_worker()
        elif mortal:
            self.kills["daemon"] += 1
            kill(process)
            self._node.kill()
            self._node.start()


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIERFS_STORM_SEEDS", "1"))))
def test_savers_and_their_node_die(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node], tmp_path: Path,
    seed: int,
) -> None:  # fmt: skip
    device = make_device("shared", 4096 * MIB)
    node = make_node("saver", shared=device.mountpoint)
    node.settings |= {"supervisor": True, "group_settle": 2.0}
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)"]
    node.start()
    rounds = Rounds(node, seed, tmp_path)
    end = time.monotonic() + float(os.environ.get("TIERFS_STORM_SECONDS", "300"))
    script = RUNNERS / "_lib" / "looks_complete.py"
    with Oracle(PYTHON, script, device, tmp_path / "copies") as oracle:
        number = 0
        while time.monotonic() < end and not oracle.bad:
            rounds.one(number)
            number += 1
        last = start("single", node.mount / "last", tmp_path)
        assert last.wait() == 0, (tmp_path / "printed").read_text()[-3000:]
        node.flush(timeout=60)
    assert oracle.bad == []
    assert oracle.complete > 0
    node.kill()
    empty = make_node("empty", shared=device.mountpoint).start()
    loading = [PYTHON, str(HERE / "resume.py"), str(empty.mount)]
    done = subprocess.run(loading, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"loaded {empty.mount}/last/single/checkpoint-8" in done.stdout, rounds.kills
