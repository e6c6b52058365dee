"""`keep_last` and `keep_every`: what tierfs removes by itself, through a real mount."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.harness import Node, Recorder, wait_until
from tests.harness.checkpoints import TRAINER


def names(folder: Path) -> set[str]:
    """The checkpoints in `folder`."""
    return {each.name for each in folder.glob("checkpoint-*")}


def test_old_ones_go_once_a_newer_one_is_whole(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings |= {"keep_last": 2, "keep_every": 10}
    node.start()
    run = node.mount / "run"
    run.mkdir()
    (run / "best").symlink_to("checkpoint-11")
    (run / "latest").write_text("checkpoint-12")
    for step in (10, 11, 12, 13, 14):
        TRAINER.save(run, step, 20_000)
        node.settle()
    # 10 by its number, 11 and 12 because they are named; 13 and 14 are the newest
    assert names(run) == {f"checkpoint-{step}" for step in (10, 11, 12, 13, 14)}
    with Recorder(node.shared) as recorder:
        TRAINER.save(run, 15, 20_000)
        node.settle()
        wait_until(lambda: "checkpoint-13" not in names(node.shared / "run"), "it to go")
        assert recorder.position("appeared", "run/checkpoint-15") < recorder.position(
            "vanished", "run/checkpoint-13"
        )
    assert names(run) == {f"checkpoint-{step}" for step in (10, 11, 12, 14, 15)}
    assert names(node.shared / "run") == names(run)
    node.settle()
    assert list((node.shared / ".tierfs" / "trash").iterdir()) == []


def test_nothing_goes_before_a_newer_one_is_whole(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings |= {"keep_last": 1}
    node.start()
    TRAINER.save(node.mount, 1, 20_000)
    node.settle()
    (node.mount / "checkpoint-2").mkdir()
    with (node.mount / "checkpoint-2" / "model.safetensors").open("wb") as weights:
        weights.write(b"x")
        (node.mount / "checkpoint-2" / TRAINER.marker).write_bytes(b"x")
        assert node.flush().code == 6
        assert names(node.shared) == {"checkpoint-1"}
    node.settle()
    wait_until(lambda: names(node.shared) == {"checkpoint-2"}, "the old one to go")
