"""G3 and G4 through a real mount: what the shared tier shows at every instant of a write-back.

The events come from inotify, so no state between two of them can be missed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, Recorder, frozen, immutable, stuttering, wait_until
from tests.harness.checkpoints import DCP, SHAPES, TRAINER, Shape, paths_below, replay

MIB = 1 << 20
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@pytest.fixture
def slow_tier(make_device: Callable[..., LoopDevice]) -> LoopDevice:
    """A shared tier of its own, which a test may freeze."""
    return make_device("slow", 1024 * MIB)


@pytest.fixture
def slow_node(slow_tier: LoopDevice, make_node: Callable[..., Node]) -> Node:
    """A node on the shared tier that may be frozen."""
    return make_node(shared=slow_tier.mountpoint).start()


def check_every_instant(shape: Shape, recorder: Recorder, start: set[str]) -> None:
    """No marker without its shards, and once something was whole, always something whole."""
    had_whole = bool(shape.whole(start))
    for event, present in replay(start, recorder.events()):
        assert shape.broken(present) == [], f"after {event}"
        had_whole = had_whole or bool(shape.whole(present))
        assert not had_whole or shape.whole(present), f"nothing whole after {event}"


@shapes
def test_marker_never_before_its_shards(
    slow_node: Node, slow_tier: LoopDevice, shape: Shape
) -> None:
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        for step in (1, 2):
            shape.save(slow_node.mount, step, 4 * MIB)
        slow_node.settle()
        check_every_instant(shape, recorder, set())
        assert len(shape.whole(paths_below(slow_tier.mountpoint))) == 2


@shapes
def test_rotation_shows_something_whole_at_every_instant(
    slow_node: Node, slow_tier: LoopDevice, shape: Shape
) -> None:
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier, stall=0.05):
        for step in range(1, 7):
            shape.save(slow_node.mount, step, 256 * 1024)
            if step > 2:
                shutil.rmtree(slow_node.mount / shape.folder(step - 2))
        slow_node.settle()
        check_every_instant(shape, recorder, set())
    left = sorted(os.listdir(slow_node.mount))
    assert left == sorted(shape.folder(step) for step in (5, 6))
    assert sorted(n for n in os.listdir(slow_tier.mountpoint) if n != ".tierfs") == left


def test_removal_waits_for_the_save_before_it(slow_node: Node, slow_tier: LoopDevice) -> None:
    DCP.save(slow_node.mount, 1, MIB)
    slow_node.settle()
    with Recorder(slow_tier.mountpoint) as recorder:
        with frozen(slow_tier):
            DCP.save(slow_node.mount, 2, MIB)
            shutil.rmtree(slow_node.mount / "step_1")
        slow_node.settle()
        # one rename brings the new one, one takes the old one away
        assert recorder.position("appeared", "step_2") < recorder.position("vanished", "step_1")


@shapes
def test_removed_checkpoint_goes_in_one_rename(
    slow_node: Node, slow_tier: LoopDevice, shape: Shape
) -> None:
    for step in (1, 2):
        shape.save(slow_node.mount, step, 64 * 1024)
    slow_node.settle()
    with Recorder(slow_tier.mountpoint) as recorder:
        folder = slow_node.mount / shape.folder(1)
        for shard in shape.shards:  # the worst order in which getdents can give them
            os.unlink(folder / shard)
        os.unlink(folder / shape.marker)
        os.rmdir(folder)
        slow_node.settle()
        gone = [path for path in recorder.vanished() if not path.startswith(".tierfs")]
        assert gone[0] == folder.name, "what comes after is in the trash, known by its old path"
    assert list((slow_tier.mountpoint / ".tierfs" / "trash").iterdir()) == []


def test_removed_before_its_rename_into_place_is_committed_goes_in_one_rename(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    with Recorder(slow_tier.mountpoint) as recorder:
        with frozen(slow_tier):
            for step in (1, 2):
                draft = slow_node.mount / f"tmp-{step}"
                draft.mkdir()
                for index in range(3):
                    (draft / f"shard_{index}").write_bytes(bytes(1000))
                os.rename(draft, slow_node.mount / f"checkpoint_step_{step}")
            shutil.rmtree(slow_node.mount / "checkpoint_step_1")
        slow_node.settle()
        wait_until(lambda: list(slow_tier.mountpoint.glob("*_1")) == [], "the first to go")
        first = [path for path in recorder.vanished() if path.startswith("checkpoint_step_1")]
    assert first[:1] in ([], ["checkpoint_step_1"]), "it was there in part"


def test_removal_is_held_for_a_checkpoint_that_is_renamed_into_place(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    """A job that removes the old one first: it stays on the shared tier until the next is there."""
    shared = slow_tier.mountpoint
    for step in (1, 2, 3):
        if step > 1:
            shutil.rmtree(slow_node.mount / f"checkpoint_step_{step - 1}")
            wait_until(lambda: slow_node.status()["held"], "the removal to be held")
        draft = slow_node.mount / "tmp-checkpoint"
        draft.mkdir()
        (draft / "shard_0").write_bytes(bytes(1000))
        os.rename(draft, slow_node.mount / f"checkpoint_step_{step}")
        slow_node.settle()
        wait_until(lambda: len(list(shared.glob("checkpoint*"))) == 1, "the old one to go")
        assert (shared / f"checkpoint_step_{step}").is_dir()


def test_pointer_file_never_before_what_it_names(slow_node: Node, slow_tier: LoopDevice) -> None:
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        for step in (1, 2, 3):
            folder = slow_node.mount / f"global_step{step}"
            folder.mkdir()
            (folder / "mp_rank_00_model_states.pt").write_bytes(bytes(3 * MIB))
            (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(bytes(5 * MIB))
            (slow_node.mount / "latest").write_text(f"global_step{step}")
        slow_node.settle()
        events = recorder.events()
    assert (slow_tier.mountpoint / "latest").read_text() == "global_step3"
    assert not [event for event in events if event.what == "written"], "written in place"
    last_pointer = max(i for i, event in enumerate(events) if event.path == "latest")
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        assert recorder.position("appeared", f"global_step3/{name}") < last_pointer


def test_symlink_never_before_its_target(slow_node: Node, slow_tier: LoopDevice) -> None:
    root = slow_node.mount
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        for step in (1, 2):
            DCP.save(root, step, 2 * MIB)
            (root / "latest.tmp").symlink_to(f"step_{step}")
            os.replace(root / "latest.tmp", root / "latest")
        slow_node.settle()
        for event, present in replay(set(), recorder.events()):
            if event.what == "appeared" and event.path == "latest":
                assert DCP.whole(present), "the link led to nothing whole"
        marker = recorder.position("appeared", "step_2/.metadata")
        last = max(i for i, e in enumerate(recorder.events()) if e.path == "latest")
        assert marker < last
    assert os.readlink(slow_tier.mountpoint / "latest") == "step_2"


def test_directory_renamed_into_place_is_whole(slow_node: Node, slow_tier: LoopDevice) -> None:
    draft = slow_node.mount / "3.orbax-checkpoint-tmp"
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        (draft / "default").mkdir(parents=True)
        for index in range(3):
            (draft / "default" / f"d{index}").write_bytes(bytes([index]) * MIB)
        (draft / "_CHECKPOINT_METADATA").write_bytes(b"{}")
        os.rename(draft, slow_node.mount / "3")
        slow_node.settle()
        appeared = recorder.appeared()
    final = appeared.index("3")
    for path in ("default/d0", "default/d1", "default/d2", "_CHECKPOINT_METADATA"):
        assert f"3/{path}" not in appeared[:final]
        assert f"{draft.name}/{path}" in appeared[:final], "renamed before its content was there"


def test_overwritten_checkpoint_never_mixes_marker_and_shards(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    """dcp.save into an existing step: new shards, then the old marker unlinked, then the new."""
    folder = DCP.save(slow_node.mount, 4, MIB)
    slow_node.settle()
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        for shard in DCP.shards:
            (folder / shard).write_bytes(b"second" * 100_000)
        (folder / ".metadata.tmp").write_bytes(b"second marker")
        os.unlink(folder / ".metadata")
        os.rename(folder / ".metadata.tmp", folder / ".metadata")
        slow_node.settle()
        appeared = [path for path in recorder.appeared() if path.startswith("step_4")]
    assert appeared[0] == "step_4", "the new generation comes as a whole"
    assert (slow_tier.mountpoint / "step_4" / ".metadata").read_bytes() == b"second marker"
    for shard in DCP.shards:
        assert (slow_tier.mountpoint / "step_4" / shard).read_bytes() == b"second" * 100_000


def test_negative_name_is_first_and_leaves_last(slow_node: Node, slow_tier: LoopDevice) -> None:
    negative = slow_node.mount / "model--val_loss=1.0-unfinished"
    folder = slow_node.mount / "model--val_loss=1.0"
    with Recorder(slow_tier.mountpoint) as recorder, stuttering(slow_tier):
        negative.touch()
        folder.mkdir()
        for index in range(3):
            (folder / f"weights{index}").write_bytes(bytes(MIB))
        negative.unlink()
        slow_node.settle()
        appeared, events = recorder.appeared(), recorder.events()
    if negative.name in appeared:  # the pair may be dropped, but only as a pair
        gone = next(
            i for i, e in enumerate(events) if e.what == "vanished" and e.path == negative.name
        )
        for index in range(3):
            assert recorder.position("appeared", f"{folder.name}/weights{index}") < gone
            assert appeared.index(negative.name) < appeared.index(f"{folder.name}/weights{index}")


def test_temporary_names_are_not_sent(slow_node: Node, slow_tier: LoopDevice) -> None:
    with Recorder(slow_tier.mountpoint) as recorder:
        for index in range(5):
            (slow_node.mount / f"f{index}.tmp").write_bytes(b"x" * 1000)
        (slow_node.mount / "plain").write_bytes(b"y")
        wait_until(lambda: "plain" in recorder.appeared(), "the plain file to be committed")
        for index in range(5):
            os.rename(slow_node.mount / f"f{index}.tmp", slow_node.mount / f"f{index}")
        slow_node.settle()
        assert sorted(set(recorder.appeared())) == ["f0", "f1", "f2", "f3", "f4", "plain"]


def test_frozen_shared_tier_does_not_slow_saves(slow_node: Node, slow_tier: LoopDevice) -> None:
    TRAINER.save(slow_node.mount, 1, MIB)
    slow_node.settle()
    with Recorder(slow_tier.mountpoint) as recorder:
        with frozen(slow_tier):
            for step in (2, 3):
                TRAINER.save(slow_node.mount, step, MIB)
            assert (slow_node.mount / "checkpoint-3" / "model.safetensors").stat().st_size == MIB
            status = slow_node.status()
            assert status["pending_files"] >= 8
            assert recorder.appeared() == []
            result = slow_node.flush(timeout=1)
            assert result.code == 2, result.out
            assert result.json["timed_out"]
        slow_node.settle()
        check_every_instant(TRAINER, recorder, paths_below(slow_tier.mountpoint))


def test_read_only_shared_tier_is_retried(slow_node: Node, slow_tier: LoopDevice) -> None:
    slow_node.expected = [r"EROFS|[Rr]ead-only"]
    (slow_node.mount / "before").write_bytes(b"1")
    slow_node.settle()
    slow_tier.remount("ro")
    try:
        (slow_node.mount / "during").write_bytes(b"2")
        wait_until(lambda: slow_node.status()["retrying"], "the write-back to meet EROFS")
        assert slow_node.status()["retrying"][0]["path"].endswith("during")
        assert (slow_node.mount / "during").read_bytes() == b"2"
    finally:
        slow_tier.remount("rw")
    slow_node.settle()
    assert (slow_tier.mountpoint / "during").read_bytes() == b"2"


def test_stuck_shard_holds_its_marker_and_nothing_else(
    slow_node: Node, slow_tier: LoopDevice
) -> None:
    slow_node.expected = [r"__0_0\.distcp", r"stuck"]
    folder = slow_node.mount / "run"  # no checkpoint by its name: its marker is ordered by itself
    folder.mkdir()
    for name in DCP.shards:
        (folder / name).write_bytes(bytes(MIB))
    slow_node.settle()
    with immutable(slow_tier.mountpoint / "run" / "__0_0.distcp"):
        (folder / "__0_0.distcp").write_bytes(b"replaced")
        (folder / ".metadata").write_bytes(b"marker")
        DCP.save(slow_node.mount, 2, MIB)
        result = slow_node.flush()
        assert result.code == 3, result.out
        assert any(p["path"].endswith("run/__0_0.distcp") for p in result.json["stuck"])
        assert any(p["path"].endswith("run/.metadata") for p in result.json["held"])
        assert not (slow_tier.mountpoint / "run" / ".metadata").exists()
        assert (slow_tier.mountpoint / "step_2" / ".metadata").exists()
        alone = slow_node.flush(folder / ".metadata")
        assert alone.code == 5, alone.out
        assert slow_node.flush(slow_node.mount / "step_2").code == 0
    slow_node.settle()
    assert (slow_tier.mountpoint / "run" / "__0_0.distcp").read_bytes() == b"replaced"
    assert (slow_tier.mountpoint / "run" / ".metadata").read_bytes() == b"marker"


def test_marker_waits_for_a_file_still_open(slow_node: Node, slow_tier: LoopDevice) -> None:
    folder = slow_node.mount / "step_9"
    folder.mkdir()
    with (folder / "__1_0.distcp").open("wb") as late:
        late.write(bytes(MIB))
        late.flush()
        (folder / "__0_0.distcp").write_bytes(bytes(MIB))
        (folder / ".metadata").write_bytes(b"marker")
        result = slow_node.flush()
        assert result.code == 6, result.out
        assert any(p["path"].endswith("__1_0.distcp") for p in result.json["open"])
        assert "__1_0.distcp" in result.json["unsealed"][0]["reason"]
        assert (slow_tier.mountpoint / ".staging_step_9" / "__0_0.distcp").exists()
        assert not (slow_tier.mountpoint / "step_9").exists()
    slow_node.settle()
    assert DCP.whole(paths_below(slow_tier.mountpoint)) == {"step_9"}


def test_directory_times_keep_the_order_of_saves(slow_node: Node, slow_tier: LoopDevice) -> None:
    """The Trainer rotates by the mtime of the directories."""
    with stuttering(slow_tier, stall=0.05):
        for step in (3, 1, 2, 4):
            TRAINER.save(slow_node.mount, step, 512 * 1024)
        slow_node.settle()

    def by_mtime(root: Path) -> list[str]:
        found = root.glob("checkpoint-*")
        return [p.name for p in sorted(found, key=lambda p: p.stat().st_mtime_ns)]

    want = ["checkpoint-3", "checkpoint-1", "checkpoint-2", "checkpoint-4"]
    assert by_mtime(slow_node.mount) == want
    assert by_mtime(slow_tier.mountpoint) == want


def test_a_time_given_to_a_directory_stays_while_files_in_it_are_committed(node: Node) -> None:
    """As rsync and tar do it: the files are closed, then their directory gets its time."""
    directory, there, given = node.mount / "d", node.shared / "d", 1_234_567_890_123_456_789
    directory.mkdir()
    node.settle()
    first, last = ((directory / name).open("wb") for name in ("first", "last"))
    with last:
        with first:
            os.utime(directory, ns=(given, given))
            wait_until(lambda: there.stat().st_mtime_ns == given, "the time is not there")
            first.write(b"x")
        wait_until((there / "first").exists, "the file is not committed")
        assert there.stat().st_mtime_ns != given  # a commit is a change there
        directory.chmod(0o700)  # its answer is what the daemon says now
        assert directory.stat().st_mtime_ns == given
    node.settle()
    assert directory.stat().st_mtime_ns == there.stat().st_mtime_ns == given
