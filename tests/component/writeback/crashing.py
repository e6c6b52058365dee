"""A node that dies at a given step, in a process of its own.

Run as a module it reads lines ``STEP NTH LOCAL SHARED`` and prints the exit status of a process
that met it; one import serves all of them. The step ``-`` prints the labels of a whole run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from tests.component.writeback.rig import Rig, close_rig, open_rig
from tests.faults import FaultyOS, dying

SHARD = b"shard" * 60_000
OLD, NEW = b"old" * 1000, b"new" * 2000


def before(rig: Rig) -> None:
    """What is committed already when the crash comes."""
    rig.mkdir("step-1")
    rig.put("step-1/__0_0.distcp", OLD)
    rig.put("step-1/.metadata", b"1")
    rig.symlink("step-1", "latest")
    rig.put("last.pt", OLD)
    rig.put("plain", b"plain")
    rig.put("left", b"left")
    rig.put("right", b"right")


def scenario(rig: Rig) -> None:
    """A save and a rotation: every kind of op."""
    rig.mkdir("tmp-2.reserving-1")
    rig.put("tmp-2.reserving-1/__0_0.distcp", SHARD)
    rig.rename("tmp-2.reserving-1", "step-2")
    rig.put("step-2/.metadata", b"2")
    rig.symlink("step-2", "latest")
    rig.put("last.pt", NEW)
    rig.store.set_attributes(rig.names[b"plain"][0], mode=0o600)
    rig.setattr("plain", "mode")
    rig.link("plain", "hard")
    rig.rename("plain", "renamed")
    rig.exchange("left", "right")
    rig.unlink("step-1/__0_0.distcp")
    rig.unlink("step-1/.metadata")
    rig.rmdir("step-1")


async def live(local: Path, shared: Path, step: str, nth: int) -> list[str]:
    """The node's life; returns the labels of its last part if it did not die."""
    system = FaultyOS()
    local.parent.mkdir(parents=True, exist_ok=True)
    rig = open_rig(local, shared, system)
    before(rig)
    await _run(rig)
    scenario(rig)
    await rig.journal.sync()
    system.seen.clear()
    system.hook = dying(step, nth)
    await _run(rig)
    seen = list(system.seen)
    close_rig(rig)
    return seen


async def _run(rig: Rig) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.writeback.run)
        await rig.drain()
        nursery.cancel_scope.cancel()


def _serve() -> None:
    for line in sys.stdin:
        step, nth, local, shared = line.split()
        pid = os.fork()
        if pid == 0:
            labels = trio.run(live, Path(local), Path(shared), step, int(nth))
            if step == "-":
                print(" ".join(dict.fromkeys(labels)), flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
