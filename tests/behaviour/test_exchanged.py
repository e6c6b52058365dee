"""Two names that are exchanged while what they lead to, and what comes after, is not sent yet."""

from __future__ import annotations

import os

import pytest

from tests.behaviour.direct import Direct
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.osio import RENAME_EXCHANGE


def exchange(direct: Direct, name: bytes, other: bytes) -> None:
    root = direct.fs.tree.directory(ROOT_INO)
    direct.run(direct.fs.names.rename, root, name, root, other, RENAME_EXCHANGE)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("written", ["one", "other"])
def test_what_is_written_and_renamed_leaves_nothing_behind(
    direct: Direct, written: str, committed: bool, restarted: bool
) -> None:
    """The new name is of what is sent later; under the old one is what the exchange put there."""
    content = {"one": b"of one", "other": b"of other"}
    for name in content:
        direct.write_file(name, content[name])
    if committed:
        direct.settle()
    exchange(direct, b"one", b"other")
    fd = direct.open(written, os.O_RDWR)
    direct.pwrite(fd, b"new", 0)
    direct.close(fd)
    direct.rename(written, "new")
    if restarted:
        direct.restart()
    direct.settle()
    left = {"one": "other", "other": "one"}[written]
    assert sorted(direct.listdir("")) == sorted(["new", left])
    assert sorted(os.listdir(direct.shared)) == sorted([".tierfs", "new", left])
    assert direct.read_file("new") == b"new" + content[left][3:]
    assert (direct.shared / left).read_bytes() == content[written]
