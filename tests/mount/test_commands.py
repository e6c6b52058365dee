"""The command line against a running mount: exit codes, JSON, other users."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import LoopDevice, Node, as_user, compare, frozen, immutable, wait_until
from tests.harness.users import ALICE, BOB
from tierfs.control import requests
from tierfs.control.client import Refused, call
from tierfs.control.discovery import LOG_NAME, session_directory

MIB = 1 << 20

STATUS_KEYS = {
    "node", "member", "mountpoint", "supervisor_pid", "worker_pid", "passthrough",
    "passthrough_reason", "pending_files", "pending_bytes", "pending_ops", "open_for_write",
    "oldest_pending_seconds", "oldest_unsynced_seconds", "committed_files", "committed_bytes",
    "retrying", "stuck", "unsettled", "held", "held_bytes", "local", "shared",
    "write_rate_bytes", "members",
}  # fmt: skip


def test_status_has_every_key_of_the_contract(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x" * 1000)
    node.settle()
    status = node.status()
    assert status.keys() >= STATUS_KEYS
    assert status["node"] == "a"
    assert status["mountpoint"] == str(node.mount)
    assert node.pid == (status["supervisor_pid"] or status["worker_pid"])
    assert (status["pending_files"], status["pending_bytes"], status["pending_ops"]) == (0, 0, 0)
    assert status["committed_files"] >= 1
    assert status["committed_bytes"] >= 1000
    for tier, path, good in (("local", node.local, "ok"), ("shared", node.shared, "healthy")):
        assert status[tier]["path"] == str(path)
        assert status[tier]["state"] == good
        assert 0 < status[tier]["free_bytes"] <= status[tier]["total_bytes"]


def test_status_counts_what_is_pending(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device), (node.mount / "open").open("wb") as file:
        file.write(b"x")
        file.flush()
        (node.mount / "f").write_bytes(bytes(3 * MIB))
        # Starting any command closes a duplicate of `file`: it counts as open after `linger`.
        wait_until(lambda: node.status()["pending_files"] == 1, "one file to be pending", poll=1.5)
        status = node.status()
        assert status["pending_bytes"] == 3 * MIB
        assert status["open_for_write"] == 1
        wait_until(lambda: node.status()["oldest_pending_seconds"] > 0, "the backlog to age")
    node.settle()


def test_flush_without_a_daemon(tmp_path: Path, node: Node) -> None:
    result = node.cli("flush", "--wait", tmp_path)
    assert result.code == 1
    assert str(tmp_path) in result.err


def test_flush_usage_error(node: Node) -> None:
    assert node.cli("flush", "--no-such-option").code in (1, 2)
    assert node.cli("flush", "--wait", node.mount / "absent").code == 1


def test_flush_of_nothing(node: Node) -> None:
    assert node.flush().code == 0


def test_flush_is_limited_to_its_paths(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    for name in ("a", "b"):
        (node.mount / name).mkdir()
        (node.mount / name / "f").write_bytes(b"1")
    node.settle()
    with immutable(device.mountpoint / "b" / "f"):
        node.expected = [r"b/f"]
        (node.mount / "a" / "f").write_bytes(b"2")
        (node.mount / "b" / "f").write_bytes(b"2")
        assert node.flush(node.mount / "a").code == 0
        assert node.flush(node.mount / "b").code == 3
        assert (device.mountpoint / "a" / "f").read_bytes() == b"2"
    node.settle()


def test_flush_of_a_file_is_not_concerned_with_checkpoints_beside_it(node: Node) -> None:
    path = node.mount / "checkpoint-1"
    path.mkdir()
    (path / "adapter_config.json").write_bytes(b"{}")
    (node.mount / "f").write_bytes(b"x")
    assert node.flush(node.mount / "f").code == 0
    assert node.flush(path / "adapter_config.json").code == 6
    assert node.flush(path).code == node.flush(node.mount).code == 6
    assert node.cli("commit", path).code == 0
    assert node.flush().code == 0


def test_flush_times_out(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        (node.mount / "f").write_bytes(b"x")
        started = time.monotonic()
        result = node.flush(timeout=1)
        assert result.code == 2
        assert time.monotonic() - started < 15
        assert any(p["path"].endswith("/f") for p in result.json["remaining"])
    node.settle()


def test_flush_names_files_that_are_open(node: Node) -> None:
    with (node.mount / "open").open("wb") as file:
        file.write(b"x")
        file.flush()
        (node.mount / "closed").write_bytes(b"y")
        result = node.flush()
        assert result.code == 4
        assert [os.path.basename(p["path"]) for p in result.json["open"]] == ["open"]
        assert (node.shared / "closed").read_bytes() == b"y"
    node.settle()


def test_flush_without_waiting_returns_at_once(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        (node.mount / "f").write_bytes(b"x")
        assert node.cli("flush", node.mount, timeout=15).code == 0
    node.settle()


def test_flush_sends_temporary_names_at_once(node: Node) -> None:
    (node.mount / "notes.tmp").write_bytes(b"x")
    node.settle()
    assert (node.shared / "notes.tmp").read_bytes() == b"x"


def test_flush_prints_json_lines_in_a_pipe(node: Node) -> None:
    (node.mount / "f").write_bytes(bytes(20 * MIB))
    result = node.cli("flush", "--wait", node.mount)
    assert result.code == 0
    assert result.lines[-1]["exit_code"] == 0


def test_flush_draws_a_progress_bar_on_a_terminal(node: Node) -> None:
    (node.mount / "large").write_bytes(os.urandom(64 * MIB))
    parent, child = pty.openpty()
    process = subprocess.Popen(
        node.command("flush", "--wait", node.mount),
        stdout=child, stderr=child, stdin=child, cwd="/",
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **node.python_path()},
    )  # fmt: skip
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 4096)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(parent)
    assert process.wait() == 0
    assert b"\r" in shown or b"\x1b[" in shown
    assert b"Traceback" not in shown


def test_interrupted_flush_leaves_the_daemon_alone(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        (node.mount / "f").write_bytes(b"x")
        process = subprocess.Popen(
            node.command("flush", "--wait", node.mount), cwd="/", stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **node.python_path()},
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()  # the first progress line: it is waiting now
        process.send_signal(2)
        process.communicate(timeout=10)
        assert process.returncode == 130
        assert node.is_alive()
    node.settle()


def test_users_see_and_flush_their_own(node: Node) -> None:
    node.mount.chmod(0o1777)
    os.mkdir(node.mount / "private", 0o700)
    (node.mount / "private" / "root.pt").write_bytes(b"x" * 1000)
    as_user(lambda: (node.mount / "alice.pt").write_bytes(b"alice"), ALICE)
    result = node.cli("flush", "--wait", "--json", node.mount / "alice.pt", uid=ALICE)
    assert result.code == 0, result.err
    assert (node.shared / "alice.pt").stat().st_uid == ALICE
    status = node.cli("status", node.mount, "--json", uid=ALICE)
    assert status.code == 0, status.err
    assert "root.pt" not in status.out
    assert json.loads(status.out)["mountpoint"] == str(node.mount)


def test_users_do_not_see_names_behind_closed_directories(node: Node) -> None:
    node.mount.chmod(0o1777)
    os.mkdir(node.mount / "private", 0o700)
    with (node.mount / "private" / "secret-name").open("wb") as file:
        file.write(b"x")
        file.flush()
        result = node.cli("flush", "--wait", "--json", node.mount, uid=BOB)
        assert "secret-name" not in result.out
        assert result.code == 4
        assert result.json["hidden"] == 1
        denied = node.cli("ls", node.mount / "private", uid=BOB)
        assert denied.code == 1
        assert "secret-name" not in denied.out
        for path in (node.mount / "private" / name for name in ("secret-name", "no-such-name")):
            for command in ("flush", "locate"):
                assert "permission denied" in node.cli(command, path, uid=BOB).err
        assert stat.S_IMODE((session_directory(str(node.mount)) / LOG_NAME).stat().st_mode) == 0o600


def test_users_reach_their_own_below_what_they_cannot_list(node: Node) -> None:
    os.mkdir(node.mount / "users", 0o711)
    own = node.mount / "users" / "alice"
    own.mkdir()
    os.chown(own, ALICE, ALICE)
    as_user(lambda: (own / "f").write_bytes(b"x"), ALICE)
    for words in (("flush", "--wait", own), ("ls", own), ("locate", own), ("locate", own / "f")):
        result = node.cli(*words, uid=ALICE)
        assert result.code == 0, (words, result.err)


def test_a_link_upwards_does_not_show_another_directory(node: Node) -> None:
    """The kernel, asked who may see it, would look at /usr/share; the answer is of the other."""
    os.mkdir(node.mount / "share", 0o700)
    (node.mount / "share" / "secret-name").write_bytes(b"x")
    (node.mount / "link").symlink_to("/usr/bin")
    path = f"{node.mount}/link/../share"

    def answer(request: requests.Request) -> str:
        try:
            return str(call(str(node.mount), request))
        except Refused as error:
            return str(error)

    for request in (requests.List(path=path), requests.Locate(path=f"{path}/secret-name")):
        assert "not an absolute path" in as_user(lambda asked=request: answer(asked), BOB)


def test_users_may_not_unmount_or_decide(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    for words in (("umount", node.mount), ("umount", "--force", node.mount)):
        assert node.cli(*words, uid=ALICE).code != 0
        assert node.is_alive()
    assert node.cli("discard", node.mount / "f", uid=ALICE).code != 0
    assert "only root" in node.cli("reload", node.mount, uid=ALICE).err
    assert node.supervisor()["generation"] == 1
    assert (node.mount / "f").read_bytes() == b"x"


def test_ls_and_locate(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    (node.mount / "d").mkdir()
    (node.mount / "d" / "sent").write_bytes(b"12345")
    node.settle()
    with frozen(device), (node.mount / "d" / "open").open("wb") as file:
        file.write(b"1")
        file.flush()
        (node.mount / "d" / "waiting").write_bytes(b"123")

        def listed() -> dict[str, tuple[str, int, str]]:
            result = node.cli("ls", node.mount / "d", "--json")
            assert result.code == 0, result.err
            return {e["name"]: (e["kind"], e["size"], e["state"]) for e in result.json["entries"]}

        # Starting any command closes a duplicate of `file`: it counts as open after `linger`.
        wait_until(lambda: listed()["open"][2] == "open", "open counts as open", poll=1.5)
        found = listed()
        assert found["sent"] == ("file", 5, "committed")
        assert found["waiting"] == ("file", 3, "pending")
        located = node.cli("locate", node.mount / "d" / "waiting", "--json").json
        assert Path(located["local_path"]).read_bytes() == b"123"
        assert located["shared_path"] is None
    node.settle()
    located = node.cli("locate", node.mount / "d" / "sent", "--json").json
    assert Path(located["shared_path"]) == device.mountpoint / "d" / "sent"
    assert located["digest"].startswith("sha256:")


def test_verify_finds_a_flipped_bit(node: Node) -> None:
    (node.mount / "good").write_bytes(os.urandom(100_000))
    (node.mount / "bad").write_bytes(os.urandom(100_000))
    node.settle()
    assert node.cli("verify", node.mount, "--json").code == 0
    st = (node.shared / "bad").stat()
    with (node.shared / "bad").open("r+b") as file:
        file.seek(50_000)
        byte = file.read(1)
        file.seek(50_000)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(node.shared / "bad", ns=(st.st_atime_ns, st.st_mtime_ns))
    result = node.cli("verify", node.mount, "--json")
    assert result.code == 3, result.out
    assert "bad" in result.out
    assert "good" not in result.out


def test_umount_waits_until_everything_is_committed(node: Node) -> None:
    for index in range(20):
        (node.mount / f"f{index}").write_bytes(bytes([index]) * 200_000)
    result = node.umount()
    assert result.code == 0, result.err
    assert not node.is_mounted()
    wait_until(lambda: not Path(f"/proc/{node.pid}").exists(), "the daemon to end")
    for index in range(20):
        assert (node.shared / f"f{index}").read_bytes() == bytes([index]) * 200_000


def test_umount_with_open_files_is_refused(node: Node) -> None:
    with (node.mount / "f").open("wb") as file:
        file.write(b"x")
        result = node.umount()
        assert result.code == 4
        assert node.is_alive()
    assert node.umount().code == 0


def test_umount_while_a_file_is_read_is_refused(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    node.settle()
    with (node.mount / "f").open("rb"):
        assert node.umount().code == 4
        assert node.is_alive()
    assert node.umount().code == 0


def test_umount_times_out_and_stays(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        (node.mount / "f").write_bytes(b"x")
        assert node.umount("--timeout", "1").code == 2
        assert node.is_alive()
    assert node.umount().code == 0


def test_forced_umount_leaves_the_backlog_to_the_next_mount(
    make_device: Callable[..., LoopDevice], make_node: Callable[..., Node]
) -> None:
    device = make_device("shared")
    node = make_node(shared=device.mountpoint).start()
    with frozen(device):
        for index in range(5):
            (node.mount / f"f{index}").write_bytes(b"%d" % index)
        assert node.umount("--force").code == 0
        assert not node.is_mounted()
    wait_until(lambda: not Path(f"/proc/{node.pid}").exists(), "the daemon to end")
    node.start()
    node.settle()
    compare(node.mount, device.mountpoint)
    assert len(os.listdir(node.mount)) == 5


def test_python_interface(node: Node) -> None:
    (node.mount / "f").write_bytes(b"x")
    code = (
        "import sys, tierfs\n"
        f"tierfs.flush({str(node.mount)!r}, wait=True)\n"
        f"print(tierfs.status({str(node.mount)!r}))\n"
        "assert 'pyfuse3' not in sys.modules\n"
    )
    done = subprocess.run(
        [node.command()[0], "-c", code], env={**os.environ, **node.python_path()}, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (node.shared / "f").read_bytes() == b"x"


@pytest.mark.parametrize("uid", [None, ALICE])
def test_config_check(node: Node, uid: int | None) -> None:
    good = node.root / "good.toml"
    good.write_text(f'local = "{node.local}"\nshared = "{node.shared}"\nwatermark = 0.5\n')
    assert node.cli("config", "check", good, uid=uid).code == 0
    bad = node.root / "bad.toml"
    bad.write_text(f'local = "{node.local}"\nshared = "{node.shared}"\nwatermrak = 0.5\n')
    result = node.cli("config", "check", bad, uid=uid)
    assert result.code != 0
    assert "watermrak" in result.err
    assert "watermark" in result.err


def test_a_caller_with_many_descriptors(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may leave its own to the commands that it runs: theirs are above 1023 then."""
    node = make_node()
    plain = node.command
    script = (
        'ulimit -S -n "$(ulimit -H -n)"; '
        'for fd in {3..1100}; do eval "exec $fd</dev/null"; done; exec "$@"'
    )
    monkeypatch.setattr(node, "command", lambda *words: ["bash", "-c", script, "-", *plain(*words)])
    node.start()
    (node.mount / "f").write_bytes(b"1")
    umount = node.cli("umount", node.mount)
    assert umount.code == 0, umount.err
    assert (node.shared / "f").read_bytes() == b"1"
