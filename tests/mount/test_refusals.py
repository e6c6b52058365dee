"""Bad input: one line that says what and how to mend it, exit code not 0, nothing created."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, snapshot
from tests.harness.users import ALICE

MIB = 1 << 20


@pytest.fixture
def unmounted(make_node: Callable[..., Node]) -> Node:
    """A node whose directories exist and whose daemon was never started."""
    return make_node()


def everything(root: Path) -> set[str]:
    """All that exists below `root`, hidden names included."""
    return {str(path) for path in root.rglob("*")}


def refused(node: Node, *words: str | Path, says: tuple[str, ...], uid: int | None = None) -> None:
    """`tierfs WORDS` must fail with one line that has each of `says`, and leave no trace."""
    before = everything(node.root) | everything(node.shared)
    result = node.cli(*words, uid=uid, timeout=60)
    assert result.code != 0
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    for text in says:
        assert text.lower() in lines[0].lower(), f"{text!r} not in {lines[0]!r}"
    assert everything(node.root) | everything(node.shared) == before
    assert not node.is_mounted()


def mount(node: Node, local: Path, shared: Path, where: Path | None = None) -> list[str | Path]:
    return ["mount", where or node.mount, "--local", local, "--shared", shared]


def test_shared_tier_missing(unmounted: Node) -> None:
    gone = unmounted.shared / "absent"
    refused(unmounted, *mount(unmounted, unmounted.local, gone), says=(str(gone),))


def test_local_tier_missing(unmounted: Node) -> None:
    """A drive that is not mounted must not become a directory on the root file system."""
    gone = unmounted.root / "absent"
    refused(unmounted, *mount(unmounted, gone, unmounted.shared), says=(str(gone),))


def test_local_tier_is_a_file(unmounted: Node) -> None:
    path = unmounted.root / "file"
    path.write_bytes(b"")
    refused(unmounted, *mount(unmounted, path, unmounted.shared), says=(str(path),))


def test_shared_tier_is_a_file(unmounted: Node) -> None:
    path = unmounted.root / "file"
    path.write_bytes(b"")
    refused(unmounted, *mount(unmounted, unmounted.local, path), says=(str(path),))


def test_local_tier_holds_other_files(unmounted: Node) -> None:
    (unmounted.local / "precious.txt").write_bytes(b"not ours")
    refused(
        unmounted,
        *mount(unmounted, unmounted.local, unmounted.shared),
        says=(str(unmounted.local),),
    )
    assert (unmounted.local / "precious.txt").read_bytes() == b"not ours"


def test_tiers_are_one_directory(unmounted: Node) -> None:
    refused(
        unmounted,
        *mount(unmounted, unmounted.shared, unmounted.shared),
        says=(str(unmounted.shared),),
    )


@pytest.mark.parametrize("inner", ["local", "shared"])
def test_one_tier_inside_the_other(unmounted: Node, inner: str) -> None:
    outer = unmounted.root / "outer"
    (outer / "inner").mkdir(parents=True)
    pair = (outer / "inner", outer) if inner == "local" else (outer, outer / "inner")
    refused(unmounted, *mount(unmounted, *pair), says=(str(outer / "inner"),))


def test_one_tier_inside_the_other_through_a_symlink(unmounted: Node) -> None:
    (unmounted.shared / "inner").mkdir()
    (unmounted.root / "alias").symlink_to(unmounted.shared / "inner")
    refused(
        unmounted, *mount(unmounted, unmounted.root / "alias", unmounted.shared), says=("inside",)
    )


@pytest.mark.parametrize("tier", ["local", "shared"])
def test_tier_inside_the_mount_point(unmounted: Node, tier: str) -> None:
    inner = unmounted.mount / "inner"
    inner.mkdir()
    local = inner if tier == "local" else unmounted.local
    shared = inner if tier == "shared" else unmounted.shared
    refused(unmounted, *mount(unmounted, local, shared), says=(str(inner),))


@pytest.mark.parametrize("tier", ["local", "shared"])
def test_mount_point_inside_a_tier(unmounted: Node, tier: str) -> None:
    base = unmounted.local if tier == "local" else unmounted.shared
    where = base / "mnt"
    where.mkdir()
    refused(
        unmounted, *mount(unmounted, unmounted.local, unmounted.shared, where), says=(str(where),)
    )


def test_mount_point_missing(unmounted: Node) -> None:
    where = unmounted.root / "absent"
    refused(
        unmounted, *mount(unmounted, unmounted.local, unmounted.shared, where), says=(str(where),)
    )


def test_mount_point_is_a_file(unmounted: Node) -> None:
    where = unmounted.root / "file"
    where.touch()
    refused(
        unmounted, *mount(unmounted, unmounted.local, unmounted.shared, where),
        says=(str(where), "not a directory"),
    )  # fmt: skip


def test_mount_point_in_use_by_another_file_system(unmounted: Node) -> None:
    where = unmounted.root / "busy"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", where], check=True)
    try:
        (where / "f").write_bytes(b"x")
        refused(
            unmounted,
            *mount(unmounted, unmounted.local, unmounted.shared, where),
            says=(str(where),),
        )
        assert (where / "f").read_bytes() == b"x"
    finally:
        subprocess.run(["umount", where], check=True)


def test_mount_point_of_a_living_tierfs(node: Node, make_node: Callable[..., Node]) -> None:
    node.expected = ["already"]
    other = make_node("other")
    words = ["mount", node.mount, "--local", other.local, "--shared", node.shared]
    result = other.cli(*words)
    assert result.code != 0
    assert len(result.err.strip().splitlines()) == 1
    assert list(other.local.iterdir()) == []
    assert node.is_alive()


def test_unwritable_shared_tier(unmounted: Node, make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("readonly")
    device.remount("ro")
    refused(
        unmounted,
        *mount(unmounted, unmounted.local, device.mountpoint),
        says=(str(device.mountpoint),),
    )
    assert list(device.mountpoint.iterdir()) == []


def test_unwritable_local_tier(unmounted: Node, make_device: Callable[..., LoopDevice]) -> None:
    device = make_device("readonly")
    device.remount("ro")
    refused(
        unmounted,
        *mount(unmounted, device.mountpoint, unmounted.shared),
        says=(str(device.mountpoint),),
    )
    assert list(unmounted.shared.iterdir()) == []


def test_shared_tier_without_attributes_and_owners(unmounted: Node, tmp_path: Path) -> None:
    """vfat has no owners, no xattrs and no atomic rename over: it cannot be a tier."""
    if shutil.which("mkfs.vfat") is None:
        pytest.skip("no mkfs.vfat")
    with LoopDevice(tmp_path, "vfat", 64 * MIB, "vfat") as device:
        refused(
            unmounted,
            *mount(unmounted, unmounted.local, device.mountpoint),
            says=(str(device.mountpoint),),
        )
        assert list(device.mountpoint.iterdir()) == []


def test_empty_mount_point_that_was_a_shared_tier(
    make_node: Callable[..., Node], make_device: Callable[..., LoopDevice]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    assert node.umount().code == 0
    device.unmount()
    refused(node, *node.mount_words(), says=(str(device.mountpoint),))
    assert list(device.mountpoint.iterdir()) == []
    device.mount()
    node.start()
    assert (node.mount / "f").read_bytes() == b"x"


def test_unknown_configuration_key(unmounted: Node) -> None:
    unmounted.settings = {"temporary_hodl": "30s"}
    words = unmounted.mount_words()
    refused(unmounted, *words, says=("temporary_hodl", "temporary_hold"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("digest", "md5"), ("transfer_files", 0), ("watermark", 2.0), ("linger", "-3s")],
)
def test_wrong_configuration_value(unmounted: Node, key: str, value: object) -> None:
    unmounted.settings = {key: value}
    words = unmounted.mount_words()
    refused(unmounted, *words, says=(key,))


def test_unknown_option(unmounted: Node) -> None:
    result = unmounted.cli(*unmounted.mount_words("--frobnicate"))
    assert result.code != 0
    assert "--frobnicate" in result.err
    assert not unmounted.is_mounted()


def test_without_rights(unmounted: Node) -> None:
    refused(unmounted, *unmounted.mount_words(), says=("root",), uid=ALICE)


def test_without_dev_fuse(unmounted: Node) -> None:
    """In a mount namespace of its own, /dev has what every program needs and nothing more."""
    before = everything(unmounted.root) | everything(unmounted.shared)
    bare_dev = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3"
    words = ["unshare", "--mount", "sh", "-c", f'{bare_dev} && exec "$@"', "sh"]
    done = subprocess.run(
        [*words, *unmounted.command(*unmounted.mount_words())],
        env={**os.environ, **unmounted.python_path()},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "/dev/fuse" in done.stderr
    assert everything(unmounted.root) | everything(unmounted.shared) == before


def test_foreign_files_in_our_places_are_left_alone(node: Node) -> None:
    (node.shared / ".tierfs" / "notes.txt").write_bytes(b"somebody's")
    (node.local / "notes.txt").write_bytes(b"somebody's")
    node.restart()
    foreign = node.status()["foreign"]
    assert len([path for path in foreign if path.endswith("notes.txt")]) == 2
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    assert (node.shared / ".tierfs" / "notes.txt").read_bytes() == b"somebody's"
    assert (node.local / "notes.txt").read_bytes() == b"somebody's"


def test_damaged_journal_is_refused_and_kept(node: Node) -> None:
    """Refused while anything that it told of cannot be saved; set aside as it is afterwards."""
    (node.mount / "f").write_bytes(b"x")
    assert node.umount().code == 0
    database = next(node.local.glob("journal*"))
    for extra in node.local.glob("journal*-wal"):
        extra.unlink()
    with database.open("r+b") as file:
        file.write(b"\0" * 4096)
    before = database.read_bytes()
    staging = node.shared / ".tierfs" / "staging"
    moved = staging.rename(staging.with_name("away"))
    staging.write_bytes(b"nothing can be staged")
    there = everything(node.local)
    result = node.cli(*node.mount_words())
    assert result.code == 1
    first, refusal = result.err.strip().splitlines()
    assert f"the journal of {node.local} is lost" in first
    assert ".tierfs/staging: Not a directory" in refusal
    assert database.name in refusal
    assert database.read_bytes() == before
    assert everything(node.local) == there
    assert not node.is_mounted()
    staging.unlink()
    moved.rename(staging)
    node.expected = ["its journal was lost"]
    node.start()
    (aside,) = node.local.glob(f"{database.name}.lost-*")
    assert aside.read_bytes() == before
    assert (node.mount / "f").read_bytes() == b"x"
    salvaged = node.status()["salvaged"]
    assert (salvaged["committed"], salvaged["same"], salvaged["beside"]) == (0, 1, 0)


def test_reserved_names_are_hidden(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    (node.shared / ".staging_other").mkdir()
    assert os.listdir(node.mount) == ["f"]
    assert not (node.mount / ".tierfs").exists()
    assert (node.shared / ".tierfs").stat().st_mode & 0o777 == 0o700
    with pytest.raises(OSError, match=r"permitted|denied"):
        (node.mount / ".tierfs").mkdir()
    with pytest.raises(OSError, match=r"permitted|denied"):
        (node.mount / ".staging_x").write_bytes(b"")
    assert set(snapshot(node.mount)) == {"f"}
