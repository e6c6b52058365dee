"""Names of a directory in use while the shared tier fails: what was seen last is what is told."""

from __future__ import annotations

import errno
import os

import pytest

from tests.behaviour.direct import Direct
from tests.harness import wait_until
from tierfs.model import ROOT


def failing(step: str, _: tuple[object, ...]) -> None:
    """A tier that answers no question."""
    if step.startswith(("look.", "place.")):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_another_node_made_before_is_known(direct: Direct) -> None:
    (direct.shared / "theirs").write_bytes(b"1234")
    announced = direct.fs.core.announced

    def is_seen() -> bool:
        known = direct.run_sync(lambda: announced.get(ROOT))
        return known is not None and b"theirs" in known.names

    wait_until(is_seen, "a look in the background", timeout=30)
    direct.system.hook = failing
    assert direct.stat("theirs").size == 4
    assert direct.listdir() == ["theirs"]
    for make in (
        lambda: direct.mkdir("theirs"),
        lambda: direct.symlink("x", "theirs"),
        lambda: direct.open("theirs", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    ):
        with pytest.raises(FileExistsError):
            make()
    direct.unlink("theirs")
    with pytest.raises(FileNotFoundError):
        direct.stat("theirs")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        direct.stat("unknown")
    assert direct.listdir() == []
    direct.system.hook = None
    direct.settle()
    assert not (direct.shared / "theirs").exists()
