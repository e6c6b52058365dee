"""Any calls, restarts at any point: what is seen equals a model before and after, and at the end.

This is the test of `namespace.restart.recovery`, which folds the journal's rows into the overlay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.behaviour.calls import Calls, OsCalls, error_of
from tests.behaviour.conftest import check_nothing_left
from tests.behaviour.direct import Direct
from tests.harness import LoopDevice
from tierfs.model import ROOT, Kind

Tree = dict[str, tuple[object, ...]]
"""Path: kind, mode, content, xattrs, link count."""

STEPS = {
    "append", "chmod", "drop_caches", "kill", "link", "mkdir", "rename", "restart", "rmdir",
    "settle", "setxattr", "symlink", "unlink", "write_file",
}  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def _known(machine: Machine) -> st.SearchStrategy[str]:
    paths = sorted(machine.model.at)
    return st.sampled_from(paths) if paths else st.just("a")


def _fresh(machine: Machine) -> st.SearchStrategy[str]:
    model = machine.model
    places = ["", *sorted(path + "/" for path in model.at if model.is_directory(path))]
    return st.builds("".join, st.tuples(st.sampled_from(places), machine.names))


KNOWN = st.runner().flatmap(_known)
"""A path of the model."""

FRESH = st.runner().flatmap(_fresh)
"""A name in a directory of the model, perhaps taken."""


@dataclass(eq=False)
class Thing:
    """A file, directory or symlink of the model."""

    kind: Kind
    content: bytes = b""
    mode: int = 0o644
    xattrs: dict[str, bytes] = field(default_factory=dict)


class Model:
    """What a file system is: paths to things, hard links sharing one."""

    def __init__(self) -> None:
        self.at: dict[str, Thing] = {}

    def below(self, path: str) -> list[str]:
        return [other for other in self.at if other.startswith(path + "/")]

    def is_directory(self, path: str) -> bool:
        return not path or (path in self.at and self.at[path].kind is Kind.DIRECTORY)

    def parent_is_there(self, path: str) -> bool:
        return self.is_directory(path.rpartition("/")[0])

    def is_file(self, path: str) -> bool:
        return path in self.at and self.at[path].kind is Kind.FILE

    def through_symlink(self, *paths: str) -> bool:
        """Whether a way leads over a symlink: the model does not follow any."""
        links = [path for path, thing in self.at.items() if thing.kind is Kind.SYMLINK]
        return any(path.startswith(link + "/") for path in paths for link in links)

    def may_rename(self, old: str, new: str) -> bool:
        if old not in self.at or not self.parent_is_there(new):
            return False
        if old == new or new.startswith(old + "/"):
            return False
        target, moved = self.at.get(new), self.at[old]
        if target is None:
            return True
        both = moved.kind is Kind.DIRECTORY, target.kind is Kind.DIRECTORY
        return both[0] == both[1] and not self.below(new)

    def rename(self, old: str, new: str) -> None:
        if self.at.get(new) is self.at[old]:
            return
        moved = {p: t for p, t in self.at.items() if p == old or p.startswith(old + "/")}
        for path in moved:
            del self.at[path]
        self.at |= {new + path[len(old) :]: thing for path, thing in moved.items()}

    def seen(self) -> Tree:
        things = list(self.at.values())
        return {
            path: (
                thing.kind, thing.mode, thing.content, tuple(sorted(thing.xattrs.items())),
                0 if thing.kind is Kind.DIRECTORY else things.count(thing),
            )
            for path, thing in self.at.items()
        }  # fmt: skip


def seen(calls: Calls) -> Tree:
    """The tree of `calls`, in the form of `Model.seen`."""
    return {
        path: (item.kind, item.mode, item.content, item.xattrs, item.nlink)
        for path, item in calls.tree().items()
    }


class Logged(Direct):
    """Remembers what it was asked for: with commits under way no failure can be made smaller."""

    def __init__(self, root: Path, shared: Path, **settings: float) -> None:
        super().__init__(root, shared, **settings)
        self.steps: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in STEPS:
            return found

        def logged(*arguments: Any, **more: Any) -> Any:
            self.steps.append(f"fs.{name}{arguments}" if not more else f"fs.{name}({more})")
            return found(*arguments, **more)

        return logged


class Machine(RuleBasedStateMachine):
    """Calls on a file system object and on the model."""

    devices: tuple[LoopDevice, LoopDevice]
    names = NAMES
    settings: ClassVar[Mapping[str, float]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        local, shared = (Path(tempfile.mkdtemp(dir=device.mountpoint)) for device in self.devices)
        self.folders = local, shared
        self.direct = Logged(local, shared, **self.settings)
        self.direct.start(held=True)

    def check(self, calls: Calls) -> None:
        """`calls` sees what the model has; else all the steps so far are told."""
        steps = "\n".join(self.direct.steps)
        assert self.told(seen(calls)) == self.told(self.model.seen()), f"after\n{steps}"

    def told(self, tree: Tree) -> Tree:
        """What of `tree` is compared."""
        return tree

    def know_names(self, path: str) -> None:
        """A new version follows the names that the mount knows (DEVIATIONS, hard links)."""
        thing = self.model.at.get(path)
        for other in [other for other, it in self.model.at.items() if it is thing]:
            self.direct.stat(other)

    def teardown(self) -> None:
        try:
            self.restart(held=False)
            self.finish()
            self.check(self.direct)
            self.check(OsCalls(self.direct.shared))
            self.direct.drop_caches()
            check_nothing_left(self.direct)
        except (AssertionError, OSError, trio.TooSlowError) as error:
            error.add_note("\n".join(self.direct.steps))
            pending = self.direct.run_sync(lambda: [*self.direct.rooms.backlog.under(ROOT)])
            error.add_note("pending:\n" + "\n".join(f"{op} {op.error}" for op in pending))
            raise
        finally:
            self.direct.stop()
            for folder in self.folders:
                shutil.rmtree(folder)

    def finish(self) -> None:
        """Bring all to the shared tier."""
        self.direct.settle()

    @rule(path=FRESH, content=st.binary(max_size=3))
    def write(self, path: str, content: bytes) -> None:
        if not self.model.parent_is_there(path) or self.model.is_directory(path):
            return
        if path in self.model.at and not self.model.is_file(path):
            return
        self.know_names(path)
        self.direct.write_file(path, content)
        self.model.at.setdefault(path, Thing(Kind.FILE)).content = content

    @rule(path=KNOWN)
    def append(self, path: str) -> None:
        if self.model.is_file(path):
            self.know_names(path)
            self.direct.append(path, b"+")
            self.model.at[path].content += b"+"

    @rule(path=FRESH)
    def make_directory(self, path: str) -> None:
        if path in self.model.at or not self.model.parent_is_there(path):
            return
        self.direct.mkdir(path)
        self.model.at[path] = Thing(Kind.DIRECTORY, mode=0o755)

    @rule(path=FRESH, goal=NAMES)
    def make_symlink(self, path: str, goal: str) -> None:
        if path in self.model.at or not self.model.parent_is_there(path):
            return
        self.direct.symlink(goal, path)
        self.model.at[path] = Thing(Kind.SYMLINK, os.fsencode(goal), mode=0o777)

    @rule(old=KNOWN, new=FRESH)
    def link(self, old: str, new: str) -> None:
        if not self.model.is_file(old) or new in self.model.at:
            return
        if self.model.parent_is_there(new):
            self.direct.link(old, new)
            self.model.at[new] = self.model.at[old]

    @rule(old=KNOWN | PATHS, new=FRESH)
    def rename(self, old: str, new: str) -> None:
        if self.model.may_rename(old, new):
            self.direct.rename(old, new)
            self.model.rename(old, new)
        elif old != new and not self.model.through_symlink(old, new):
            assert error_of(self.direct.rename, old, new) is not None

    @rule(path=KNOWN | PATHS)
    def remove(self, path: str) -> None:
        if self.model.through_symlink(path):
            return
        if path not in self.model.at:
            assert error_of(self.direct.unlink, path) in ("ENOENT", "ENOTDIR", "ELOOP")
        elif self.model.below(path):
            assert error_of(self.direct.rmdir, path) == "ENOTEMPTY"
        else:
            directory = self.model.is_directory(path)
            (self.direct.rmdir if directory else self.direct.unlink)(path)
            del self.model.at[path]

    @rule(path=KNOWN, mode=st.sampled_from([0o600, 0o640, 0o755]))
    def chmod(self, path: str, mode: int) -> None:
        if self.model.is_file(path) or (path in self.model.at and self.model.is_directory(path)):
            self.direct.chmod(path, mode)
            self.model.at[path].mode = mode

    @rule(path=KNOWN, value=st.binary(min_size=1, max_size=2))
    def set_xattr(self, path: str, value: bytes) -> None:
        if self.model.is_file(path) or (path in self.model.at and self.model.is_directory(path)):
            self.direct.setxattr(path, "user.x", value)
            self.model.at[path].xattrs["user.x"] = value

    @rule()
    def forget(self) -> None:
        self.direct.drop_caches()

    @rule()
    def commit(self) -> None:
        self.direct.settle()
        self.check(OsCalls(self.direct.shared))

    @rule(held=st.booleans())
    def restart(self, held: bool) -> None:
        self.check(self.direct)
        self.direct.restart(held=held)
        self.check(self.direct)


class KilledMachine(Machine):
    """The same, and it is killed in the very moment in which it has answered."""

    @rule(held=st.booleans())
    def kill(self, held: bool) -> None:
        """In the very moment in which it has answered."""
        self.direct.kill(held=held)
        self.check(self.direct)


def run_machine(
    machine: type[Machine], tiers: tuple[LoopDevice, LoopDevice], *, examples: int = 10,
    steps: int = 30,
) -> None:  # fmt: skip
    """Runs `machine` with so many examples, or TIERFS_TEST_EXAMPLES."""
    machine.devices = tiers
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("TIERFS_TEST_EXAMPLES", str(examples))),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )


def foreign(direct: Direct) -> None:
    """A directory from before tierfs: nothing on it tells its id."""
    (direct.shared / "old").mkdir()
    (direct.shared / "old" / "x").write_bytes(b"1")
    (direct.shared / "old" / "y").write_bytes(b"2")
    direct.write_file("old/f", b"3")
    direct.rename("old/y", "old/z")
    direct.unlink("old/x")


def test_restart_with_pending_names_in_a_foreign_directory(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    foreign(direct)
    direct.restart(held=True)
    assert sorted(direct.listdir("old")) == ["f", "z"]
    direct.settle()
    assert OsCalls(direct.shared).tree().keys() == {"old", "old/f", "old/z"}


def test_foreign_directory_forgotten_with_pending_names(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    foreign(direct)
    direct.drop_caches()
    assert sorted(direct.listdir("old")) == ["f", "z"]
    direct.chmod("old", 0o700)
    direct.rename("old", "new")
    direct.drop_caches()
    assert sorted(direct.listdir("new")) == ["f", "z"]
    direct.settle()
    assert sorted(direct.listdir("new")) == ["f", "z"]


def test_directory_with_a_pending_chmod_stays_the_same_directory(direct: Direct) -> None:
    direct.mkdir("d")
    direct.settle()
    direct.restart(held=True)
    direct.chmod("d", 0o700)
    direct.restart(held=True)
    inode = direct.inode("d")
    direct.settle()
    assert direct.inode("d") == inode
    direct.restart(held=True)
    direct.mkdir("d/e")
    direct.restart(held=True)
    assert direct.tree().keys() == {"d", "d/e"}
    direct.settle()
    direct.drop_caches()
    check_nothing_left(direct)


def test_links_of_a_committed_file_after_a_restart(direct: Direct) -> None:
    direct.write_file("a", b"content")
    direct.link("a", "b")
    direct.settle()
    direct.restart(held=True)
    direct.chmod("a", 0o600)
    direct.link("a", "c")
    direct.restart(held=True)
    assert [direct.stat(name).nlink for name in "abc"] == [3, 3, 3]
    direct.unlink("b")
    assert direct.stat("a").nlink == 2


def test_pending_link_that_was_renamed_over_counts_no_more(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    direct.write_file("a", b"one")
    direct.link("a", "b")
    direct.write_file("c", b"two")
    direct.rename("c", "a")
    direct.restart(held=True)
    assert (direct.stat("a").nlink, direct.stat("b").nlink) == (1, 1)
    direct.settle()
    assert (direct.read_file("a"), direct.read_file("b")) == (b"two", b"one")


@pytest.mark.slow
def test_restarts_at_any_point(tiers: tuple[LoopDevice, LoopDevice]) -> None:
    run_machine(KilledMachine, tiers, examples=20, steps=40)


def test_names_of_a_file_that_follow_its_new_version_can_be_removed(
    make_direct: Callable[..., Direct],
) -> None:
    """What the shared tier has under them was never looked at on its own."""
    direct = make_direct()
    direct.write_file("a", b"one")
    direct.link("a", "b")
    direct.link("a", "c")
    direct.settle()
    direct.restart(held=True)
    assert {direct.stat(name).nlink for name in "abc"} == {3}
    direct.append("b", b"+")
    direct.unlink("a")
    direct.unlink("c")
    direct.restart(held=False)
    direct.settle()
    assert OsCalls(direct.shared).tree().keys() == {"b"}
    assert direct.read_file("b") == b"one+"


@pytest.mark.parametrize("inner", [False, True])
def test_removals_that_were_made_when_it_died_with_that_of_their_directory(
    make_direct: Callable[..., Direct], inner: bool
) -> None:
    """None of them was taken out of the journal yet."""
    direct = make_direct()
    direct.mkdir("d")
    direct.write_file("d/f", b"1")
    if inner:
        direct.mkdir("d/e")
    direct.write_file("g", b"2")
    direct.settle()
    direct.restart(held=True)
    direct.unlink("d/f")
    if inner:
        direct.rmdir("d/e")
    direct.rmdir("d")
    direct.unlink("g")
    direct.stop()
    shutil.rmtree(direct.shared / "d")
    direct.start()
    direct.settle()
    assert OsCalls(direct.shared).tree().keys() == set()
    direct.mkdir("d")
    direct.settle()
    assert direct.listdir("d") == []
