"""`bwlimit`, and settings that change while the mount runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tests.harness import Node, wait_until

MIB = 1 << 20


def test_write_back_keeps_to_its_rate_and_small_files_do_not_wait(
    make_node: Callable[..., Node],
) -> None:
    node = make_node().start("--bwlimit", "256K")
    assert node.status()["bwlimit_bytes"] == 256 << 10
    (node.mount / "run").mkdir()
    for number in range(3):
        (node.mount / "run" / f"large{number}").write_bytes(os.urandom(4 * MIB + 1))
    wait_until(lambda: node.status()["write_rate_bytes"] > 0, "the large files to be on their way")
    (node.mount / "small").write_bytes(b"small")
    wait_until(lambda: (node.shared / "small").exists(), "the small file", timeout=30)
    # written and read back these are 24 MiB: a minute and a half
    assert not any((node.shared / "run" / f"large{number}").exists() for number in range(3))
    assert 0 < node.status()["write_rate_bytes"] < 2 * (256 << 10)
    assert node.cli("set", node.mount, "bwlimit=off").code == 0
    node.settle()


def test_settings_change_while_the_mount_runs(make_node: Callable[..., Node]) -> None:
    node = make_node()
    (node.shared / "there").write_bytes(os.urandom(8 * MIB))
    node.start("--bwlimit", "64K")
    (node.mount / "held").write_bytes(os.urandom(32 * MIB))
    begun = time.monotonic()
    assert len((node.mount / "there").read_bytes()) == 8 * MIB
    assert time.monotonic() - begun < 60  # at that rate it would be minutes
    refused = node.cli("set", node.mount, "keep_last=2", "bwlimt=1M")
    assert refused.code == 1
    assert "did you mean 'bwlimit'" in refused.err
    refused = node.cli("set", node.mount, "bwlimit=off", uid=1000)
    assert "only root may change settings" in refused.err
    assert node.cli("set", node.mount, "--json", uid=1000).json["settings"]["keep_last"] == 0
    assert node.cli("set", node.mount, "keep_last=3", "log_level=debug").code == 0
    if "supervisor" not in node.settings and os.environ.get("TIERFS_TEST_SUPERVISOR") != "off":
        node.expected.append("killed by SIGKILL")
        node.kill_worker()
    shown = node.cli("set", node.mount, "--json").json["settings"]
    assert (shown["keep_last"], shown["bwlimit"], shown["log_level"]) == (3, 64 << 10, "debug")
    assert node.cli("set", node.mount, "bwlimit=off").code == 0
    node.settle()
    node.restart()
    assert node.cli("set", node.mount, "--json").json["settings"]["keep_last"] == 0
