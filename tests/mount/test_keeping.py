"""What users want to have on their node: warm, pin, evict."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.harness import CommandResult, LoopDevice, Node, compare, wait_until

MIB = 1 << 20
SIZE = 8 * MIB


def content(name: str) -> bytes:
    return (name.encode() * SIZE)[:SIZE]


def tier_of(path: Path) -> str:
    return os.getxattr(path, "user.tierfs.tier").decode()


def test_warm_pin_and_evict(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    local, shared = make_device("local", 320 * MIB), make_device("shared", 2048 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.settings = {"watermark": 0.6, "watermark_low": 0.4}
    node.start()
    d, other = node.mount / "d", node.mount / "other"
    d.mkdir()
    other.mkdir()
    for name in ("f0", "f1", "f2", "f3"):
        (d / name).write_bytes(content(name))
    (shared.mountpoint / "d" / "foreign").write_bytes(content("foreign"))
    node.settle()

    def run(command: str, *words: str | Path, code: int = 0, uid: int | None = None) -> dict:
        done: CommandResult = node.cli(command, "--json", *words, uid=uid)
        assert done.code == code, done.out + done.err
        return dict(done.json)

    def left(result: dict) -> dict[str, str]:
        return {os.path.basename(each["path"]): each["reason"] for each in result["left"]}

    # evict
    with (d / "f0").open("rb") as file:
        result = run("evict", d)
        assert result["files"] == 3, result
        assert left(result) == {"f0": "is open"}
        assert file.read() == content("f0")
    wait_until(lambda: run("evict", d)["files"] == 1, "the closed one to be let go")
    assert {tier_of(path) for path in d.iterdir()} == {"shared"}
    (d / "pending.tmp").write_bytes(b"x")
    assert left(run("evict", d))["pending.tmp"].startswith("is not committed yet")
    (d / "pending.tmp").unlink()

    # warm
    with (shared.mountpoint / "d" / "f3").open("r+b") as damaged:
        damaged.seek(5 * MIB)
        damaged.write(b"damaged")
    result = run("warm", d, code=1)
    assert result["files"] == 4
    assert result["bytes"] == 4 * SIZE
    assert "digest" in left(result)["f3"]
    assert tier_of(d / "f3") == "shared"
    assert {tier_of(d / name) for name in ("f0", "f1", "f2", "foreign")} == {"both"}
    for name in ("f0", "f1", "f2", "foreign"):
        assert (d / name).read_bytes() == content(name)
    (d / "f3").write_bytes(content("f3"))
    node.settle()
    assert run("warm", d)["already"] == 5
    with (shared.mountpoint / "large").open("wb") as file:
        file.truncate(400 * MIB)
    refused = node.cli("warm", node.mount / "large")
    assert refused.code == 1
    assert "do not fit" in refused.err
    (d / "f1").chmod(0o600)
    assert left(run("warm", d, code=1, uid=4321)) == {"f1": "permission denied"}
    denied = run("evict", d / "f1", code=1, uid=4321)
    assert (left(denied), denied["already"]) == ({"f1": "permission denied"}, 0)
    assert left(run("pin", "--remove", d / "f1", code=1, uid=4321)) == {"f1": "permission denied"}

    # pin
    assert run("evict", d / "f0")["files"] == 1
    assert run("pin", d / "f0", other)["files"] == 1
    (other / "later").write_bytes(content("later"))
    node.settle()
    for index in range(20):  # more than is kept
        (node.mount / f"g{index}").write_bytes(content(f"g{index}"))
    node.settle()
    wait_until(lambda: tier_of(d / "f2") == "shared", "the others to go")
    assert tier_of(d / "f0") == tier_of(other / "later") == "both"
    node.restart()
    capacity = node.status()["capacity"]
    assert (capacity["pinned_files"], capacity["pinned_bytes"]) == (2, 2 * SIZE)
    (d / "f0").write_bytes(content("new"))
    node.settle()
    assert left(run("evict", d / "f0")) == {"f0": "is pinned (tierfs pin --remove)"}
    assert run("pin", "--remove", d / "f0", other)["files"] == 2  # `later` too
    assert run("evict", d / "f0", other)["files"] == 2
    assert node.status()["capacity"]["pinned_bytes"] == 0
    assert (d / "f0").read_bytes() == content("new")
    (node.mount / "large").unlink()
    node.settle()
    compare(node.mount, shared.mountpoint)


def test_the_whole_mount_is_pinned(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    """Its root has no name on the shared tier that it could be found by."""
    local, shared = make_device("local", 320 * MIB), make_device("shared", 512 * MIB)
    node = make_node(shared=shared.mountpoint, local=local.mountpoint / "tier")
    node.start()
    (node.mount / "d").mkdir()
    (node.mount / "d" / "before").write_bytes(b"before")
    node.settle()
    done = node.cli("pin", "--json", node.mount)
    assert (done.code, done.json["files"], done.json["left"]) == (0, 1, []), done.out + done.err
    (node.mount / "later").write_bytes(b"later")
    node.settle()
    left = node.cli("evict", "--json", node.mount).json["left"]
    assert {os.path.basename(each["path"]) for each in left} == {"before", "later"}
    done = node.cli("pin", "--json", "--remove", node.mount)
    assert (done.code, done.json["files"]) == (0, 2), done.out + done.err
    assert node.cli("evict", "--json", node.mount).json["left"] == []
