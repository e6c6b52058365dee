"""Races of one node in which a naive order would lose data or show half a checkpoint.

The numbers are those of FRAMEWORKS (d).

| race | test |
|---|---|
| 1 a small marker overtakes large shards | `test_order.test_marker_never_before_its_shards` |
| 2 a marker overtakes a RELEASE | `test_order.test_marker_waits_for_a_file_still_open`, |
| | `test_marker_before_other_files` |
| 3 renamed before it is closed | `test_safetensors_renames_before_it_closes` |
| 4 sent at the first FLUSH | `test_parity_programs.test_shell_redirections`, |
| | `test_parity_programs.test_zip_with_patched_headers`, |
| | `test_mappings.test_stores_through_a_mapping_after_close`; `frameworks` 02 and 03 |
| 5 sent while it is rewritten | `test_interleavings.test_rewritten_and_renamed_while_…`; |
| | `component/shared/test_shared_transfer.py` |
| 6 a step is saved over itself | `test_order.test_overwritten_checkpoint_never_mixes_marker_…` |
| 7 a pointer is rewritten in place | `test_order.test_pointer_file_never_before_what_it_names`, |
| | `test_checkpoints_removed.test_what_a_pointer_names_goes_…` |
| 8 rmtree takes shards first | `test_order.test_removed_checkpoint_goes_in_one_rename` |
| 9 a removal overtakes a save | `test_order.test_removal_waits_for_the_save_before_it` |
| 10 removed before the next is saved | `test_removed_before_the_next_is_saved`, |
| | `test_checkpoints_replaced.test_a_job_that_keeps_one_…` |
| 11 saved faster than sent | `test_saved_faster_than_it_is_sent` |
| 12 a directory renamed into place | `test_order.test_directory_renamed_into_place_is_whole` |
| 13 a bare directory shown | `test_nothing_under_its_name_before_it_is_whole` |
| 14 saved again with fewer shards | `test_saved_again_with_fewer_shards` |
| 15 a link before its target | `test_link_made_before_its_target` |
| 16 chmod and utimens after close | `test_parity_attributes.test_chmod_and_utimens_after_close` |
| 17 times of directories | `test_order.test_directory_times_keep_the_order_of_saves` |
| 18 killed between close and commit | `test_crash.py`, `test_groups_crash.py` |
| 19 evicted too early | `behaviour/test_clean_copies.test_eviction_leaves_what_is_pending`, |
| | `behaviour/test_clean_copies.test_eviction_leaves_what_is_open`, |
| | `test_limits.test_clean_copies_make_room_for_new_files` |
| 20 no marker at all | `test_nothing_under_its_name_before_it_is_whole` |
| 28 a negative name sent late | `test_negative_name_keeps_a_checkpoint_unsealed`, |
| | `test_order.test_negative_name_is_first_and_leaves_last` |
| 29 cleaned up at a restart | `test_what_a_killed_job_left_is_removed_and_made_again` |
| 30 two ranks write one file | `test_two_ranks_write_the_same_file` |

21 to 27 are races of two nodes. All of these at once, with deaths: `test_checkpoints_storm`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.harness import LoopDevice, Node, Recorder, stuttering, wait_until
from tests.harness.checkpoints import DCP, TRAINER, Shape, paths_below, replay

MIB = 1 << 20
ACCELERATE = Shape(
    "accelerate", "checkpoint_{}", ("model.safetensors", "optimizer.bin"), "random_states_0.pkl"
)


@pytest.fixture
def slow_tier(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """A shared tier of its own, which a test may freeze."""
    return make_device("slow", 1024 * MIB)


@pytest.fixture
def slow_node(slow_tier: LoopDevice, make_node: Callable[..., Node]) -> Node:
    """A node on the shared tier that may be frozen; what is quiet is believed soon."""
    node = make_node(shared=slow_tier.mountpoint)
    node.settings |= {"group_settle": 1.0}
    return node.start()


def whole_throughout(recorder: Recorder, shape: Shape, start: set[str]) -> None:
    """What is under the name of a checkpoint is whole at every instant, and there always is one."""
    for event, present in replay(start, recorder.events()):
        shown = {path.rpartition("/")[0] for path in present if "/" in path}
        shown = {folder for folder in shown if not folder.startswith(".")}
        assert shown == shape.whole(present), f"after {event}"
        assert shown or not start, f"nothing whole after {event}"


@pytest.mark.parametrize("shape", [ACCELERATE, TRAINER], ids=["accelerate", "trainer"])
def test_removed_before_the_next_is_saved(
    slow_node: Node, slow_tier: LoopDevice, shape: Shape
) -> None:
    """Accelerate with total_limit=1, Lightning's AsyncCheckpointIO."""
    shape.save(slow_node.mount, 0, 64 * 1024)
    slow_node.settle()
    start = paths_below(slow_tier.mountpoint)
    start = {path for path in start if not path.startswith(".")}
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier, stall=0.05):
        for step in range(1, 4):
            shutil.rmtree(slow_node.mount / shape.folder(step - 1))
            shape.save(slow_node.mount, step, 64 * 1024)
        slow_node.settle()
        gone = slow_tier.mountpoint / shape.folder(0)
        wait_until(lambda: not gone.exists(), "the first to go")
        whole_throughout(recorder, shape, start)
    assert os.listdir(slow_node.mount) == [shape.folder(3)]


def test_saved_faster_than_it_is_sent(slow_node: Node, slow_tier: LoopDevice) -> None:
    """The queue must not empty itself by rotation: something gets there while it goes on."""
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier, stall=0.1):
        for step in range(1, 200):
            TRAINER.save(slow_node.mount, step, 256 * 1024)
            if step > 2:
                shutil.rmtree(slow_node.mount / TRAINER.folder(step - 2))
            if step > 20 and any(slow_tier.mountpoint.glob("checkpoint-*")):
                break
        else:
            pytest.fail("nothing was published while the job went on")
        slow_node.settle()
        whole_throughout(recorder, TRAINER, set())


def test_nothing_under_its_name_before_it_is_whole(slow_node: Node, slow_tier: LoopDevice) -> None:
    """No marker says when it is: neither the shared tier nor another mount shows it before."""
    folder = slow_node.mount / "checkpoint_7"
    folder.mkdir()
    (folder / "model.h5").write_bytes(bytes(MIB))
    (folder / "model.json").write_text("{}")
    wait_until((slow_tier.mountpoint / ".staging_checkpoint_7" / "model.json").exists, "staging")
    assert os.listdir(slow_node.mount) == ["checkpoint_7"], "listed where it is written"
    assert [each.name for each in slow_tier.mountpoint.glob("check*")] == []
    slow_node.settle()
    assert sorted(os.listdir(slow_tier.mountpoint / "checkpoint_7")) == ["model.h5", "model.json"]


def test_other_mount_lists_a_checkpoint_only_when_it_is_sealed(
    slow_node: Node, make_node: Callable[..., Node], slow_tier: LoopDevice
) -> None:
    other = make_node("other", shared=slow_tier.mountpoint).start()
    TRAINER.save(slow_node.mount, 1, 64 * 1024)
    slow_node.settle()
    folder = slow_node.mount / "checkpoint-2"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as weights:
        weights.write(b"x" * 1000)
        (folder / TRAINER.marker).write_bytes(b"marker")
        staged = slow_tier.mountpoint / ".staging_checkpoint-2" / TRAINER.marker
        wait_until(staged.exists, "the marker in staging")
        assert os.listdir(other.mount) == ["checkpoint-1"]
    slow_node.settle()
    wait_until(lambda: "checkpoint-2" in os.listdir(other.mount), "the other mount to list it")
    assert (other.mount / "checkpoint-2" / "model.safetensors").read_bytes() == b"x" * 1000


def test_marker_before_other_files(slow_node: Node, slow_tier: LoopDevice) -> None:
    """The Trainer's other ranks write their random states after `trainer_state.json`."""
    with Recorder(slow_tier.mountpoint) as recorder:
        folder = slow_node.mount / "checkpoint-3"
        folder.mkdir()
        (folder / TRAINER.marker).write_bytes(b"marker")
        for name in TRAINER.shards:
            (folder / name).write_bytes(bytes(MIB))
        wait_until((slow_tier.mountpoint / "checkpoint-3").exists, "it to be sealed by itself")
        slow_node.settle()
        whole_throughout(recorder, TRAINER, set())


def test_deepspeed_pointer_before_the_shards_of_another_rank(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    """ZeRO-1 and 2 write `latest` with no barrier before it: rank 1 has not even begun."""
    folder = slow_node.mount / "global_step4"
    shards = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
    with Recorder(slow_tier.mountpoint) as recorder:
        folder.mkdir()
        (folder / "mp_rank_00_model_states.pt").write_bytes(bytes(MIB))
        (folder / shards[0]).write_bytes(bytes(MIB))
        (slow_node.mount / "latest").write_text("global_step4")
        wait_until((slow_tier.mountpoint / ".staging_global_step4" / shards[0]).exists, "rank 0")
        assert not (slow_tier.mountpoint / "global_step4").exists()
        with (folder / shards[1]).open("wb") as late:
            late.write(bytes(MIB))
        slow_node.settle()
        pointer = recorder.position("appeared", "latest")
        assert recorder.position("appeared", "global_step4") < pointer
        assert recorder.position("appeared", f"global_step4/{shards[1]}") < pointer


def test_safetensors_renames_before_it_closes(slow_node: Node, slow_tier: LoopDevice) -> None:
    """The temporary has its full size from the start, and is renamed while it is open."""
    folder = slow_node.mount / "checkpoint-5"
    folder.mkdir()
    content = os.urandom(2 * MIB)
    with Recorder(slow_tier.mountpoint) as recorder:
        fd = os.open(folder / ".tmpAb3dEf", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, len(content))
        os.pwrite(fd, content[:MIB], 0)
        os.rename(folder / ".tmpAb3dEf", folder / "model.safetensors")
        (folder / TRAINER.marker).write_bytes(b"marker")
        wait_until(
            (slow_tier.mountpoint / ".staging_checkpoint-5" / TRAINER.marker).exists, "the marker"
        )
        os.pwrite(fd, content[MIB:], MIB)
        os.close(fd)
        slow_node.settle()
        assert not [path for path in recorder.appeared() if ".tmp" in path]
    sealed = slow_tier.mountpoint / "checkpoint-5"
    assert (sealed / "model.safetensors").read_bytes() == content
    assert sorted(os.listdir(sealed)) == ["model.safetensors", TRAINER.marker]


@pytest.mark.parametrize("name", ["pretrained", "checkpoint-6"])
def test_saved_again_with_fewer_shards(slow_node: Node, slow_tier: LoopDevice, name: str) -> None:
    """save_pretrained unlinks stale shards before the new index is there."""
    folder = slow_node.mount / name
    folder.mkdir()
    index = "model.safetensors.index.json"

    def save(count: int) -> None:
        shards = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
        for stale in folder.glob("model-*.safetensors"):
            if stale.name not in shards:
                stale.unlink()
        for shard in shards:
            (folder / shard).write_bytes(bytes([count]) * 100_000)
        (folder / index).write_text(json.dumps({"weight_map": {s: s for s in shards}}))

    save(4)
    slow_node.settle()
    start = {path for path in paths_below(slow_tier.mountpoint) if not path.startswith(".")}
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier, stall=0.05):
        save(2)
        slow_node.settle()
        four = {f"{name}/model-{i:05}-of-00004.safetensors" for i in range(1, 5)}
        two = {f"{name}/model-{i:05}-of-00002.safetensors" for i in range(1, 3)}
        for event, present in replay(start, recorder.events()):
            shown = f"{name}/{index}" in present
            assert not shown or four <= present or two <= present, f"after {event}"
    left = json.loads((slow_tier.mountpoint / name / index).read_text())["weight_map"]
    assert {f"{name}/{shard}" for shard in left} == two
    assert len(list((slow_tier.mountpoint / name).glob("*.safetensors"))) == 2


def test_link_made_before_its_target(slow_node: Node, slow_tier: LoopDevice) -> None:
    """Lightning with AsyncCheckpointIO: `last.ckpt` dangles until the file is written."""
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier, stall=0.05):
        for step in (1, 2):
            link = slow_node.mount / "last.ckpt"
            link.unlink(missing_ok=True)
            link.symlink_to(f"epoch=0-step={step}.ckpt")
            (slow_node.mount / f"epoch=0-step={step}.ckpt").write_bytes(bytes(MIB))
        slow_node.settle()
        for event, present in replay(set(), recorder.events()):
            files = [path for path in present if path.startswith("epoch")]
            assert "last.ckpt" not in present or files, f"dangling after {event}"
    assert os.readlink(slow_tier.mountpoint / "last.ckpt") == "epoch=0-step=2.ckpt"


def test_negative_name_keeps_a_checkpoint_unsealed(slow_node: Node, slow_tier: LoopDevice) -> None:
    """NeMo: `X-unfinished` beside it says that X is not whole, whatever is in X."""
    negative = slow_node.mount / "step_8-unfinished"
    negative.touch()
    wait_until((slow_tier.mountpoint / negative.name).exists, "the negative name")
    DCP.save(slow_node.mount, 8, 64 * 1024)
    result = slow_node.flush()
    assert result.code == 6, result.out
    assert negative.name in result.json["unsealed"][0]["reason"]
    assert not (slow_tier.mountpoint / "step_8").exists()
    with Recorder(slow_tier.mountpoint) as recorder:
        negative.unlink()
        slow_node.settle()
        assert recorder.position("appeared", "step_8") >= 0
        assert not (slow_tier.mountpoint / negative.name).exists()


WRITER = """
import os, sys, time
for name in sys.argv[2:]:
    open(os.path.join(sys.argv[1], name), "wb").write(b"killed" * 1000)
print("written", flush=True)
time.sleep(600)
"""


def test_what_a_killed_job_left_is_removed_and_made_again(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    """A job that is started again removes what its predecessor left, and saves the step again."""
    folder = slow_node.mount / "step_9"
    folder.mkdir()
    job = subprocess.Popen(
        [sys.executable, "-c", WRITER, folder, "__0_0.distcp", "old"], stdout=subprocess.PIPE
    )
    assert job.stdout is not None
    assert job.stdout.readline()
    job.send_signal(signal.SIGKILL)
    job.communicate()
    shutil.rmtree(folder)
    DCP.save(slow_node.mount, 9, 64 * 1024)
    slow_node.settle()
    assert sorted(os.listdir(slow_tier.mountpoint / "step_9")) == sorted([*DCP.shards, DCP.marker])
    assert b"killed" not in (slow_tier.mountpoint / "step_9" / "__0_0.distcp").read_bytes()


def test_two_ranks_write_the_same_file(slow_node: Node, slow_tier: LoopDevice) -> None:
    """`save_on_each_node`: the last to close it wins, and it is never a mix."""
    folder = slow_node.mount / "checkpoint-4"
    folder.mkdir()
    script = "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode() * 500_000)"
    ranks = [
        subprocess.Popen([sys.executable, "-c", script, folder / "config.json", rank])
        for rank in "01"
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    here = (folder / "config.json").read_bytes()
    for name in (*TRAINER.shards[1:], TRAINER.marker):
        (folder / name).write_bytes(b"x")
    slow_node.settle()
    assert (slow_tier.mountpoint / "checkpoint-4" / "config.json").read_bytes() == here
