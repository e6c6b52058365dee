"""RENAME_EXCHANGE of everything with everything, pending, committed and half of each."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path

import pytest

from tests.harness import Node
from tests.harness.errors import fails_with
from tests.harness.parity import Tree
from tests.harness.renames import exchange

KINDS = ("file", "directory", "symlink", "fifo")


def make(path: Path, kind: str) -> None:
    """Something of this kind that tells where it was made."""
    match kind:
        case "file":
            path.write_bytes(os.fsencode(path.name))
        case "directory":
            path.mkdir()
            (path / f"in-{path.name}").write_bytes(b"x")
        case "symlink":
            path.symlink_to(f"to-{path.name}")
        case _:
            os.mkfifo(path)


def seen(path: Path) -> object:
    """What `make` made."""
    st = path.lstat()
    if stat.S_ISDIR(st.st_mode):
        return sorted(os.listdir(path))
    if stat.S_ISLNK(st.st_mode):
        return os.readlink(path)
    return path.read_bytes() if stat.S_ISREG(st.st_mode) else "fifo"


PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


@pytest.mark.parametrize("half", [False, True], ids=["whole", "half"])
def test_exchange(tree: Tree, half: bool) -> None:
    """`half`: of each pair one was there when all was committed, and one was not."""
    (tree / "d").mkdir()
    for kind, other in PAIRS:
        make(tree / f"{kind}-{other}", kind)
    if half:
        tree.commit_here()
    for kind, other in PAIRS:
        make(tree / "d" / f"{kind}-{other}", other)
    if not half:
        tree.commit_here()
    for kind, other in PAIRS:
        exchange(tree / f"{kind}-{other}", tree / "d" / f"{kind}-{other}")
    found = {
        f"{side}{kind}-{other}": seen(tree / f"{side}{kind}-{other}")
        for kind, other in PAIRS
        for side in ("", "d/")
    }
    tree.saw("everything", found)
    for kind, other in PAIRS:  # and on from there
        os.rename(tree / f"{kind}-{other}", tree / f"moved-{kind}-{other}")
        exchange(tree / f"moved-{kind}-{other}", tree / "d" / f"{kind}-{other}")
    tree.saw("names", (sorted(os.listdir(tree.path)), sorted(os.listdir(tree / "d"))))
    for kind, other in PAIRS:
        for path in (tree / f"moved-{kind}-{other}", tree / "d" / f"{kind}-{other}"):
            if seen(path) == "fifo":
                path.unlink()


def test_exchange_of_what_is_written_removed_and_replaced(tree: Tree) -> None:
    for name in "abcdef":
        (tree / name).write_bytes(name.encode())
    tree.commit_here()
    with (tree / "a").open("ab") as file:
        exchange(tree / "a", tree / "b")
        file.write(b" and more")
    assert ((tree / "a").read_bytes(), (tree / "b").read_bytes()) == (b"b", b"a and more")
    exchange(tree / "c", tree / "d")
    os.unlink(tree / "c")
    (tree / "d").write_bytes(b"new")
    exchange(tree / "e", tree / "f")
    os.chmod(tree / "e", 0o600)
    os.rename(tree / "e", tree / "g")
    os.link(tree / "f", tree / "h")
    assert sorted(os.listdir(tree.path)) == ["a", "b", "d", "f", "g", "h"]
    assert ((tree / "g").read_bytes(), (tree / "h").read_bytes()) == (b"f", b"e")


def test_exchange_refusals(tree: Tree) -> None:
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "f").write_bytes(b"x")
    tree.commit_here()
    for one, other, code in [
        ("f", "absent", errno.ENOENT),
        ("absent", "f", errno.ENOENT),
        ("d", "d/e", errno.EINVAL),
        ("d/e", "d", errno.EINVAL),
    ]:
        with fails_with(code):
            exchange(tree / one, tree / other)
    exchange(tree / "f", tree / "f")
    os.link(tree / "f", tree / "g")
    exchange(tree / "f", tree / "g")
    assert sorted(os.listdir(tree.path)) == ["d", "f", "g"]


def test_exchanges_outlive_a_kill(node: Node) -> None:
    where = node.mount / "w"
    where.mkdir()
    for name in ("a", "b"):
        make(where / name, "directory")
        make(where / f"{name}-file", "file")
    node.settle()
    make(where / "new", "file")
    exchange(where / "a", where / "b-file")
    exchange(where / "new", where / "a-file")
    exchange(where / "b", where / "b-file")  # what went there
    (where / "b" / "late").write_bytes(b"late")
    expected = {path.name: seen(path) for path in where.iterdir()}
    node.kill()
    node.start()
    assert {path.name: seen(path) for path in where.iterdir()} == expected
    node.settle()
    assert {path.name: seen(path) for path in (node.shared / "w").iterdir()} == expected
    assert {path.name: seen(path) for path in where.iterdir()} == expected
