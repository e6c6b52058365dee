"""Any calls on the mount and on a plain directory, while files go, are evicted, and daemons die."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.harness import LoopDevice, Node
from tests.harness.twin import HANDLES, Twin, random_step, tree

PATHS = [*"abc", "a/a", "a/b", "b/a", "a/a/c"]
SHARED_BY_BOTH = ("p", "q")

paths = st.sampled_from(PATHS)
data = st.binary(max_size=40) | st.builds(bytes, st.integers(4000, 9000))
indexes = st.integers(0, HANDLES - 1)
sizes = st.sampled_from([0, 1, 4096, 5000])
steps = st.one_of(
    st.tuples(st.sampled_from(["write", "append"]), st.tuples(paths, data)),
    st.tuples(st.just("truncate"), st.tuples(paths, sizes)),
    st.tuples(
        st.sampled_from(["read", "hold", "unlink", "mkdir", "rmdir", "look", "getxattr", "names"]),
        st.tuples(paths),
    ),
    st.tuples(st.sampled_from(["rename", "link"]), st.tuples(paths, paths)),
    st.tuples(st.just("symlink"), st.tuples(st.sampled_from(["a", "b", "../a"]), paths)),
    st.tuples(st.just("poke"), st.tuples(indexes, data, sizes)),
    st.tuples(st.just("peek"), st.tuples(indexes)),
    st.tuples(st.just("chmod"), st.tuples(paths, st.sampled_from([0o600, 0o755]))),
    st.tuples(st.just("setxattr"), st.tuples(paths, st.binary(max_size=20))),
    st.tuples(st.just("let_go"), st.tuples(indexes)),
    st.tuples(st.sampled_from(["settle", "evict", "kill"]), st.just(())),
)


@pytest.fixture
def plain(tiers: tuple[LoopDevice, LoopDevice]) -> Iterator[Path]:
    """A plain directory on the file system of the local tier."""
    root = Path(tempfile.mkdtemp(dir=tiers[0].mountpoint))
    yield root
    shutil.rmtree(root)


def happen(node: Node, what: str) -> None:
    """Something that no program may notice."""
    if what == "kill":
        node.kill_worker()
    elif what == "settle":
        result = node.flush()
        assert result.code in (0, 4, 5), result.out  # open for writing, or behind what is
    else:
        result = node.cli("evict", node.mount)
        assert result.code == 0, result.err


def twins(node: Node, plain: Path, examples: int, length: int) -> None:
    """`examples` sequences of up to `length` steps, each in a directory of its own."""
    node.expected += ["supervisor", "asked again", "again"]
    numbers = itertools.count()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=examples < 50,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(steps, min_size=length // 2, max_size=length))
    def check(sequence: list[tuple[str, tuple[object, ...]]]) -> None:
        name = f"e{next(numbers)}"
        twin = Twin(node.mount / name, plain / name)
        twin.mount.mkdir()
        twin.plain.mkdir()
        try:
            for step, arguments in sequence:
                if step == "let_go":
                    twin.let_go(*arguments)  # type: ignore[arg-type]
                elif step in ("settle", "evict", "kill"):
                    twin.done.append(step)
                    happen(node, step)
                else:
                    twin.step(step, arguments)
            twin.finish()
        finally:
            twin.close()

    check()
    node.settle()
    assert tree(node.mount) == tree(plain) == {
        path: what
        for path, what in tree(node.shared).items()
        if not path.startswith((".tierfs", ".staging_"))
    }  # fmt: skip


def test_each_call_comes_out_as_on_a_plain_directory(node: Node, plain: Path) -> None:
    twins(node, plain, examples=8, length=30)


@pytest.mark.soak
def test_each_call_comes_out_as_on_a_plain_directory_for_long(node: Node, plain: Path) -> None:
    twins(node, plain, examples=300, length=80)


def two_machines(node: Node, plain: Path, seed: int, count: int, events: list[str]) -> None:
    """Two threads of steps in the same directories, each on names of its own."""
    failed: list[str] = []
    for who in "xy":
        for name in SHARED_BY_BOTH:
            (plain / who / name).mkdir(parents=True)
            (node.mount / name).mkdir(exist_ok=True)

    def machine(who: str) -> None:
        chance = random.Random(f"{seed}{who}")
        twin = Twin(node.mount, plain / who)
        mine = [f"{folder}/{who}{name}" for folder in SHARED_BY_BOTH for name in ("1", "2", "3")]
        mine += [f"p/{who}1/{who}4", f"q/{who}2/{who}4"]
        try:
            for _ in range(count):
                step, arguments = random_step(chance, mine)
                if step != "names":
                    twin.step(step, arguments)
        except AssertionError as error:
            failed.append(str(error)[-2000:])
        except Exception:
            failed.append(traceback.format_exc())
        finally:
            twin.close()

    threads = [threading.Thread(target=machine, args=(who,)) for who in "xy"]
    for thread in threads:
        thread.start()
    try:
        for event in events:
            happen(node, event)
    finally:
        for thread in threads:
            thread.join()
    assert not failed, "\n".join(failed)
    want = tree(plain / "x") | tree(plain / "y")
    assert tree(node.mount) == want
    node.settle()
    shared = {k: v for k, v in tree(node.shared).items() if not k.startswith(".")}
    assert shared == want


def test_two_machines_on_one_tree(node: Node, plain: Path) -> None:
    node.expected += ["supervisor", "asked again", "again"]
    two_machines(node, plain, seed=1, count=250, events=["settle", "kill", "evict"])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_two_machines_on_one_tree_for_long(node: Node, plain: Path, seed: int) -> None:
    node.expected += ["supervisor", "asked again", "again"]
    events = ["settle", "kill", "evict", "kill", "evict", "settle"] * 5
    two_machines(node, plain, seed, count=4000, events=events)
