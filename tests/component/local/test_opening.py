"""Which directories become a local tier, who holds them, and what they remember."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.devices import LoopDevice, run
from tierfs.errors import TierError
from tierfs.local import TEST_BOOT_ID, TEST_MOUNT_ID, ObjectStore
from tierfs.model import ROOT, Kind, new_object_id
from tierfs.osio import OS

HOLD = """
import sys
from tierfs.local import ObjectStore
from tierfs.osio import OS
store = ObjectStore.open(sys.argv[1], OS())
print(store.member, flush=True)
sys.stdin.read()
"""


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


def refused(path: Path, system: OS | None = None) -> str:
    with pytest.raises(TierError) as caught:
        ObjectStore.open(path, system or OS())
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def reopen(path: Path) -> ObjectStore:
    store = ObjectStore.open(path, OS())
    store.close()
    return store


def test_an_empty_directory_becomes_a_tier_and_keeps_its_member(directory: Path) -> None:
    first, second = reopen(directory), reopen(directory)
    assert re.fullmatch("[0-9a-f]{32}", first.member)
    assert second.member == first.member
    assert sorted(os.listdir(directory)) == ["BOOT", "MEMBER", "VERSION", "lock", "objects"]


def test_two_directories_are_two_members(directory: Path, tmp_path: Path) -> None:
    assert reopen(directory).member != reopen(tmp_path).member


def test_the_root_of_a_fresh_file_system_is_empty(make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("fresh", fstype="ext4")
    assert os.listdir(device.mountpoint) == ["lost+found"]
    store = ObjectStore.open(device.mountpoint, OS())
    assert store.foreign() == []
    store.close()


@pytest.mark.parametrize("name", ["checkpoint.pt", "journal.db", ".hidden"])
def test_a_directory_with_something_else_in_it_is_refused_untouched(
    directory: Path, name: str
) -> None:
    (directory / name).write_bytes(b"theirs")
    before = snapshot(directory)
    assert name in refused(directory)
    assert snapshot(directory) == before


def test_missing_and_no_directory(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none")
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_a_read_only_file_system_is_refused(make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("ro")
    device.remount("ro")
    assert "Read-only" in refused(device.mountpoint)


def test_a_file_system_without_xattrs_is_refused(tmp_path: Path) -> None:
    run("mount", "-t", "ramfs", "none", tmp_path)
    try:
        assert "xattrs" in refused(tmp_path)
        assert os.listdir(tmp_path) == []
    finally:
        run("umount", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("VERSION", b"2\n", "format 2"), ("MEMBER", b"short\n", "MEMBER"), ("MEMBER", None, "MEMBER")],
)
def test_damaged_identity_is_refused(
    directory: Path, name: str, content: bytes | None, message: str
) -> None:
    reopen(directory)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    before = snapshot(directory)
    assert message in refused(directory)
    assert snapshot(directory) == before


def test_objects_without_a_version_are_not_taken_for_a_fresh_start(directory: Path) -> None:
    store = ObjectStore.open(directory, OS())
    store.create(new_object_id(), Kind.FIFO, mode=0, uid=0, gid=0, parent=ROOT, name=b"x")
    store.close()
    (directory / "VERSION").unlink()
    (directory / "BOOT").unlink()
    assert "VERSION" in refused(directory)


def test_a_set_up_that_breaks_off_at_any_call_can_be_repeated(directory: Path) -> None:
    left = 0

    class Failing(OS):
        def _enter(self, step: str, *detail: object) -> None:
            nonlocal left
            if step in ("local.setup", "local.replace", "local.lock") and len(detail) > 1:
                left -= 1
                if left == 0:
                    raise OSError(5, "the process died here")

    failures = 0
    while True:
        failures += 1
        left = failures
        try:
            ObjectStore.open(directory, Failing()).close()
        except TierError as error:
            assert "died" in str(error)  # noqa: PT017 - the loop ends when nothing fails
            continue
        break
    assert failures > 8
    assert re.fullmatch("[0-9a-f]{32}", reopen(directory).member)


def test_a_second_process_is_refused_and_told_the_first(directory: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert holder.stdout is not None
    member = holder.stdout.readline().strip()
    try:
        assert f"process {holder.pid}:" in refused(directory)
    finally:
        holder.kill()
        holder.communicate()
    assert reopen(directory).member == member


def test_another_boot_is_remembered_only_when_told_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not reopen(directory).boot_changed
    assert not reopen(directory).boot_changed
    for variable in (TEST_BOOT_ID, TEST_MOUNT_ID):
        monkeypatch.setenv(variable, "another")
        assert reopen(directory).boot_changed
        assert reopen(directory).boot_changed  # a crash before it was dealt with
        store = ObjectStore.open(directory, OS())
        store.remember_boot()
        store.close()
        assert not reopen(directory).boot_changed


def test_a_lost_memory_counts_as_another_boot(directory: Path) -> None:
    reopen(directory)
    (directory / "BOOT").unlink()
    assert reopen(directory).boot_changed


def test_another_mount_of_the_file_system_is_seen(make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("again")
    assert not reopen(device.mountpoint).boot_changed
    device.unmount()
    device.mount()
    assert reopen(device.mountpoint).boot_changed


def test_closing_leaves_no_descriptor(directory: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    reopen(directory)
    refused(directory.parent / "none")
    assert set(os.listdir("/proc/self/fd")) == before


def test_objects_in_a_directory_that_somebody_made_before(directory: Path) -> None:
    """Where others may write, `objects` may be there already, and be theirs."""
    objects = directory / "objects"
    objects.mkdir(mode=0o700)
    os.chown(objects, 65534, 65534)
    assert "owner 65534" in refused(directory)
    os.chown(objects, 0, 0)
    objects.chmod(0o755)
    assert "mode 0755" in refused(directory)
    objects.chmod(0o700)
    reopen(directory)
