"""Jobs that train for days, in seconds: they die, their node dies, and another one takes over."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from tests.harness import jobs
from tests.harness.devices import LoopDevice, frozen
from tests.harness.looking import Looking
from tests.harness.node import Node
from tests.harness.waiting import wait_until


class Watch(Looking):
    """Looks at the frozen shared tier again and again, as loaders of other nodes would.

    Attributes:
        looks: how often it looked.
        bad: what only looked whole, or what was whole and is gone.
        steps: of each kind the last step that could be resumed from.
    """

    pause = 0.03

    def __init__(self, device: LoopDevice, kinds: Iterable[jobs.Kind]) -> None:
        super().__init__()
        self._device = device
        self._kinds = tuple(kinds)
        self.looks = 0
        self.bad: list[str] = []
        self.steps: dict[str, int] = {}

    def look(self) -> None:
        """One look at all runs, as they are at one instant."""
        with frozen(self._device):
            found = [jobs.look(kind, self._device.mountpoint / kind.name) for kind in self._kinds]
        self.looks += 1
        for kind, each in zip(self._kinds, found, strict=True):
            now = f"{datetime.datetime.now(datetime.UTC):%H:%M:%S.%f}"
            self.bad += [f"{now} {one}: {found}" for one in each.bad]
            before = self.steps.get(kind.name)
            # what was removed first is not there for the next job, which may begin from the start
            least = 0 if kind.first else before
            if before is not None and (each.chosen is None or each.chosen < (least or 0)):
                self.bad.append(f"{kind.name}: after {before} only {each.chosen}: {each.whole}")
            if each.chosen is not None:
                self.steps[kind.name] = each.chosen


@dataclass
class Trial:
    """A job that runs."""

    process: subprocess.Popen[str]
    words: list[str]
    excused: bool = False


@dataclass
class Campaign:
    """Jobs of all `kinds` at once on a node that is killed and replaced at random.

    Attributes:
        make: a node of that name on the shared tier `device`, with an empty local tier.
        wrong: what should not have happened, in words.
    """

    make: Callable[[str], Node]
    device: LoopDevice
    kinds: tuple[jobs.Kind, ...]
    seed: int
    wrong: list[str] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._nodes = 0
        self._attempts = 0
        self._trials: dict[str, Trial] = {}
        self._node = self._next_node()

    def _next_node(self) -> Node:
        self._nodes += 1
        return self.make(f"n{self._nodes}").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for trial in self._trials.values():
            trial.process.kill()
            trial.process.communicate()

    def run(self, seconds: float, is_over: Callable[[], object]) -> None:
        """Let them train and die for so long, or until `is_over`."""
        end = time.monotonic() + seconds
        strike = time.monotonic() + self._random.uniform(0.2, 1.5)
        while time.monotonic() < end and not self.wrong and not is_over():
            self._keep_going()
            if time.monotonic() > strike:
                self._strike()
                strike = time.monotonic() + self._random.uniform(0.2, 1.5)
            time.sleep(0.01)

    def finish(self) -> Node:
        """Let all jobs come to their end, and one more of each; the node, flushed."""
        for name in list(self._trials):
            self._end(name)
        for kind in self.kinds:
            self._start(kind, saves=3, die_at=0)
        for name in list(self._trials):
            self._end(name)
        result = self._node.flush(timeout=60)
        if result.code not in (0, 3, 6):
            self.wrong.append(f"flush: {result.code}: {result.json}")
        # what dead jobs left torn, and no job has come to since
        left = [each for each in self._node.status()["stuck"] if each["state"] != "torn"]
        self.wrong += [f"flush: {each}" for each in left]
        return self._node

    def take_over(self) -> Node:
        """The node is gone for good; an empty one has its place."""
        self._node.kill()
        self._await_jobs()
        self._node.close()
        left = {
            kind.name: jobs.look(kind, self.device.mountpoint / kind.name) for kind in self.kinds
        }
        self._node = self._next_node()
        for kind in self.kinds:
            wanted = left[kind.name].chosen
            here = self._node.mount / kind.name
            wait_until(
                lambda kind=kind, here=here, wanted=wanted: jobs.look(kind, here).chosen == wanted,
                f"{kind.name}: step {wanted} on the new node", timeout=5,
            )  # fmt: skip
        return self._node

    # -- jobs ----------------------------------------------------------------------------------

    def _keep_going(self) -> None:
        for kind in self.kinds:
            trial = self._trials.get(kind.name)
            if trial is None or trial.process.poll() is not None:
                self._end(kind.name)
                die_at = self._random.choice((0, self._random.randrange(1, 120)))
                self._start(kind, saves=self._random.randrange(1, 5), die_at=die_at)

    def _start(self, kind: jobs.Kind, *, saves: int, die_at: int) -> None:
        self._attempts += 1
        run = self._node.mount / kind.name
        numbers = (self._attempts, saves, die_at, self._random.randrange(1 << 30))
        words = [kind.name, str(run), *map(str, numbers)]
        process = subprocess.Popen(
            [sys.executable, jobs.__file__, *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._trials[kind.name] = Trial(process, words)

    def _end(self, name: str) -> None:
        trial = self._trials.pop(name, None)
        if trial is None:
            return
        printed, _ = trial.process.communicate(timeout=120)
        code = trial.process.returncode
        allowed = {0, -signal.SIGKILL, *((jobs.LOST,) if trial.excused else ())}
        if code not in allowed:
            self.wrong.append(f"job {' '.join(trial.words)}: {code}: {printed}")

    def _await_jobs(self) -> None:
        for name, trial in list(self._trials.items()):
            trial.excused = True
            self._end(name)

    # -- deaths --------------------------------------------------------------------------------

    def _strike(self) -> None:
        what = self._random.choices(("worker", "daemon", "node"), weights=(6, 3, 2))[0]
        self.kills[what] = self.kills.get(what, 0) + 1
        match what:
            case "worker":
                with contextlib.suppress(ProcessLookupError):  # the last one is not replaced yet
                    os.kill(self._node.supervisor()["worker_pid"], signal.SIGKILL)
            case "daemon":
                self._node.kill()
                self._await_jobs()
                self._node.start()
            case _:
                self.take_over()
