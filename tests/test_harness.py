"""The harness itself: its judges must see what is wrong, or the tests above them prove nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Recorder, compare, frozen, shut_down, stuttering
from tests.harness.checkpoints import DCP, replay
from tests.harness.storm import Storm
from tests.harness.trees import snapshot

MIB = 1 << 20


def test_recorder_keeps_the_order_and_replay_finds_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    with Recorder(tmp_path) as recorder:
        (tmp_path / "step_1" / ".metadata").write_bytes(b"too early")
        for shard in DCP.shards:
            (tmp_path / "step_1" / shard).write_bytes(b"x")
        states = list(replay({"step_1"}, recorder.events()))
    assert recorder.appeared() == [f"step_1/{name}" for name in (".metadata", *DCP.shards)]
    assert any(DCP.broken(present) for _, present in states)
    assert DCP.broken(states[-1][1]) == []
    assert DCP.whole(states[-1][1]) == {"step_1"}


def test_recorder_follows_renamed_directories(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with Recorder(tmp_path) as recorder:
        os.rename(tmp_path / "a", tmp_path / "b")
        recorder.events()
        (tmp_path / "b" / "f").write_bytes(b"")
        assert recorder.appeared() == ["b", "b/f"]
        assert recorder.vanished() == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "f").write_bytes(b"other bytes"),
        lambda root: (root / "f").chmod(0o600),
        lambda root: os.utime(root / "f", ns=(1, 1)),
        lambda root: os.setxattr(root / "f", "user.k", b"v"),
        lambda root: os.chown(root / "d", 1, 1),
        lambda root: os.link(root / "f", root / "g"),
        lambda root: (root / "d" / "extra").touch(),
    ],
    ids=["content", "mode", "mtime", "xattr", "owner", "link", "extra"],
)
def test_compare_sees_every_kind_of_difference(
    make_device: Callable[..., LoopDevice], change: Callable[[Path], object]
) -> None:
    root = make_device("disk").mountpoint
    (root / "one" / "d").mkdir(parents=True)
    (root / "one" / "f").write_bytes(b"other bits!")
    shutil.copytree(root / "one", root / "two")
    compare(root / "one", root / "two")
    change(root / "two")
    with pytest.raises(AssertionError, match="differ"):
        compare(root / "one", root / "two")


def test_storm_on_a_plain_directory_agrees_with_its_mirror(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    storm = Storm(tmp_path / "mount", tmp_path / "mirror", seed=7)
    storm.run(500)
    assert storm.done > 100
    left, right = snapshot(tmp_path / "mount"), snapshot(tmp_path / "mirror")
    assert {path: entry.content for path, entry in left.items()} == {
        path: entry.content for path, entry in right.items()
    }


def test_devices_hang_and_die_and_come_back(make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("disk")
    (device.mountpoint / "f").write_bytes(b"x")
    child = 0
    with frozen(device):
        child = os.fork()
        if child == 0:
            (device.mountpoint / "g").write_bytes(b"y")
            os._exit(0)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert os.waitpid(child, 0) == (child, 0)
    with stuttering(device):
        (device.mountpoint / "h").write_bytes(b"z")
    os.sync()
    shut_down(device)
    with pytest.raises(OSError, match="Input/output"):
        (device.mountpoint / "f").read_bytes()
    device.unmount()
    device.mount()
    assert (device.mountpoint / "g").read_bytes() == b"y"
