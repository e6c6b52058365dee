"""One tierfs node: two tiers, a mount point, a daemon started and stopped as a user would."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.waiting import wait_until

RUN = Path("/run/tierfs")
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
        self.logs: list[str] = []
        self.local.mkdir(parents=True, exist_ok=True)
        self.mount.mkdir(parents=True, exist_ok=True)
        self._log = self.root / "daemon.log"
        self._foreground: subprocess.Popen[bytes] | None = None

    def command(self, *words: str | Path) -> list[str]:
        """The argument vector of a `tierfs` command of the interpreter under test."""
        return [sys.executable, "-m", "tierfs", *map(str, words)]

    def cli(
        self, *words: str | Path, timeout: float = 120.0, uid: int | None = None
    ) -> CommandResult:
        """Run a `tierfs` command to its end, as user `uid` if given."""
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **self.environment},
            cwd="/",
            **({} if uid is None else {"user": uid, "group": uid, "extra_groups": []}),
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def mount_words(self, *more: str) -> list[str | Path]:
        """The words of `tierfs mount` for this node."""
        words: list[str | Path] = ["mount", self.mount, "--local", self.local]
        words += ["--shared", self.shared, "--node", self.name]
        if self.settings:
            config = self.root / "tierfs.toml"
            config.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in self.settings.items()))
            words += ["--config", config]
        return [*words, *more]

    def start(self, *more: str, timeout: float = 60.0) -> Node:
        """Mount, in the background as users do; fails with what the command said."""
        result = self.cli(*self.mount_words(*more), timeout=timeout)
        assert result.code == 0, f"mount failed ({result.code}): {result.err or result.out}"
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
        """`tierfs status --json` of this mount."""
        result = self.cli("status", self.mount, "--json")
        assert result.code == 0, result.err
        return dict(result.json)

    @property
    def pid(self) -> int:
        """Process id of the worker that serves the mount."""
        return int(self.session()["pid"])

    def session(self) -> dict[str, Any]:
        """The session file of the mount."""
        for file in RUN.glob("*/session.json"):
            session = json.loads(file.read_text())
            if session["mountpoint"] == str(self.mount):
                return dict(session, directory=str(file.parent))
        raise AssertionError(f"no session file in {RUN} for {self.mount}")

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
        """`kill -9` of the daemon; the dead mount stays, as it does in life."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _alive(pid), f"daemon {pid} to die")
        self._collect_log()

    def terminate(self, timeout: float = 30.0) -> None:
        """SIGTERM; the daemon must detach and end."""
        pid = self.pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not _alive(pid), f"daemon {pid} to end", timeout=timeout)
        self._collect_log()

    def umount(self, *more: str) -> CommandResult:
        """`tierfs umount` of this mount."""
        result = self.cli("umount", self.mount, *more)
        if result.code == 0:
            self._collect_log()
        return result

    def restart(self) -> None:
        """Detach at once with the backlog, and mount again."""
        result = self.umount("--force")
        assert result.code == 0, result.err
        self.start()

    def close(self) -> None:
        """End the daemon whatever state it is in, and detach the mount."""
        if self.is_mounted():
            self._end_daemon()
        while self.is_mounted():
            subprocess.run(["umount", "-l", str(self.mount)], check=False, capture_output=True)
        self._collect_log()

    def _end_daemon(self) -> None:
        try:
            pid = self.pid
        except AssertionError:
            return
        if not _alive(pid):
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _alive(pid):
            self.logs.append(f"ERROR daemon {pid} did not end within 15 s of SIGTERM")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not _alive(pid), f"daemon {pid} to die")

    def log_text(self) -> str:
        """Everything that the daemons of this node have logged so far."""
        self._collect_log()
        return "\n".join(self.logs)

    def _collect_log(self) -> None:
        for file in self._log_files():
            text = file.read_text(errors="replace")
            if text and text not in self.logs:
                self.logs = [log for log in self.logs if not text.startswith(log)] + [text]

    def _log_files(self) -> Iterator[Path]:
        for session in RUN.glob("*"):
            if session.name.endswith(self.mount.name) and self._is_ours(session):
                yield from session.glob("*.log")

    def _is_ours(self, directory: Path) -> bool:
        unescaped = re.sub(
            r"\\x([0-9a-f]{2})",
            lambda found: chr(int(found[1], 16)),
            directory.name.replace("-", "/"),
        )
        return unescaped.strip("/") == str(self.mount).strip("/")

    def unexpected(self) -> list[str]:
        """Lines of the log that should make the test fail."""
        allowed = [re.compile(pattern) for pattern in self.expected]
        lines = self.log_text().splitlines()
        return [
            line
            for line in lines
            if _SUSPICIOUS.search(line) and not any(rule.search(line) for rule in allowed)
        ]


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
