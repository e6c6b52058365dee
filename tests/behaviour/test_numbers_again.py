"""An inode number that the shared tier gives to a directory, while it is not yet known here that
what had it before is gone.
"""

from __future__ import annotations

import pytest

from tests.behaviour.direct import Direct
from tests.behaviour.stalls import stalled
from tests.behaviour.workers import Workers
from tests.harness import wait_until

MOST = 64


@pytest.mark.parametrize("killed", [False, True])
def test_a_directory_that_gets_the_number_of_one_that_is_being_removed_stays_what_it_is(
    request: pytest.FixtureRequest, killed: bool
) -> None:
    """Under another id it would be no checkpoint of this node: it would not be listed.

    Killed: the removal is made again, and the number is that of another directory by then.
    """
    direct = request.getfixturevalue("workers" if killed else "direct")
    direct.mkdir("x")
    direct.settle()
    number = (direct.shared / "x").stat().st_ino
    with stalled(direct, "rmdir.fsync_dir") as stall:
        direct.rmdir("x")
        assert stall.reached.wait(10)
        names = make_until(direct, number)
        direct.drop_caches()
        assert sorted(direct.listdir()) == names
        if isinstance(direct, Workers):
            direct.run_sync(direct.die)
    if isinstance(direct, Workers):
        direct.succeed()
    direct.settle()
    for _ in range(2):
        assert sorted(direct.listdir()) == names
        direct.drop_caches()
    direct.write_file(f"{names[-1]}/f", b"3")
    direct.settle()
    direct.drop_caches()
    assert direct.listdir(names[-1]) == ["f"]
    known = direct.run_sync(lambda: [each.name for each in direct.fs.tree.directories.values()])
    assert len({*known}) == len(known)  # none has two ids


def make_until(direct: Direct, number: int) -> list[str]:
    """Makes checkpoints until one has the inode `number` on the shared tier; their names."""
    names: list[str] = []
    for each in range(10, 10 + MOST):
        names.append(f"checkpoint-{each}")
        direct.mkdir(names[-1])
        there = direct.shared / f".staging_{names[-1]}"
        wait_until(lambda: not pending(direct, names[-1]), "its MKDIR to be over")
        if there.stat().st_ino == number:
            return names
    pytest.skip("the file system gives the number to no directory")


def pending(direct: Direct, name: str) -> bool:
    """Whether anything is pending of the directory `name`."""
    node = direct.inode(name)

    def look() -> bool:
        directory = direct.fs.tree.nodes[node].directory
        assert directory is not None
        return direct.rooms.backlog.of_object(directory) is not None

    return direct.run_sync(look)
