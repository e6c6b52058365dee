"""A directory that is moved below one that was taken out of it before."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.behaviour.direct import Direct
from tierfs.namespace.overlay.nodes import DirectoryState
from tierfs.osio import RENAME_EXCHANGE

TOPS = list(itertools.product(("x", "x.tmp"), ("y", "y.tmp")))
"""What lies below a temporary name is not ordered: only what cannot be done otherwise waits."""


def place(direct: Direct, path: str) -> tuple[DirectoryState, bytes]:
    above, _, name = path.rpartition("/")
    return direct.fs.tree.directory(direct.inode(above)), name.encode()


def exchange(direct: Direct, one: str, other: str) -> None:
    places = (*place(direct, one), *place(direct, other))
    direct.run(direct.fs.names.rename, *places, RENAME_EXCHANGE)


def sent(direct: Direct) -> set[str]:
    direct.settle()
    found = (str(path.relative_to(direct.shared)) for path in direct.shared.rglob("*"))
    return {path for path in found if not path.startswith(".tierfs")}


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("x", "y"), TOPS)
def test_below_what_was_moved_out_of_it(
    make_direct: Callable[..., Direct], x: str, y: str, committed: bool
) -> None:
    direct = make_direct()
    for directory in (x, f"{x}/k", f"{x}/k/n", f"{x}/k/n/deep", y):
        direct.mkdir(directory)
    if committed:
        direct.settle()
    direct.rename(f"{x}/k/n", f"{y}/a")
    direct.rename(f"{x}/k", f"{y}/a/deep/k")
    assert sent(direct) == {x, y, f"{y}/a", f"{y}/a/deep", f"{y}/a/deep/k"}


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("x", "y"), TOPS)
def test_below_what_was_exchanged_with_something_in_it(
    make_direct: Callable[..., Direct], x: str, y: str, committed: bool
) -> None:
    direct = make_direct()
    for directory in (x, f"{x}/k", f"{x}/k/n", y):
        direct.mkdir(directory)
    direct.write_file(f"{y}/a", b"two")
    if committed:
        direct.settle()
    exchange(direct, f"{x}/k/n", f"{y}/a")
    direct.rename(f"{x}/k", f"{y}/a/k")
    assert sent(direct) == {x, y, f"{y}/a", f"{y}/a/k", f"{y}/a/k/n"}
    assert (direct.shared / y / "a/k/n").read_bytes() == b"two"


@pytest.mark.parametrize("committed", [True, False])
def test_exchanged_with_what_was_moved_out_of_it(
    make_direct: Callable[..., Direct], committed: bool
) -> None:
    """Both ways of an exchange may lead below what was moved."""
    direct = make_direct()
    for directory in ("x.tmp", "x.tmp/k", "x.tmp/k/n", "x.tmp/k/n/in", "y.tmp"):
        direct.mkdir(directory)
    if committed:
        direct.settle()
    direct.rename("x.tmp/k/n", "y.tmp/a")
    exchange(direct, "y.tmp/a/in", "x.tmp/k")
    assert sent(direct) == {"x.tmp", "x.tmp/k", "y.tmp", "y.tmp/a", "y.tmp/a/in"}
