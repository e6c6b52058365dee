"""Checkpoints made, copied and moved by people at a shell, and by ranks that end at times of their
own: what a flush makes of each.
"""

from __future__ import annotations

import shlex
import subprocess
import tarfile
from pathlib import Path

from tests.harness import Node, compare, wait_until
from tests.harness.checkpoints import DCP, TRAINER


def shell(script: str, where: Path) -> int:
    """Run `script` in a shell of its own; its exit status."""
    return subprocess.run(["bash", "-c", script], cwd=where, check=False).returncode


def sources(node: Node, *names: str) -> str:
    """Files of these names beside the mount, to be copied from; their directory for a shell."""
    folder = node.root / "sources"
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode() * 10_000)
    return shlex.quote(str(folder))


def flush_in_shell(node: Node) -> str:
    """The words of `tierfs flush --wait`, for a script."""
    return (
        shlex.join(node.command("flush", "--wait", "--timeout", "60", node.mount)) + " >/dev/null"
    )


def python_path(node: Node) -> str:
    """What a script needs before it calls `tierfs` of this checkout."""
    return f"export PYTHONPATH={shlex.quote(node.python_path()['PYTHONPATH'])}; "


def names(folder: Path) -> set[str]:
    """What is in `folder`, but for what tierfs keeps for itself."""
    return {each.name for each in folder.iterdir() if each.name != ".tierfs"}


def test_copied_in_by_one_script_and_flushed(node: Node) -> None:
    files = sources(node, "a", "b")
    script = f"mkdir step_5; cp {files}/a step_5/; cp {files}/b step_5/; {flush_in_shell(node)}"
    assert shell(python_path(node) + script, node.mount) == 0
    assert names(node.shared / "step_5") == {"a", "b"}


def test_copied_in_at_a_prompt_and_flushed_at_another(node: Node) -> None:
    files = sources(node, "a", "b")
    assert shell(f"mkdir step_5; cp {files}/a step_5/; cp {files}/b step_5/", node.mount) == 0
    node.settle()
    assert names(node.shared / "step_5") == {"a", "b"}


def test_writer_that_fails_half_way_and_is_run_again(node: Node) -> None:
    script = "set -e; mkdir -p step_5; echo %s > step_5/a; %s; echo b > step_5/b"
    assert shell(script % ("old; echo gone > step_5/c", "exit 1"), node.mount) == 1
    result = node.flush()
    assert result.code == 6, result.out
    assert not (node.shared / "step_5").exists()
    assert shell(script % ("new", "true"), node.mount) == 0
    node.settle()
    assert names(node.shared / "step_5") == {"a", "b"}, "what only the one that failed wrote"
    assert (node.shared / "step_5" / "a").read_text() == "new\n"
    compare(node.mount, node.shared)


def test_two_ranks_of_which_one_is_slower(node: Node) -> None:
    """The end marker is there before the other rank has written its part."""
    node.mount.joinpath("checkpoint-5").mkdir()
    slow = subprocess.Popen(
        ["bash", "-c", "exec 3> rng_state_1.pth; read -r line; echo state >&3"],
        cwd=node.mount / "checkpoint-5", stdin=subprocess.PIPE,
    )  # fmt: skip
    wait_until((node.mount / "checkpoint-5" / "rng_state_1.pth").exists, "the slow rank to open")
    for name in (*TRAINER.shards, TRAINER.marker):
        (node.mount / "checkpoint-5" / name).write_bytes(b"x" * 1000)
    result = node.flush()
    assert result.code == 6, result.out
    assert "rng_state_1.pth" in result.json["unsealed"][0]["reason"]
    assert not (node.shared / "checkpoint-5").exists()
    slow.communicate(b"go on\n")
    assert slow.returncode == 0
    node.settle()
    assert (node.shared / "checkpoint-5" / "rng_state_1.pth").read_bytes() == b"state\n"


def test_tar_unpacks_a_run(node: Node) -> None:
    run = node.root / "run"
    run.mkdir()
    for step in (1, 2):
        TRAINER.save(run, step, 100_000)
        DCP.save(run, step, 100_000)
    archive = node.root / "run.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(run, "run")
    assert shell(f"tar xf {shlex.quote(str(archive))}", node.mount) == 0
    node.settle()
    compare(node.mount / "run", node.shared / "run")
    compare(run, node.shared / "run", ignore=["mtime_ns"])  # tarfile rounds them


def test_directory_moved_into_place(node: Node) -> None:
    files = sources(node, "a", "b")
    script = f"mkdir step_5.tmp; cp {files}/a {files}/b step_5.tmp; mv step_5.tmp step_5"
    assert shell(script, node.mount) == 0
    node.settle()
    assert names(node.shared) == {"step_5"}
    assert names(node.shared / "step_5") == {"a", "b"}


def test_copied_elsewhere_in_the_mount(node: Node) -> None:
    TRAINER.save(node.mount, 5, 100_000)
    node.settle()
    assert shell("mkdir kept; cp -a checkpoint-5 kept/; cp -a checkpoint-5 best", node.mount) == 0
    node.settle()
    for copy in ("kept/checkpoint-5", "best"):
        compare(node.shared / "checkpoint-5", node.shared / copy)


def test_sealed_checkpoint_renamed(node: Node) -> None:
    TRAINER.save(node.mount, 5, 100_000)
    node.settle()
    assert shell("mv checkpoint-5 best; mkdir old; mv best old/checkpoint-7", node.mount) == 0
    node.settle()
    assert names(node.shared) == {"old"}
    compare(node.mount, node.shared)


def test_unsealed_checkpoint_renamed_is_no_checkpoint_any_more(node: Node) -> None:
    assert shell("mkdir step_5; echo a > step_5/a; mv step_5 notes", node.mount) == 0
    node.settle()
    assert names(node.shared) == {"notes"}
    assert (node.shared / "notes" / "a").read_text() == "a\n"
