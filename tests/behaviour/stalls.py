"""Steps of the shared tier that stand still or fail, and what another node does there meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.behaviour.direct import Direct
from tests.faults import Stall
from tests.harness import wait_until
from tierfs.model import ROOT


def until_looked_at(direct: Direct) -> None:
    """Waits until the root, which is always in use, is remembered: it is not looked at for 5 s."""
    announced = direct.fs.core.announced
    wait_until(lambda: direct.run_sync(lambda: announced.get(ROOT)) is not None, "a look")


@contextmanager
def stalled(direct: Direct, step: str) -> Iterator[Stall]:
    """The next call labelled `step` stands still until the end of the block, or `release`.

    It is one of the test's own, none of a look in the background.
    """
    until_looked_at(direct)
    stall = Stall(step)
    direct.system.hook = stall
    try:
        yield stall
    finally:
        direct.system.hook = None
        stall.release()


def broken(*steps: str) -> Callable[[str, tuple[object, ...]], None]:
    """A hook: these steps fail with EIO."""

    def hook(step: str, _: tuple[object, ...]) -> None:
        if step in steps:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return hook


def other_node_replaces(direct: Direct, name: str, content: bytes) -> None:
    """What another node's commit looks like from here: a rename over the name."""
    draft = direct.shared / ".draft"
    draft.write_bytes(content)
    draft.rename(direct.shared / name)
