"""`checkpoints`, `settled`, `commit`, `purge` and `doctor --profile` against a running mount."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, as_user, frozen, immutable, wait_until
from tests.harness.users import ALICE, BOB


@pytest.fixture
def run(node: Node) -> Path:
    """A directory for checkpoints."""
    node.mount.chmod(0o1777)
    path = node.mount / "run"
    path.mkdir()
    return path


def save(path: Path, *names: str) -> Path:
    """Make the checkpoint `path` with `names` in it, by a process that has ended then."""
    script = 'mkdir -p "$0" && for name; do echo "$name" > "$0/$name"; done'
    subprocess.run(["sh", "-c", script, str(path), *names], check=True)
    return path


def whole(path: Path) -> Path:
    return save(path, "model.safetensors", "trainer_state.json")


def half(path: Path) -> Path:
    """Nothing publishes it but somebody's word."""
    return save(path, "adapter_config.json")


def listed(node: Node, *words: str | Path) -> dict[str, list[str]]:
    result = node.cli("checkpoints", "--json", *(words or (node.mount,)))
    assert result.code == 0, result.err
    kinds = ("whole", "in_flight", "unsettled", "broken", "removals")
    return {
        kind: [os.path.basename(each["path"]) for each in result.json[kind]]
        for kind in kinds if result.json[kind]
    }  # fmt: skip


def test_checkpoints_tells_how_each_stands(node: Node, run: Path) -> None:
    assert listed(node) == {}
    assert "no checkpoints here" in node.cli("checkpoints", node.mount).out
    none = node.cli("checkpoints", "--latest-complete", run)
    assert (none.code, none.out) == (1, "")
    assert none.err.count("\n") == 1
    for step in (9, 10):
        whole(run / f"checkpoint-{step}")
    node.settle()
    half(run / "checkpoint-11")
    (node.shared / "run" / "checkpoint-2").mkdir()
    (node.shared / "run" / "checkpoint-2" / "model.bin").write_bytes(b"x")
    found = {
        "whole": ["checkpoint-2", "checkpoint-9", "checkpoint-10"], "in_flight": ["checkpoint-11"],
    }  # fmt: skip
    assert listed(node) == listed(node, run) == found
    assert listed(node, run / "checkpoint-9") == {"whole": ["checkpoint-9"]}
    result = node.cli("checkpoints", run, "--json").json
    foreign, nine, _ = result["whole"]
    assert (foreign["files"], foreign["manifest"]) == (None, False)
    assert (nine["files"], nine["bytes"], nine["manifest"]) == (2, 37, True)
    (eleven,) = result["in_flight"]
    assert eleven["files"] + eleven["pending_files"] == 1
    assert eleven["members"] == [node.status()["member"]]
    assert result["latest"] == str(run / "checkpoint-10")
    latest = node.cli("checkpoints", "--latest-complete", run)
    assert (latest.code, latest.out) == (0, f"{run}/checkpoint-10\n")
    text = node.cli("checkpoints", node.mount).out
    assert text.startswith("whole: 3\n")
    assert "made without tierfs" in text


def test_a_directory_with_a_pending_rename_is_not_whole(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    save(node.mount / "tmp-4", "model.safetensors")
    node.settle()
    with frozen(device):
        (node.mount / "tmp-4").rename(node.mount / "checkpoint-4")
        assert listed(node) == {"in_flight": ["checkpoint-4"]}
    node.settle()
    assert listed(node) == {"whole": ["checkpoint-4"]}


def test_unsettled_then_committed(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["group_settle"] = "1s"
    node.start()
    path = half(node.mount / "checkpoint-3")

    def state() -> bytes:
        return os.getxattr(path, "user.tierfs.state")

    wait_until(lambda: state() == b"unsettled", "nothing to happen any more")
    assert listed(node) == {"unsettled": ["checkpoint-3"]}
    (unsettled,) = node.status()["unsettled"]
    assert unsettled["path"] == str(path)
    assert unsettled["missing"][0].startswith("any weights")
    assert f"tierfs commit {path}" in node.cli("checkpoints", node.mount).out
    assert "checkpoints not published: 1" in node.cli("status", node.mount).out
    flushed = node.flush()
    assert flushed.code == 6
    assert flushed.json["unsealed"][0]["command"] == f"tierfs commit {path}"
    assert node.umount().code == 6
    assert node.is_alive()
    refused = node.cli("commit", path, "--expect", "2")
    assert refused.code == 1
    assert "1 files are there, 2 were expected" in refused.err
    assert not (node.shared / "checkpoint-3").exists()
    done = node.cli("commit", path, "--expect", "1")
    assert done.code == 0, done.err
    assert "missing: any weights" in done.out
    assert (node.shared / "checkpoint-3" / "adapter_config.json").exists()
    assert state() == b"committed"
    again = node.cli("commit", path, "--json")
    assert (again.code, again.json["published"], again.json["files"]) == (0, True, 1)
    assert node.cli("commit", path, "--expect", "2").code == 1
    assert node.umount().code == 0


def test_commit_sends_what_is_pending_and_names_what_is_open(node: Node, run: Path) -> None:
    path = run / "step_5"
    path.mkdir()
    with (path / "open.distcp").open("wb") as file:
        file.write(b"x")
        file.flush()
        (path / "closed.tmp").write_bytes(b"y")
        refused = node.cli("commit", path)
        assert refused.code == 4
        assert "open.distcp" in refused.err
    result = node.cli("commit", path, "--json")
    assert result.code == 0, result.err
    assert (result.json["files"], result.json["missing"]) == (2, [".metadata"])
    assert sorted(os.listdir(node.shared / "run" / "step_5")) == ["closed.tmp", "open.distcp"]


def test_commit_is_refused_where_it_makes_no_sense(node: Node, run: Path) -> None:
    whole(run / "checkpoint-1")
    (run / "checkpoint-1" / "sub").mkdir()
    (run / "file").write_bytes(b"x")
    for path, said in (
        (run, "not that of a checkpoint"),
        (run / "checkpoint-1" / "sub", "a part of the checkpoint"),
        (run / "file", "Not a directory"),
        (run / "absent", "No such file"),
    ):
        result = node.cli("commit", path)
        assert result.code == 1
        assert said in result.err
    (run / "checkpoint-1-unfinished").write_bytes(b"")
    result = node.cli("commit", run / "checkpoint-1")
    assert result.code == 6
    assert "checkpoint-1-unfinished says that it is not whole" in result.err
    (run / "checkpoint-1-unfinished").unlink()
    assert node.cli("commit", run / "checkpoint-1").code == 0


def test_commit_with_a_file_that_is_stuck(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    path = whole(node.mount / "checkpoint-1")
    wait_until((device.mountpoint / ".staging_checkpoint-1" / "model.safetensors").exists, "it")
    node.expected = [r"model\.safetensors"]
    with immutable(device.mountpoint / ".staging_checkpoint-1" / "model.safetensors"):
        (path / "model.safetensors").write_bytes(b"other")
        wait_until(lambda: node.status()["stuck"], "it to be stuck")
        result = node.cli("commit", path)
        assert result.code == 3
        assert "model.safetensors" in result.err
        assert listed(node) == {"broken": ["checkpoint-1"]}
        settled = node.cli("settled", node.mount, "--json", "--timeout", "30")
        assert settled.code == 3
        assert settled.json["stuck"][0]["path"] == str(path / "model.safetensors")
    assert node.cli("commit", path).code == 0


def test_settled_waits_and_prints_the_latest(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    empty = node.cli("settled", node.mount)
    assert (empty.code, empty.out, empty.err) == (0, "", "")
    path = whole(node.mount / "checkpoint-7")
    node.settle()
    half(node.mount / "checkpoint-8")
    result = node.cli("settled", node.mount, "--timeout", "60")
    assert (result.code, result.out) == (0, f"{path}\n")
    with frozen(device):
        (node.mount / "f").write_bytes(b"x")
        result = node.cli("settled", node.mount, "--timeout", "0.5")
        assert (result.code, result.out) == (2, "")
        assert f"{node.mount}/f: not yet committed" in result.err
    with (node.mount / "open").open("wb") as file:
        file.write(b"x")
        file.flush()
        result = node.cli("settled", node.mount, "--timeout", "0.5", "--json")
        assert result.code == 2
        assert [each["path"] for each in result.json["open"]] == [f"{node.mount}/open"]
        result = node.cli("settled", node.mount, "--timeout", "2")
        assert (result.code, result.out) == (2, "")
        assert result.err.count("waiting: 1 files open for writing") == 1, "told when it changes"
    node.settle(node.mount / "open")


def test_settled_waits_for_a_seal_that_comes_by_itself(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["group_settle"] = "2s"
    node.start()
    path = whole(node.mount / "checkpoint-7")
    assert not (node.shared / "checkpoint-7").exists()
    result = node.cli("settled", node.mount)
    assert (result.code, result.out) == (0, f"{path}\n")
    assert (node.shared / "checkpoint-7").exists()


def test_removals_that_are_held_and_purged(node: Node, run: Path) -> None:
    for name in ("checkpoint-1", "other/checkpoint-1"):
        (run / name).parent.mkdir(exist_ok=True)
        whole(run / name)
    node.settle()
    for folder in (run, run / "other"):
        subprocess.run(["rm", "-r", str(folder / "checkpoint-1")], check=True)
    node.settle()
    assert listed(node) == {"removals": ["checkpoint-1", "checkpoint-1"]}
    assert listed(node, run / "other") == {"removals": ["checkpoint-1"]}
    status = node.status()
    assert {each["path"] for each in status["held"]} == {
        f"{run}/checkpoint-1", f"{run}/other/checkpoint-1",
    }  # fmt: skip
    assert status["held_bytes"] == 74
    assert all(each["reason"] and each["member"] for each in status["held"])
    assert node.cli("purge", run, uid=ALICE).code == 1
    purged = node.cli("purge", run / "other", "--json")
    assert [each["path"] for each in purged.json["purged"]] == [f"{run}/other/checkpoint-1"]
    node.settle()
    assert os.listdir(node.shared / "run" / "other") == []
    assert (node.shared / "run" / "checkpoint-1").exists()
    assert f"{run}/checkpoint-1: removed (37 B)" in node.cli("purge", node.mount).out
    node.settle()
    assert not (node.shared / "run" / "checkpoint-1").exists()
    assert node.cli("purge", node.mount).out == "no removal is held back\n"


def test_doctor_explains(node: Node, run: Path) -> None:
    index = json.dumps({"weight_map": {"w": "model-2-of-2.safetensors"}})
    path = half(run / "checkpoint-3")
    (path / "model.safetensors.index.json").write_text(index)
    (path / "model-1-of-2.safetensors").write_text("x")
    assert node.flush().code == 6  # all of it is committed
    result = node.cli("doctor", "--profile", path, "--json")
    assert result.code == 0, result.err
    said = result.json
    assert (said["pattern"], said["profile"]) == (r"^checkpoint-\d+$", "hf-trainer")
    assert said["decision"] == "wait"
    assert said["missing"] == [
        "model-2-of-2.safetensors (named in model.safetensors.index.json)",
    ]
    rules = {os.path.basename(each["path"]): each["rules"] for each in said["files"]}
    assert any(
        rule.startswith("required: any weights") for rule in rules["model-1-of-2.safetensors"]
    )
    assert {each["state"] for each in said["writers"]} == {"living", "exited"}
    text = node.cli("doctor", "--profile", path).out
    assert "model-2-of-2.safetensors (named in model.safetensors.index.json): MISSING" in text
    (run / "latest").symlink_to(path.name)
    assert node.cli("doctor", "--profile", run / "latest", "--json").json["path"] == said["path"]
    assert node.cli("commit", run / "latest").code == 0
    assert (node.shared / "run" / "checkpoint-3").exists()
    assert node.cli("doctor", "--profile", path, "--json").json["decision"] == "published"
    assert "no pattern matches its name" in node.cli("doctor", "--profile", run).out


def test_users_see_and_commit_their_own(node: Node, run: Path) -> None:
    run.chmod(0o1777)
    secret = run / "secret"
    secret.mkdir(0o700)
    whole(secret / "checkpoint-9")
    mine = run / "checkpoint-3"

    def write() -> None:
        mine.mkdir(0o755)
        (mine / "adapter_config.json").write_bytes(b"{}")

    as_user(write, ALICE)
    seen = node.cli("checkpoints", node.mount, "--json", uid=BOB)
    assert seen.code == 0, seen.err
    assert "secret/" not in seen.out
    assert seen.json["hidden"] == 1
    assert [each["path"] for each in seen.json["in_flight"]] == [str(mine)]
    assert node.cli("checkpoints", secret, uid=BOB).code == 1
    assert node.cli("doctor", "--profile", secret / "checkpoint-9", uid=BOB).code == 1
    refused = node.cli("commit", mine, uid=BOB)
    assert refused.code == 1
    assert "Permission denied" in refused.err
    assert not (node.shared / "run" / "checkpoint-3").exists()
    done = node.cli("commit", mine, uid=ALICE)
    assert done.code == 0, done.err
    latest = node.cli("checkpoints", "--latest-complete", node.mount, uid=BOB)
    assert latest.out == f"{mine}\n"
    settled = node.cli("settled", run, "--timeout", "1", uid=BOB)
    assert "secret/" not in settled.out + settled.err
    node.settle()


def test_a_flush_that_ends_before_a_checkpoint_is_sealed_timed_out(node: Node, run: Path) -> None:
    path = run / "global_step5"
    script = 'mkdir "$0" && echo x > "$0/mp_rank_00_model_states.pt" && echo done && exec cat'
    with subprocess.Popen(
        ["sh", "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        # This pointer counts at once only where a sealed sibling has files of the same names.
        (run / "latest").write_bytes(b"global_step5")
        result = node.flush(timeout=1)
        assert result.code == 2
        assert result.json["unsealed"][0]["path"] == str(path)
        assert node.cli("commit", path).code == 0
        node.settle()
        assert (node.shared / "run" / "latest").read_bytes() == b"global_step5"
        writer.communicate()


def test_a_seal_that_is_stuck(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    node.expected = [r"checkpoint-1"]
    path = half(node.mount / "run" / "checkpoint-1")
    assert node.flush().code == 6
    with immutable(device.mountpoint / "run"):
        result = node.cli("commit", path)
        assert result.code == 3
        assert "not published: " in result.err
        assert listed(node) == {"broken": ["checkpoint-1"]}
        flushed = node.flush()
        assert flushed.code == 3, flushed.out
        assert [each["path"] for each in flushed.json["stuck"]] == [str(path)]
        assert node.cli("settled", node.mount, "--timeout", "30").code == 3
    assert node.cli("commit", path).code == 0
    assert listed(node) == {"whole": ["checkpoint-1"]}


def test_what_a_lost_node_was_writing_is_seen_and_published_on_another(
    make_node: Callable[..., Node],
) -> None:
    lost, other = make_node("a").start(), make_node("b").start()
    half(lost.mount / "run" / "checkpoint-1")
    assert lost.flush().code == 6
    member = lost.status()["member"]
    assert lost.umount("--force").code == 0
    assert os.listdir(other.mount / "run") == []
    (seen,) = other.cli("checkpoints", other.mount, "--json").json["in_flight"]
    assert (seen["files"], seen["bytes"], seen["members"]) == (1, 20, [member])
    path = other.mount / "run" / "checkpoint-1"
    explained = other.cli("doctor", "--profile", path, "--json").json
    assert [each["path"] for each in explained["files"]] == [f"{path}/adapter_config.json"]
    assert other.cli("commit", path, "--expect", "1").code == 0
    assert listed(other) == {"whole": ["checkpoint-1"]}
    assert os.listdir(other.shared / "run") == ["checkpoint-1"]
    assert listed(lost.start()) == {"whole": ["checkpoint-1"]}
    lost.settle()
