"""Any calls on names of files that are open, workers that die at any point: a model sees the same.

What was committed once is on the shared tier under the names that its file has, in some version
that was closed, until a newer one is: nobody removed it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.behaviour.calls import OsCalls
from tests.behaviour.test_restarts import (
    FRESH,
    KNOWN,
    STEPS,
    Machine,
    Model,
    Thing,
    run_machine,
    seen,
)
from tests.behaviour.workers import Workers
from tests.harness import LoopDevice, wait_until
from tierfs.model import ROOT, Kind


class Logged(Workers):
    """Remembers what it was asked for."""

    def __init__(self, root: Path, shared: Path) -> None:
        super().__init__(root, shared)
        self.steps: list[str] = []

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in STEPS | {"open", "pwrite", "close", "kill"}:
            return found

        def logged(*arguments: object, **more: object) -> object:
            result = found(*arguments, **more)
            self.steps.append(f"fs.{name}{arguments}{more or ''} == {result}")
            return result

        return logged


@dataclass(eq=False)
class Opened:
    """A descriptor for writing."""

    fd: int
    thing: Thing


class OpenMachine(Machine):
    """With descriptors that stay open over renames, links, removals, commits and workers."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        self.model = Model()
        local, shared = (Path(tempfile.mkdtemp(dir=device.mountpoint)) for device in self.devices)
        self.folders = local, shared
        self.direct = Logged(local, shared)  # type: ignore[assignment]
        self.direct.start(held=True)
        self.opened: list[Opened] = []
        self.closed: dict[Thing, set[bytes]] = {}
        self.committed: set[Thing] = set()

    # -- what the model has to know ----------------------------------------------------------------

    def is_open(self, thing: Thing) -> bool:
        return any(each.thing is thing for each in self.opened)

    def note_closed(self, path: str) -> None:
        """What a call that opens and closes has left at `path`."""
        if self.model.is_file(path):
            thing = self.model.at[path]
            self.closed.setdefault(thing, set()).add(thing.content)

    # -- rules -------------------------------------------------------------------------------------

    @rule(path=FRESH, content=st.binary(max_size=3))
    def write(self, path: str, content: bytes) -> None:
        Machine.write(self, path, content)
        self.note_closed(path)

    @rule(path=KNOWN)
    def append(self, path: str) -> None:
        Machine.append(self, path)
        self.note_closed(path)

    @rule(path=FRESH)
    def create(self, path: str) -> None:
        if path in self.model.at or not self.model.parent_is_there(path):
            return
        fd = self.direct.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.model.at[path] = Thing(Kind.FILE)
        self.opened.append(Opened(fd, self.model.at[path]))

    @rule(path=KNOWN, truncate=st.booleans())
    def open_for_writing(self, path: str, truncate: bool) -> None:
        if not self.model.is_file(path) or len(self.opened) > 5:
            return
        self.know_names(path)
        fd = self.direct.open(path, os.O_RDWR | (os.O_TRUNC if truncate else 0), 0o644)
        thing = self.model.at[path]
        if truncate:
            thing.content = b""
        self.opened.append(Opened(fd, thing))

    @rule(which=st.integers(0, 5), content=st.binary(min_size=1, max_size=3))
    def write_to(self, which: int, content: bytes) -> None:
        if self.opened:
            each = self.opened[which % len(self.opened)]
            self.direct.pwrite(each.fd, content, 0)
            each.thing.content = content + each.thing.content[len(content) :]

    @rule(which=st.integers(0, 5))
    def close(self, which: int) -> None:
        if self.opened:
            self.close_one(self.opened[which % len(self.opened)])

    def close_one(self, each: Opened) -> None:
        self.opened.remove(each)
        self.direct.close(each.fd)
        self.closed.setdefault(each.thing, set()).add(each.thing.content)

    @rule()
    def commit(self) -> None:
        self.settle()
        self.check_shared()

    def settle(self) -> None:
        """All is committed that does not wait for an open file."""
        self.direct.go()
        rooms = self.direct.rooms

        def is_idle() -> bool:
            now = rooms.writeback._rooms.clock()
            ops = list(rooms.backlog.under(ROOT))
            return all(op.is_open or rooms.backlog.blocked_for_good(op, now) for op in ops)

        wait_until(lambda: self.direct.run_sync(is_idle), "all that can go to be committed")

    @rule(held=st.booleans())
    def restart(self, held: bool) -> None:
        self.check_all()
        self.direct.kill(held=held)
        self.check_all()

    # -- checks ------------------------------------------------------------------------------------

    def check_all(self) -> None:
        self.check(self.direct)
        for each in self.opened:
            found = self.direct.pread(each.fd, 100, 0)
            steps = "\n".join(self.direct.steps)
            assert found == each.thing.content, f"through {each.fd} after\n{steps}"

    def check_shared(self) -> None:
        """Everything that can be committed is."""
        steps = "\n".join(self.direct.steps)
        there = seen(OsCalls(self.direct.shared))
        # a removal or a rename may wait for an open file
        assert self.opened or there.keys() <= self.model.at.keys(), f"after\n{steps}"
        for path, thing in self.model.at.items():
            if thing.kind is Kind.FILE and self.is_open(thing):
                somewhere = {facts[2] for facts in there.values()} & self.closed.get(thing, set())
                lost = thing in self.committed and not somewhere
                assert not lost, f"{path}: no version of it is left after\n{steps}"
                continue
            if self.opened:
                continue  # what is ordered may wait for an open file
            assert path in there, f"{path} is missing after\n{steps}"
            if thing.kind is Kind.FILE:
                assert there[path][2] == thing.content, f"{path} after\n{steps}"
                self.committed.add(thing)

    def finish(self) -> None:
        for each in list(self.opened):
            self.close_one(each)
        self.settle()
        self.check_shared()

    def teardown(self) -> None:
        try:
            self.restart(held=False)
            self.finish()
            self.check(self.direct)
            self.check(OsCalls(self.direct.shared))
        except (AssertionError, OSError, trio.TooSlowError) as error:
            error.add_note("\n".join(self.direct.steps))
            pending = self.direct.run_sync(lambda: [*self.direct.rooms.backlog.under(ROOT)])
            error.add_note("pending:\n" + "\n".join(map(repr, pending)))
            raise
        finally:
            self.direct.stop()
            self.direct.close_kept()  # type: ignore[attr-defined]
            for folder in self.folders:
                shutil.rmtree(folder)


@pytest.mark.slow
def test_names_of_open_files_and_workers_at_any_point(
    tiers: tuple[LoopDevice, LoopDevice],
) -> None:
    run_machine(OpenMachine, tiers)
