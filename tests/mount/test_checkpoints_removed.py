"""Users who want checkpoints gone: each gets what was meant, in bounded time, and is told of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.harness import LoopDevice, Node, frozen, hangs, wait_until
from tests.harness.checkpoints import TRAINER
from tierfs.kernel.answers import TIMEOUT_SECONDS

MIB = 1 << 20
TIMES = {"group_settle": 1.0, "delete_hold": 3600.0, "full_hold": 1.0}


def started(make_node: Callable[..., Node], **settings: float) -> Node:
    """A node whose times are short."""
    node = make_node()
    node.settings |= TIMES | settings
    return node.start()


def saved(node: Node, *steps: int, size: int = 100_000) -> Path:
    """A run with these checkpoints, sealed."""
    run = node.mount / "run"
    run.mkdir(exist_ok=True)
    for step in steps:
        TRAINER.save(run, step, size)
    node.settle()
    assert set(steps) <= steps_in(node.shared / "run")
    return run


def shell(script: str, where: Path) -> None:
    """Run `script` in a shell of its own; it must succeed."""
    subprocess.run(["bash", "-e", "-c", script], cwd=where, check=True)


def steps_in(run: Path) -> set[int]:
    """The checkpoints that a listing of `run` shows."""
    return {int(each.name.removeprefix("checkpoint-")) for each in run.glob("checkpoint-*")}


def held(node: Node) -> set[str]:
    """The names of the removals that status calls held; none of them counts as pending."""
    status = node.status()
    while status["pending_ops"]:  # a name goes a moment before its op is over
        wait_until(lambda: not node.status()["pending_ops"], "everything else to be committed")
        status = node.status()
    return {Path(each["path"]).name for each in status["held"]}


def nothing_left(node: Node) -> bool:
    """Whether the shared tier holds nothing but what tierfs keeps for itself, no trash either."""
    trash = node.shared / ".tierfs" / "trash"
    names = [each.name for each in node.shared.iterdir()]
    return names == [".tierfs"] and not (trash.exists() and list(trash.iterdir()))


def until_full(node: Node) -> None:
    """Returns when something did not fit on the shared tier."""

    def met() -> bool:
        return any("full" in each["error"] for each in node.status()["retrying"])

    wait_until(met, "a file not to fit")


def test_a_file_removed_to_make_room_for_another_is_no_removal(
    make_node: Callable[..., Node],
) -> None:
    """What takes the name of a file that was unlinked, by a rename, ends the removal: its process
    may be gone when nobody looks."""
    node = started(make_node, group_settle=600.0)
    node.expected = ["killed by SIGKILL"]
    folder = TRAINER.save(saved(node, 1), 2, 100_000)
    code = "import os, sys; f = sys.argv[1]; open(f + '.tmp', 'w').write('new'); os.unlink(f); "
    code += "os.rename(f + '.tmp', f); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / TRAINER.shards[0])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as saver:  # fmt: skip
        assert saver.stdout is not None
        saver.stdout.readline()
        node.kill_worker()
        saver.kill()
    TRAINER.save(node.mount / "run", 3, 100_000)
    node.settle()
    assert steps_in(node.shared / "run") == {1, 2, 3}


def test_whole_run_removed(make_node: Callable[..., Node]) -> None:
    """Sealed ones, one that is being sent, one of which only a part is there: all go at once."""
    node = started(make_node)
    run = saved(node, 1, 2)
    (run / "notes").write_text("x")
    TRAINER.save(run, 3, MIB)
    (run / "checkpoint-4").mkdir()
    (run / "checkpoint-4" / "optimizer.pt").write_bytes(b"x")
    shell("rm -rf run", node.mount)
    assert not list(node.mount.iterdir())
    node.settle()
    assert nothing_left(node)
    assert held(node) == set()


def test_only_checkpoint_removed(make_node: Callable[..., Node]) -> None:
    """Its removal is held, over a remount too, until the next checkpoint is whole."""
    node = started(make_node)
    run = saved(node, 1)
    shell("rm -rf run/checkpoint-1", node.mount)
    assert not list(run.iterdir())
    node.settle()
    assert (node.shared / "run" / "checkpoint-1" / TRAINER.marker).exists()
    assert held(node) == {"checkpoint-1"}
    result = node.umount()
    assert result.code == 0, result.out
    node.start()
    assert not list(run.iterdir())
    wait_until(lambda: held(node) == {"checkpoint-1"}, "the removal to be held again")
    saved(node, 2)
    wait_until(lambda: steps_in(node.shared / "run") == {2}, "the old one to go")
    assert held(node) == set()


@pytest.mark.parametrize("killed", [False, True])
def test_removed_while_its_next_generation_is_half_written(
    make_node: Callable[..., Node], killed: bool
) -> None:
    """What is held is the one that was whole; status tells of it.

    Who wrote that lives, or was killed: then it is given up, and nothing but the whole one is left.
    """
    node = started(make_node)
    run = saved(node, 1, 2)
    code = "import sys; f = open(sys.argv[1], 'wb'); f.write(b'x'); f.close(); print(); input()"
    words = [sys.executable, "-c", code, str(run / "checkpoint-2" / "optimizer.pt")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        if killed:
            writer.kill()
            writer.wait()
        assert node.flush().code == (0 if killed else 6)
        shell("rm -rf run/*", node.mount)
        writer.kill()
    node.settle()
    assert held(node) >= {"checkpoint-2"}
    sizes = [path.stat().st_size for path in (node.shared / "run" / "checkpoint-2").iterdir()]
    assert node.status()["held_bytes"] >= sum(sizes) > 0
    assert node.cli("purge", run).code == 0
    wait_until(lambda: not list((node.shared / "run").iterdir()), "all to go")


def test_all_in_a_run_removed(make_node: Callable[..., Node]) -> None:
    """`rm -rf run/*` may be the begin of a new run: held for a time, then gone."""
    node = started(make_node, delete_hold=4.0)
    run = saved(node, 1, 2)
    (run / "notes").write_text("x")
    node.settle()
    shell("rm -rf run/*", node.mount)
    assert not list(run.iterdir())
    node.settle()
    wait_until(lambda: not list((node.shared / "run").iterdir()), "all to go", timeout=30)
    assert held(node) == set()


def test_held_removals_go_with_their_parent(make_node: Callable[..., Node]) -> None:
    node = started(make_node)
    saved(node, 1, 2)
    shell("rm -rf run/*", node.mount)
    node.settle()
    # the first may go before the second is asked for; the second leaves nothing whole
    assert {"checkpoint-2"} <= held(node) <= {"checkpoint-1", "checkpoint-2"}
    shell("rmdir run", node.mount)
    node.settle()
    assert nothing_left(node)


def test_one_file_removed_from_each_checkpoint(make_node: Callable[..., Node]) -> None:
    node = started(make_node)
    run = saved(node, 1, 2)
    shell("rm checkpoint-*/optimizer.pt", run)
    there = node.shared / "run"
    wait_until(lambda: not list(there.glob("*/optimizer.pt")), "the removals, without a flush")
    node.settle()
    for step in (1, 2):
        left = {each.name for each in (there / f"checkpoint-{step}").iterdir()}
        assert left == {*TRAINER.shards, TRAINER.marker} - {"optimizer.pt"}
    assert held(node) == set()


@pytest.fixture
def small(make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]) -> Node:
    """A node with little room on its shared tier."""
    node = make_node(shared=make_device("small", 384 * MIB).mountpoint)
    node.settings |= TIMES
    node.expected = [r"ENOSPC|No space"]
    return node.start()


def test_full_shared_tier_lets_removals_go(small: Node) -> None:
    """Nothing new fits beside what is held: it goes after `full_hold`, and the save goes on."""
    run = saved(small, 1, size=200 * MIB // len(TRAINER.shards))
    shutil.rmtree(run / "checkpoint-1")
    small.settle()
    assert held(small) == {"checkpoint-1"}
    saved(small, 2, size=200 * MIB // len(TRAINER.shards))
    assert steps_in(small.shared / "run") == {2}


def test_full_shared_tier_has_removals_make_room(small: Node) -> None:
    """What was removed after a save that does not fit goes before it, and then it fits."""
    count = len(TRAINER.shards)
    run = saved(small, 1, size=120 * MIB // count)
    saved(small, 2, size=60 * MIB // count)
    TRAINER.save(run, 3, 180 * MIB // count)
    until_full(small)
    shutil.rmtree(run / "checkpoint-1")
    small.settle()
    assert steps_in(small.shared / "run") == {2, 3}
    shutil.rmtree(run)
    (small.mount / "old.pt").write_bytes(bytes(150 * MIB))
    small.settle()
    (small.mount / "new.pt").write_bytes(bytes(200 * MIB))
    until_full(small)
    (small.mount / "old.pt").unlink()
    small.settle()
    assert [each.name for each in small.shared.iterdir() if each.name != ".tierfs"] == ["new.pt"]


def test_removed_while_it_is_written_again(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """What was staged of its next generation goes too, and the name is free for another."""
    tier = make_device("slow", 512 * MIB)
    node = make_node(shared=tier.mountpoint)
    node.settings |= TIMES | {"delete_hold": 0.0, "tier_wait": 10.0}
    node.start()
    run = saved(node, 1)
    with frozen(tier):
        (run / "checkpoint-1" / "model.safetensors").write_bytes(b"another")
        wait_until(lambda: hangs(node.supervisor()["worker_pid"]), "the checkpoint to be unsealed")
        time.sleep(2 * TIMEOUT_SECONDS)  # the kernel asks for each name anew
        shutil.rmtree(run / "checkpoint-1")
    node.settle()
    assert sorted(tree.name for tree in (node.shared / "run").iterdir()) == []
    saved(node, 1)
    (run / "checkpoint-1" / "model.safetensors").write_bytes(b"again")
    node.settle()
    assert [each.name for each in (node.shared / "run").iterdir()] == ["checkpoint-1"]


def test_what_a_pointer_names_goes_after_the_next_pointer(make_node: Callable[..., Node]) -> None:
    """`latest` is written again before its last version could go, and behind the removal."""
    node = started(make_node)
    run, shared = node.mount / "run", node.shared / "run"
    run.mkdir()

    def save(step: int) -> BinaryIO:
        folder = run / f"global_step{step}"
        folder.mkdir()
        open_file = (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").open("wb")
        open_file.write(b"x")
        (folder / "mp_rank_00_model_states.pt").write_bytes(b"x")
        (run / "latest").write_text(folder.name)
        return open_file

    save(1).close()
    node.settle()
    second = save(2)
    shutil.rmtree(run / "global_step1")
    third = save(3)
    second.close()
    wait_until((shared / "global_step2").exists, "the second to be sealed")
    wait_until(lambda: "latest" in str(node.status()["held"]), "the removal to be held for it")
    assert (shared / "latest").read_text() == "global_step1"
    assert (shared / "global_step1").exists()
    third.close()
    node.settle()
    assert (shared / "latest").read_text() == "global_step3"
    wait_until(lambda: not (shared / "global_step1").exists(), "the first to go")


@pytest.mark.parametrize("end", ["killed", "exited"])
def test_an_unlinker_that_is_killed_leaves_no_whole_checkpoint(
    make_node: Callable[..., Node], end: str
) -> None:
    """One that ends by itself has edited it; of one that was killed nobody knows what it meant."""
    node = started(make_node)
    saved(node, 1, 2)
    folder, shared = node.mount / "run" / "checkpoint-2", node.shared / "run"
    code = f"import os, signal; os.unlink({str(folder / TRAINER.shards[0])!r})"
    code += "; os.kill(os.getpid(), signal.SIGKILL)" if end == "killed" else ""
    subprocess.run([sys.executable, "-c", code], check=False)
    gone = [shared / name / TRAINER.shards[0] for name in ("checkpoint-2", ".staging_checkpoint-2")]
    wait_until(lambda: not any(each.exists() for each in gone), "the file to go")
    assert steps_in(shared) == ({1} if end == "killed" else {1, 2})
    assert steps_in(node.mount / "run") == steps_in(shared)
    unsettled = wait_until(lambda: end == "exited" or node.status()["unsettled"], "it to be told")
    assert end == "exited" or "checkpoint-2" in str(unsettled)


def test_a_flush_by_others_leaves_a_removal_that_is_under_way(
    make_node: Callable[..., Node],
) -> None:
    """What stands under its name stays whole until it is known what the removal is to be."""
    node = started(make_node, group_settle=600.0)
    saved(node, 1, 2)
    folder, shared = node.mount / "run" / "checkpoint-2", node.shared / "run" / "checkpoint-2"
    before = names(shared)
    code = f"import os, sys; os.unlink({str(folder / TRAINER.shards[0])!r}); print(flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as unlinker:  # fmt: skip
        assert unlinker.stdout is not None
        unlinker.stdout.readline()
        assert node.flush(timeout=2).code == 2
        assert names(shared) == before
    node.settle()
    assert names(shared) == sorted(set(before) - {TRAINER.shards[0]})


def names(folder: Path) -> list[str]:
    """What is in it."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("end", ["killed", "exited"])
def test_an_unlinker_that_is_killed_before_it_is_sealed(
    make_node: Callable[..., Node], end: str
) -> None:
    """As above, in a checkpoint of which all was written and nothing is published; kept over
    a restart."""
    node = started(make_node, group_settle=600.0)
    node.expected = ["killed by SIGKILL"]
    run = saved(node, 1)
    folder = TRAINER.save(run, 2, 100_000)
    code = f"import os; os.unlink({str(folder / TRAINER.shards[0])!r}); print(flush=True); "
    code += "input()" if end == "killed" else ""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as unlinker:
        assert unlinker.stdout is not None
        unlinker.stdout.readline()
        node.kill_worker()
        if end == "killed":
            unlinker.kill()
    TRAINER.save(run, 3, 100_000)
    flushed = node.cli("flush", "--wait", "--timeout", "60", node.mount)
    assert flushed.code == (6 if end == "killed" else 0), flushed.out
    assert steps_in(node.shared / "run") == ({1, 3} if end == "killed" else {1, 2, 3})
    assert end == "exited" or "was killed" in flushed.out
