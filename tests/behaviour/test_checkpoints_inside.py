"""An unsealed checkpoint that came into a published one, with the directory that holds it."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.behaviour.direct import Direct
from tests.behaviour.test_checkpoints_again import FILES, PLAIN, job, save
from tests.faults import failing
from tests.harness import wait_until
from tierfs.model import ROOT

OUTER, INNER = PLAIN, f"{PLAIN}/checkpoint-2"


def is_there(direct: Direct) -> bool:
    """Whether the inner one is all that is left to be sealed, and nothing is pending."""
    inner = {group.name for group in direct.fs.core.groups} <= {b"checkpoint-2"}
    return inner and not list(direct.rooms.backlog.under(ROOT))


def saved_inside(direct: Direct) -> None:
    """OUTER, which is published, and INNER, which is not."""
    direct.mkdir("a")
    save(direct, "a", FILES, b"first")
    direct.mkdir("a/checkpoint-2")
    save(direct, "a/checkpoint-2", FILES, b"inner")
    direct.rename("a", OUTER)
    direct.settle()
    assert (direct.shared / OUTER / ".staging_checkpoint-2").is_dir()


@pytest.mark.parametrize("restarts", [False, True])
def test_it_is_there_in_the_next_generation(direct: Direct, restarts: bool) -> None:
    saved_inside(direct)
    save(direct, OUTER, FILES[:1], b"second")
    save(direct, INNER, FILES[:1], b"again")
    if restarts:
        direct.restart(held=True)
    assert direct.read_file(f"{INNER}/{FILES[1]}") == b"inner"
    direct.settle()
    save(direct, INNER, ("more.bin",), b"more")
    direct.settle()
    assert direct.read_file(f"{INNER}/{FILES[0]}") == b"again"
    assert direct.read_file(f"{INNER}/{FILES[1]}") == b"inner"
    assert direct.read_file(f"{INNER}/more.bin") == b"more"
    assert sorted(direct.listdir(OUTER)) == sorted([*FILES, "checkpoint-2"])
    inner = direct.shared / f".staging_{OUTER}/.staging_checkpoint-2"
    assert sorted(path.name for path in inner.iterdir()) == sorted([*FILES, "more.bin"])


@pytest.mark.parametrize("step", ["", "inner.rename", "inner.fsync_dir"])
def test_it_stays_when_the_next_generation_is_given_up(direct: Direct, step: str) -> None:
    saved_inside(direct)
    with job(direct, killed=True):
        save(direct, OUTER, FILES[:1], b"half")
        direct.settle()
        if step:
            direct.system.hook = failing(step, errno.EIO)
    wait_until(lambda: direct.run_sync(lambda: is_there(direct)), "the outer one to be given up")
    assert direct.read_file(f"{OUTER}/{FILES[0]}") == b"first"
    save(direct, INNER, FILES[:1], b"again")
    direct.settle()
    assert direct.read_file(f"{INNER}/{FILES[0]}") == b"again"
    inner = direct.shared / OUTER / ".staging_checkpoint-2"
    assert {path.name: path.read_bytes() for path in inner.iterdir()} == {
        FILES[0]: b"again", FILES[1]: b"inner",
    }  # fmt: skip


def test_who_looks_while_it_moves_finds_it(direct: Direct) -> None:
    """Between the move and the end of the op that makes it; the kernel knows the outer one."""
    saved_inside(direct)
    outer = direct.inode(OUTER)
    looked: list[bool] = []

    def look() -> None:
        state = direct.fs.tree.directory(outer)
        looked.append(direct.run(direct.fs.lookup.find, state, b"checkpoint-2") is not None)

    looker = threading.Thread(target=look)

    def hook(step: str, detail: tuple[object, ...]) -> None:
        if step == "inner.fsync_dir" and looker.ident is None:
            looker.start()
            looker.join(0.5)

    direct.system.hook = hook
    save(direct, OUTER, FILES[:1], b"second")
    direct.settle()
    looker.join()
    assert looked == [True]
