"""One tierfs node: two tiers, a mount point, a daemon started and stopped as a user would."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tests.harness.waiting import wait_until
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import session_directory

CHECKOUT = Path(__file__).parents[2]

_SUSPICIOUS = re.compile(r"Traceback|ExceptionGroup|\b(?:WARNING|ERROR|CRITICAL)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a `tierfs` command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last JSON value printed: the only one, or the closing line of a stream."""
        try:
            return json.loads(self.out)
        except ValueError:
            return json.loads(self.out.strip().splitlines()[-1])

    @property
    def lines(self) -> list[Any]:
        """Every JSON line printed."""
        return [json.loads(line) for line in self.out.splitlines() if line.strip()]


class Node:
    """A mount of `shared` with the local tier `local`, at `mount`.

    Attributes:
        environment: added to what the daemon gets, for example TIERFS_TEST_BOOT_ID.
        expected: patterns of log lines of level warning and above that the test provokes; any
            other fails it.
    """

    def __init__(
        self, root: Path, shared: Path, name: str = "a", local: Path | None = None
    ) -> None:
        self.root = root / f"node-{name}"
        self.name = name
        self.shared = shared
        self.local = local or self.root / "local"
        self.mount = self.root / "mnt"
        self.environment: dict[str, str] = {}
        self.settings: dict[str, object] = {}
        self.expected: list[str] = []
        self.pid = 0
        self._runtime: Path | None = None
        self._logs: list[BinaryIO] = []
        self._notes: list[str] = []
        self.local.mkdir(parents=True, exist_ok=True)
        self.mount.mkdir(parents=True, exist_ok=True)

    def command(self, *words: str | Path) -> list[str]:
        """The argument vector of a `tierfs` command of the interpreter under test."""
        return [sys.executable, "-m", "tierfs", *map(str, words)]

    def cli(
        self, *words: str | Path, timeout: float = 120.0, uid: int | None = None
    ) -> CommandResult:
        """Run a `tierfs` command to its end, as user `uid` if given."""
        done = subprocess.run(
            [*([] if uid is None else _becoming(uid)), *self.command(*words)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.python_path(), **self.environment},
            cwd="/",
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def python_path(self) -> dict[str, str]:
        """The environment in which `tierfs` is that of this checkout."""
        return {"PYTHONPATH": str(CHECKOUT)}

    def mount_words(self, *more: str) -> list[str | Path]:
        """The words of `tierfs mount` for this node."""
        words: list[str | Path] = ["mount", self.mount, "--local", self.local]
        words += ["--shared", self.shared, "--node", self.name]
        if self.settings:
            config = self.root / "tierfs.toml"
            config.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in self.settings.items()))
            words += ["--config", config]
        if os.environ.get("TIERFS_TEST_PASSTHROUGH") == "off":
            words.append("--no-passthrough")
        if os.environ.get("TIERFS_TEST_SUPERVISOR") == "off" and "supervisor" not in self.settings:
            words.append("--no-supervisor")
        return [*words, *more]

    def start(self, *more: str, timeout: float = 60.0) -> Node:
        """Mount, in the background as users do; fails with what the command said."""
        result = self.cli(*self.mount_words("--json", *more), timeout=timeout)
        assert result.code == 0, f"mount failed ({result.code}): {result.err or result.out}"
        self.pid = int(result.json["pid"])
        self._open_log(result.json["log"])
        return self

    def flush(
        self, *paths: str | Path, timeout: float = 60.0, uid: int | None = None
    ) -> CommandResult:
        """`tierfs flush --wait --json`; whole mount if no path is given."""
        where = paths or (self.mount,)
        words = ["flush", "--wait", "--json", "--timeout", f"{timeout:g}", *where]
        return self.cli(*words, timeout=timeout + 30, uid=uid)

    def settle(self, *paths: str | Path, timeout: float = 60.0) -> None:
        """Flush and require that everything is committed."""
        result = self.flush(*paths, timeout=timeout)
        assert result.code == 0, f"flush: {result.code}\n{result.out}{result.err}"

    def status(self) -> dict[str, Any]:
        """What `tierfs status --json` prints of this mount."""
        return call(str(self.mount), requests.Status(), silence=120)[0]

    def is_mounted(self) -> bool:
        """Whether anything is mounted at the mount point, dead or alive."""
        mounts = Path("/proc/self/mountinfo").read_text()
        return f" {self.mount} " in mounts

    def is_alive(self) -> bool:
        """Whether the mount answers."""
        try:
            os.statvfs(self.mount)
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                return False
            raise
        return self.is_mounted()

    def kill(self) -> None:
        """`kill -9` of the daemon, the supervisor first if there is one: all that serves is gone.

        The dead mount stays, as it does in life.
        """
        pids = [self.pid, *_children(self.pid)]
        os.kill(self.pid, signal.SIGKILL)
        for pid in pids:
            wait_until(lambda pid=pid: not _alive(pid), f"process {pid} to die", poll=0.002)

    def supervisor(self) -> dict[str, Any]:
        """What the supervisor tells of itself, see `control.supervision.State`."""
        path = session_directory(str(self.mount)) / "supervisor.json"
        return dict(json.loads(path.read_text()))

    def is_served(self, after: int = 0) -> bool:
        """Whether a worker serves that came after the one of generation `after`."""
        state = self.supervisor()
        return state["state"] == "running" and state["generation"] > after

    def kill_worker(self) -> None:
        """`kill -9` of the worker; returns when the next one serves."""
        before = self.supervisor()
        os.kill(before["worker_pid"], signal.SIGKILL)
        wait_until(lambda: self.is_served(before["generation"]), "the next worker", timeout=60)

    def terminate(self, timeout: float = 30.0) -> None:
        """SIGTERM; the daemon must detach and end."""
        os.kill(self.pid, signal.SIGTERM)
        wait_until(lambda: not _alive(self.pid), f"daemon {self.pid} to end", timeout=timeout)

    def umount(self, *more: str) -> CommandResult:
        """`tierfs umount` of this mount."""
        return self.cli("umount", self.mount, "--json", *more)

    def restart(self) -> None:
        """Detach at once with the backlog, and mount again."""
        result = self.umount("--force")
        assert result.code == 0, result.err
        self.start()

    def close(self) -> None:
        """End the daemon whatever state it is in, and detach the mount."""
        self._end_daemon()
        while self.is_mounted():
            subprocess.run(["umount", "-l", str(self.mount)], check=False, capture_output=True)
        self._notes.append(self._read_logs())
        while self._logs:
            self._logs.pop().close()
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)

    def _end_daemon(self) -> None:
        if not self.pid or not _alive(self.pid):
            return
        os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while _alive(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _alive(self.pid):
            self._notes.append(f"ERROR daemon {self.pid} did not end within 15 s of SIGTERM")
            os.kill(self.pid, signal.SIGKILL)
            wait_until(lambda: not _alive(self.pid), f"daemon {self.pid} to die")

    def _open_log(self, path: str) -> None:
        """Hold the log open: what removes the runtime directory removes it too."""
        self._runtime = Path(path).parent
        known = {os.fstat(log.fileno()).st_ino for log in self._logs}
        if os.stat(path).st_ino not in known:
            self._logs.append(open(path, "rb"))  # noqa: SIM115

    def log_text(self) -> str:
        """Everything that the daemons of this node have logged so far."""
        return "\n".join([*self._notes, self._read_logs()])

    def _read_logs(self) -> str:
        parts = []
        for log in self._logs:
            log.seek(0)
            parts.append(log.read().decode(errors="replace"))
        return "\n".join(parts)

    def unexpected(self) -> list[str]:
        """Lines of the log that should make the test fail."""
        allowed = [re.compile(pattern) for pattern in self.expected]
        lines = self.log_text().splitlines()
        return [
            line
            for line in lines
            if _SUSPICIOUS.search(line) and not any(rule.search(line) for rule in allowed)
        ]


def _toml(value: object) -> str:
    """`value` in a configuration file; tables in a list are written inline."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _becoming(uid: int) -> list[str]:
    """The words of setpriv(1) that run a command as `uid`.

    An interpreter under /root can be reached by nobody else: CAP_DAC_READ_SEARCH opens the way
    to it. The daemon goes by the peer's uid, so the answers are those of `uid` all the same.
    """
    cap = "+dac_read_search"
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return [*words, f"--inh-caps={cap}", f"--ambient-caps={cap}"]


def _children(pid: int) -> list[int]:
    # of each thread: workers are started in one of their own
    found = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for words in found for word in words]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@contextmanager
def running(node: Node) -> Iterator[Node]:
    """The node, mounted; closed at the end and its log checked."""
    try:
        yield node.start()
    finally:
        node.close()
    unexpected = node.unexpected()
    assert not unexpected, f"log of node {node.name}:\n" + "\n".join(unexpected)
