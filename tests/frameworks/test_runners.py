"""Unmodified savers and loaders: saved on one mount, loaded on another with an empty local tier.

The runners are those of the folder TIERFS_FRAMEWORKS (default: ``../shared/frameworks`` beside the
checkout); the interpreter TIERFS_FW_PYTHON has torch, safetensors, transformers, accelerate and
datasets.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.frameworks.oracle import Oracle
from tests.harness import LoopDevice, Node, compare, wait_until

GIB = 1 << 30
CHECKOUT = Path(__file__).parents[2]
RUNNERS = Path(os.environ.get("TIERFS_FRAMEWORKS", CHECKOUT.parent / "shared" / "frameworks"))
PYTHON = os.environ.get("TIERFS_FW_PYTHON", "")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not RUNNERS.is_dir(), reason=f"no framework runners in {RUNNERS}"),
    pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason="TIERFS_FW_PYTHON is not set"),
]


@pytest.fixture
def device(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """The shared tier of one runner."""
    return make_device("shared", 2 * GIB)


def run(name: str, phase: str, directory: Path, scratch: Path) -> str:
    """One phase of a runner; fails with the end of what it printed."""
    done = subprocess.run(
        ["bash", RUNNERS / name / "run.sh", directory, phase],
        env={**os.environ, "FW_PY_TORCH": PYTHON, "FW_EXPECT": str(scratch / "expect")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, f"{name} {phase}:\n{done.stdout[-4000:]}"
    return done.stdout


def save_flush_load(name: str, node: Node, replacement: Node, tmp_path: Path) -> None:
    run(name, "save", node.mount, tmp_path)
    is_whole(name, node, replacement, tmp_path)


def is_whole(name: str, node: Node, replacement: Node, tmp_path: Path) -> None:
    """What a runner saved on `node` is committed, and loads on `replacement`."""
    node.settle(timeout=200)
    compare(node.mount, node.shared)
    replacement.start()
    printed = run(name, "load", replacement.mount, tmp_path)
    assert "ok " in printed


@pytest.mark.parametrize("name", ["01_torch_save", "02_torch_dcp", "03_safetensors"])
def test_saved_here_loaded_there_never_half_shown(
    make_node: Callable[..., Node], device: LoopDevice, tmp_path: Path, name: str
) -> None:
    node = make_node("saver", shared=device.mountpoint).start()
    loader = make_node("loader", shared=device.mountpoint)
    script = RUNNERS / "_lib" / "looks_complete.py"
    with Oracle(PYTHON, script, device, tmp_path / "copies") as oracle:
        save_flush_load(name, node, loader, tmp_path)
    assert oracle.bad == []
    assert oracle.looks > 3
    if name == "02_torch_dcp":
        assert oracle.complete > 0


@pytest.mark.parametrize("name", ["04_hf"])
def test_saved_here_loaded_there(
    make_node: Callable[..., Node], device: LoopDevice, tmp_path: Path, name: str
) -> None:
    node = make_node("saver", shared=device.mountpoint).start()
    loader = make_node("loader", shared=device.mountpoint)
    save_flush_load(name, node, loader, tmp_path)


def test_saved_across_a_kill_of_the_daemon(
    make_node: Callable[..., Node], device: LoopDevice, tmp_path: Path
) -> None:
    node = make_node("saver", shared=device.mountpoint).start()
    loader = make_node("loader", shared=device.mountpoint)
    run("03_safetensors", "save", node.mount, tmp_path)
    node.kill()
    node.start()
    node.settle(timeout=200)
    loader.start()
    run("03_safetensors", "load", loader.mount, tmp_path)


def test_dcp_save_while_the_worker_is_killed_again_and_again(
    device: LoopDevice, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node(shared=device.mountpoint)
    node.settings["supervisor"] = True
    node.expected = [r"worker \d+ ended \(killed by SIGKILL\)"]
    node.start()
    kills = 0
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(run, "02_torch_dcp", "save", node.mount, tmp_path)
        wait_until(
            lambda: os.listdir(node.mount) or saving.done(), "the save to begin", timeout=200
        )
        while not saving.done():
            node.kill_worker()
            kills += 1
            wait([saving], timeout=1)
        saving.result()
    assert kills >= 2
    assert node.status()["restarts"] == kills
    loader = make_node("loader", shared=device.mountpoint)
    is_whole("02_torch_dcp", node, loader, tmp_path)
