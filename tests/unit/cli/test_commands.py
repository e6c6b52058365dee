"""The command line without a mount: exit codes, errors, output. With one: tests/mount."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tierfs.cli import flush, mount, output, progress
from tierfs.errors import TierfsError

COMMAND = [sys.executable, "-m", "tierfs"]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explode"], "No such command"),
        (["mount"], "Missing argument"),
        (["mount", "/tmp/x"], "give --local DIR"),
        (["flush", "--timeout", "1"], "--timeout needs --wait"),
        (["flush", "--wait", "--timeout", "-1"], "--timeout"),
        (["flush", "/etc"], "/etc: not inside a tierfs mount"),
        (["umount", "/etc"], "/etc: not inside a tierfs mount"),
        (["commit", "/tmp/x", "--expect", "-1"], "--expect"),
        (["settled"], "Missing argument"),
        (["doctor"], "--profile"),
        (["ls", "/etc"], "/etc: not inside a tierfs mount"),
        (["verify", "--shared", "/nowhere"], "/nowhere"),
        (["config", "check", "/nowhere"], "/nowhere: No such file"),
    ],
)
def test_refusals_exit_1(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_refusal_is_one_line_and_json_when_asked() -> None:
    done = run("locate", "/etc/passwd", "--json")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout) == {
        "error": done.stderr.removeprefix("tierfs: ").strip(),
        "exit_code": 1,
    }


def test_wrong_usage_is_json_when_asked() -> None:
    for words in (["mount", "--json"], ["status", "--json", "--nosuch"]):
        done = run(*words)
        assert done.returncode == 1
        said = json.loads(done.stdout)
        assert said["exit_code"] == 1
        assert said["error"] in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "mount",
        "umount",
        "flush",
        "status",
        "ls",
        "locate",
        "accept",
        "discard",
        "verify",
        "checkpoints",
        "settled",
        "commit",
        "purge",
        "doctor",
    ],
)
def test_every_command_has_json_and_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


def test_start_needs_neither_fuse_nor_event_loop() -> None:
    code = "import sys, tierfs, tierfs.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"trio", "pyfuse3", "rich"} & set(loaded.stdout.split())


def test_reader_that_goes_away() -> None:
    with subprocess.Popen(
        [*COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "tierfs.toml"
    file.write_text('shared = "/nfs"\nlinger = "200ms"\n')
    shown = json.loads(run("config", "check", file, "--json").stdout)
    assert (shown["shared"], shown["local"], shown["linger"]) == ("/nfs", None, 0.2)
    assert shown["digest"] == "sha256"
    text = run("config", "check", file).stdout.splitlines()
    assert len(text) == len(shown)
    assert next(line for line in text if line.startswith("digest ")).endswith("(default)")


def test_config_check_shows_tables(tmp_path: Path) -> None:
    file = tmp_path / "tierfs.toml"
    file.write_text("[[groups]]\npattern = '^run-[0-9]+$'\nprofile = \"dcp\"\n")
    shown = json.loads(run("config", "check", file, "--json").stdout)
    assert shown["groups"] == [{"pattern": "^run-[0-9]+$", "profile": "dcp"}]
    assert "^run-[0-9]+$ is dcp" in run("config", "check", file).stdout


def test_mount_refused_by_a_setting_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tierfs.toml"
    file.write_text("watermrk = 0.5\n")
    local, shared = tmp_path / "local", tmp_path / "shared"
    done = run("mount", tmp_path / "m", "--local", local, "--shared", shared, "--config", file)
    assert done.returncode == 1
    assert "did you mean 'watermark'?" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tierfs.toml"]


class TestReadiness:
    """What `tierfs mount` makes of what the daemon says, with processes that say it."""

    def start(self, tmp_path: Path, script: str) -> None:
        command = [sys.executable, "-c", script]
        assert mount._start("/mnt/x", command, tmp_path / "run" / "mnt-x").wait() == 0

    def script(self, body: str) -> str:
        return f"import os, sys; ready = int(sys.argv[sys.argv.index('--ready-fd') + 1]); {body}"

    def test_ready(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.start(tmp_path, self.script("os.write(ready, b'ok\\n')"))
        assert capsys.readouterr().out.startswith("/mnt/x: mounted (pid ")
        assert (tmp_path / "run" / "mnt-x" / "daemon.log").exists()

    def test_what_is_for_all_and_what_is_not_whatever_the_umask(self, tmp_path: Path) -> None:
        made = tmp_path / "run" / "mnt-x"
        body = "os.close(os.open('made', os.O_CREAT)); os.write(ready, b'ok\\n')"
        before = os.umask(0o027)
        try:
            self.start(tmp_path, self.script(f"os.chdir({str(made)!r}); {body}"))
        finally:
            os.umask(before)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (made.parent, made)}
        assert set(modes.values()) == {0o755}
        assert stat.S_IMODE((made / "daemon.log").stat().st_mode) == 0o600
        assert stat.S_IMODE((made / "made").stat().st_mode) & 0o077 == 0

    def test_refused_leaves_nothing(self, tmp_path: Path) -> None:
        body = "os.write(ready, b'/nfs: squashes root\\n'); sys.exit(1)"
        with pytest.raises(TierfsError, match=r"^/nfs: squashes root$"):
            self.start(tmp_path, self.script(body))
        assert list((tmp_path / "run").iterdir()) == []

    def test_refused_spares_the_log_of_an_earlier_mount(self, tmp_path: Path) -> None:
        log = tmp_path / "run" / "mnt-x" / "daemon.log"
        log.parent.mkdir(parents=True)
        log.write_text("earlier\n")
        with pytest.raises(TierfsError, match="no"):
            self.start(tmp_path, self.script("os.write(ready, b'no\\n')"))
        assert log.read_text() == "earlier\n"

    def test_died_without_a_word(self, tmp_path: Path) -> None:
        with pytest.raises(TierfsError, match=r"ended with code 3: the last line \(log: /"):
            self.start(
                tmp_path,
                self.script(
                    "print('one', 'the last line', sep='\\n', file=sys.stderr); sys.exit(3)"
                ),
            )

    def test_large_old_log_makes_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mount, "_LOG_LIMIT", 10)
        log = tmp_path / "run" / "mnt-x" / "daemon.log"
        log.parent.mkdir(parents=True)
        log.write_text("old and large\n")
        self.start(tmp_path, self.script("os.write(ready, b'ok\\n')"))
        assert log.with_suffix(".log.1").read_text() == "old and large\n"
        assert log.read_text() == ""


EVENT: dict[str, Any] = {
    "event": "progress",
    "total_files": 4,
    "done_files": 1,
    "total_bytes": 4 << 30,
    "done_bytes": 1 << 30,
    "rate_bytes": 512 << 20,
    "seconds_left": 6.0,
    "sending": ["/m/a.bin", "/m/b\n.bin", "/m/c.bin"],
}


def test_progress_line() -> None:
    assert progress.describe(EVENT) == (
        "1 GiB of 4 GiB · 512 MiB/s · 6.0 s left · a.bin, b\\x0a.bin +1"
    )
    waiting = {**EVENT, "rate_bytes": 0, "seconds_left": None, "sending": []}
    assert progress.describe(waiting) == "1 GiB of 4 GiB"


def test_progress_on_a_terminal_is_a_bar_and_elsewhere_json() -> None:
    script = (
        "from tierfs.cli import progress; from tests.unit.cli.test_commands import EVENT\n"
        "with progress.shown('flush') as show: show(EVENT)\n"
    )
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    plain = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert json.loads(plain.stdout) == EVENT
    controller, terminal = pty.openpty()
    with open(controller, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, "-c", script], stdout=terminal, check=True, env=environment)
        os.close(terminal)
        drawn = screen.read(65536).decode()
    assert "1 GiB of 4 GiB" in drawn
    assert "a.bin" in drawn
    assert "25%" in drawn


def test_names_cannot_control_the_terminal() -> None:
    assert output.shown("a\x1b[2Jb\udcff\tä") == "a\\x1b[2Jb\\xff\\x09ä"


def result(**changed: Any) -> dict[str, Any]:
    empty = {
        "remaining": [],
        "stuck": [],
        "open": [],
        "held": [],
        "unsealed": [],
        "hidden": 0,
        "timed_out": False,
    }
    return {"committed_files": 2, "committed_bytes": 2048, **empty, **changed}


def test_flush_summary(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "as_lines", lambda: False)
    stuck = [{"path": f"/m/{n}", "reason": "Permission denied"} for n in range(25)]
    flush.report(result(stuck=stuck, hidden=3, timed_out=True), 2, waited=True)
    out = capsys.readouterr().out
    assert "committed 2 files, 2 KiB" in out
    assert "  /m/0: Permission denied" in out
    assert "and 5 more (--json lists all)" in out
    assert "3 that you may not see" in out
    assert "timed out; sending goes on" in out


def test_flush_json_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    stuck = [{"path": f"/m/{n}", "reason": "x"} for n in range(25)]
    flush.report(result(stuck=stuck), 3, waited=True)
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["exit_code"], len(line["stuck"])) == ("result", 3, 25)
