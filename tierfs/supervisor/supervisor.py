"""Keeps one mount served: starts a worker, watches it, starts the next one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tierfs.control.supervision import FAILED, RUNNING, STARTING, State, remove_state, write_state
from tierfs.supervisor import refuser
from tierfs.supervisor.apart import Closing, Starter
from tierfs.supervisor.link import LEFT
from tierfs.supervisor.standby import Standby
from tierfs.supervisor.worker import Worker, wait_readable

log = logging.getLogger(__name__)

DEVICE = "device"
"""The name under which a worker hands over its /dev/fuse."""

SILENCE_SECONDS = 10.0
"""A worker says something twice a second; after this time without a word it is replaced. What it
waits for a processor does not count."""

START_SECONDS = 120.0
"""How long a worker that is to become ready may wait: its tiers may be slow. What it computes does
not count: it may have a million names to read."""

LONGEST_START_SECONDS = 3600.0
"""After that it is in a loop."""

END_SECONDS = 20.0
"""How long it has to become ready when the end was asked for meanwhile."""

LEAVE_SECONDS = 5.0
"""How long a worker that is to make room may finish what it does; then it is killed, which does
no harm."""

PREPARE_SECONDS = 1.0
"""How long a worker serves before the next one is prepared: a mount has better things to do."""

SHORT_LIFE_SECONDS = 1.0
GIVE_UP_AFTER = 6
"""So many workers in a row that were ready for less than SHORT_LIFE_SECONDS: the next would be
no better."""

KILLED_SECONDS = 60.0
"""Workers that somebody kills before they are ready did not fail by themselves: they are given up
only when none was ready for so long."""

FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
"""Between such workers, doubled each time. After one that had worked the next comes at once."""


class Supervisor:
    """One mount.

    `command` starts a worker; `directory` is the runtime directory of the mount; `say` tells the
    one who mounts, once, "ok" or why not.
    """

    def __init__(
        self, mountpoint: str, command: list[str], directory: Path, say: Callable[[str], None]
    ) -> None:
        self._mountpoint = mountpoint
        self._directory = directory
        self._say = say
        self._kept: dict[str, int] = {}
        self._generation = 0
        self._short_lives = 0
        self._served_at = 0.0
        self._ever_ready = False
        self._error = ""
        self._asked: set[int] = set()
        self._reloading = False
        self._failed_reloads = 0
        self._wakeup, *wakeup = self._catch_signals()
        self._starter = Starter([self._wakeup, *wakeup])  # before there is anything of a tier
        self._closing = Closing()
        self._next = Standby(command, self._starter)

    def _catch_signals(self) -> tuple[int, int]:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._asked.add(number))
        return reader, writer

    @property
    def _end_asked(self) -> bool:
        return bool(self._asked & {signal.SIGTERM, signal.SIGINT})

    # -- the life of the mount -------------------------------------------------------------------

    def run(self) -> int:
        """Until the mount is gone; the exit code."""
        try:
            return self._serve()
        finally:
            self._next.discard()
            remove_state(self._directory, os.getpid())
            if DEVICE in self._kept:
                self._detach()

    def _serve(self) -> int:
        while True:
            worker = self._start()
            code = self._watch(worker)
            if code == 0:
                self._drop(DEVICE)  # it has unmounted
                return 0
            if not self._ever_ready:
                self._say(worker.refused or f"the daemon ended with code {code}; see the log")
                return 1
            if self._may_end() or not self._go_on(worker, code):
                return 0

    def _detach(self) -> None:
        """No worker could unmount: applications get ENOENT, not a dead mount."""
        command = ["umount", "--lazy", self._mountpoint]
        done = self._starter.call(
            lambda: subprocess.run(command, capture_output=True, text=True, check=False)
        )
        if done.returncode != 0:
            log.error("unmount: %s", done.stderr.strip())

    def _start(self) -> Worker:
        self._generation += 1
        self._reloading = False
        worker = self._next.take()
        self._write_state(STARTING, worker.pid)
        worker.hand_over(self._kept, self._generation - 1)
        return worker

    def _watch(self, worker: Worker) -> int | None:
        """Listens to a worker until it has ended; its exit code, None if it is killed and hangs."""
        leave_by = 0.0
        while True:
            wait_readable([worker.end, worker.pidfd, self._wakeup, *self._next.fds], 1.0)
            self._listen(worker)
            self._drain_wakeup()
            if worker.exit_code() is not None or worker.silenced:
                break
            if self._end_asked and worker.ready_at:
                # one that is not ready yet would die of it, and leave the mount
                self._asked.clear()
                worker.signal(signal.SIGTERM)
            if self._may_leave(worker):
                worker.signal(signal.SIGHUP)
                leave_by = time.monotonic() + LEAVE_SECONDS
            self._end_if_silent(worker, leave_by)
        self._listen(worker)
        code = worker.exit_code()
        if code is not None:
            worker.close()
        return code

    def _may_leave(self, worker: Worker) -> bool:
        """Prepares the next worker; whether `worker` is to make room for it now.

        For a reload that is one of the version installed now, and if it does not even load, the
        mount stays with the one that it has.
        """
        self._next.look()
        if signal.SIGHUP in self._asked and worker.ready_at:
            self._asked.discard(signal.SIGHUP)
            self._reloading = True
            self._next.renew()
        if self._reloading and not self._next.waits:
            self._reloading = False
            self._failed_reloads += 1
            self._write_state(RUNNING, worker.pid)
        if self._reloading and self._next.prepared:
            self._reloading = False
            return True
        served = worker.ready_at and time.monotonic() - worker.ready_at > PREPARE_SECONDS
        if served or self._short_lives:  # one that is killed while it loads is not the last
            self._next.prepare()
        return False

    def _listen(self, worker: Worker) -> None:
        for message, fd in worker.messages():
            if fd is not None:
                self._drop(message["keep"])
                self._kept[message["keep"]] = fd
            elif "drop" in message:
                self._drop(message["drop"])
            elif "refused" in message:
                worker.refused = str(message["refused"])
            elif "ready" in message:
                worker.ready_at = time.monotonic()
                self._ever_ready = True
                self._write_state(RUNNING, worker.pid)
                self._say("ok")

    def _end_if_silent(self, worker: Worker, leave_by: float) -> None:
        reason = self._standstill(worker)
        if reason:
            self._listen(worker)  # it may be the supervisor that was kept from its work
            reason = self._standstill(worker)
        if leave_by and time.monotonic() > leave_by:
            reason = f"it did not make room within {LEAVE_SECONDS:.0f} s"
        if not reason:
            return
        log.error("worker %d is replaced: %s", worker.pid, reason)
        worker.refused = worker.refused or reason
        worker.silenced = True
        worker.kill()

    def _standstill(self, worker: Worker) -> str:
        """Why `worker` will not do any more; "" while it may."""
        if worker.ready_at:
            if worker.silent.seconds() > SILENCE_SECONDS:
                return f"it has not answered for {SILENCE_SECONDS:.0f} s"
            return ""
        if worker.stuck.seconds() > START_SECONDS:
            return f"it was not ready after {START_SECONDS:.0f} s of waiting"
        limit = END_SECONDS if self._end_asked else LONGEST_START_SECONDS
        if time.monotonic() - worker.started_at > limit:
            return f"it was not ready after {limit:.0f} s"
        return ""

    # -- between two workers ---------------------------------------------------------------------

    def _may_end(self) -> bool:
        """Whether there is nothing to go on with, or somebody asked for the end."""
        return DEVICE not in self._kept or self._end_asked

    def _go_on(self, worker: Worker, code: int | None) -> bool:
        """Waits until the next worker may start; False when the mount is gone."""
        if code == LEFT:
            log.info("worker %d made room for the next one", worker.pid)
            return True
        lived = time.monotonic() - worker.ready_at if worker.ready_at else 0.0
        self._error = worker.refused or _ending(code)
        if code is None and not self._has_ended(worker):
            return False
        log.warning("worker %d ended (%s); the next one takes over", worker.pid, self._error)
        killed = code == -signal.SIGKILL and not worker.silenced  # it did not fail by itself
        if worker.ready_at:
            self._served_at = time.monotonic()
        if lived >= SHORT_LIFE_SECONDS or (killed and worker.ready_at):
            self._short_lives = 0
            return True
        self._short_lives += 1
        if killed and time.monotonic() - self._served_at < KILLED_SECONDS:
            wait_readable([self._wakeup], FIRST_PAUSE)
            return True
        if self._short_lives >= GIVE_UP_AFTER:
            return self._refuse_until_asked()
        wait_readable([self._wakeup], min(LAST_PAUSE, FIRST_PAUSE * 2 ** (self._short_lives - 1)))
        return True

    def _refuse_until_asked(self) -> bool:
        """The mount answers EIO until a reload is asked for; False when it is gone by then."""
        log.critical(
            "%s: %d workers in a row ended at once (%s). The mount answers EIO now; what was "
            "closed is in the local tier. Mend it, then: tierfs reload",
            self._directory.name, self._short_lives, self._error,
        )  # fmt: skip
        self._write_state(FAILED, 0)
        device = self._kept[DEVICE]
        refuser.ask_again(device)
        while refuser.refuse_all(device):
            wait_readable([device, self._wakeup], 60.0)
            self._drain_wakeup()
            if self._end_asked:
                return False
            if signal.SIGHUP in self._asked:
                self._asked.clear()
                self._short_lives = 0
                self._served_at = time.monotonic()
                self._next.discard()
                return True
        return False

    def _has_ended(self, worker: Worker) -> bool:
        """Waits for a killed worker that hangs in the kernel; False when the end was asked for.

        What it was about to do on a tier will be done some time: the next worker must not be
        overtaken by that, and so does not begin before.
        """
        self._error = f"worker {worker.pid} was killed and hangs in the kernel"
        self._write_state(STARTING, worker.pid)
        log.error(
            "%s: a tier does not answer. The next worker starts when that has ended",
            self._error,
        )  # fmt: skip
        while worker.exit_code() is None:
            if self._end_asked:
                return False
            wait_readable([worker.pidfd, self._wakeup], 60.0)
            self._drain_wakeup()
        worker.close()
        return True

    def _drop(self, name: str) -> None:
        fd = self._kept.pop(name, None)
        if fd is None:
            return
        if name == DEVICE:
            os.close(fd)  # which is the end of the mount
        else:
            self._closing.close(fd)

    def _drain_wakeup(self) -> None:
        try:
            os.read(self._wakeup, 4096)
        except BlockingIOError:
            return

    def _write_state(self, state: str, worker_pid: int) -> None:
        if not self._ever_ready:
            return  # another one may serve here, and ours be refused for that
        write_state(
            self._directory,
            State(
                pid=os.getpid(), worker_pid=worker_pid, state=state, generation=self._generation,
                restarts=self._generation - 1, error=self._error,
                failed_reloads=self._failed_reloads,
            ),
        )  # fmt: skip


def _ending(code: int | None) -> str:
    if code is None:
        return "it hangs in the kernel"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
