"""Posts that survive the process before the database has them."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.component.journal.helpers import put, python
from tierfs.errors import JournalError
from tierfs.journal import (
    Change,
    DropClean,
    DropDirectory,
    DropGroup,
    DropObject,
    DropOp,
    DropPin,
    DropRequests,
    Journal,
    SaveClean,
    SaveDirectory,
    SaveGroup,
    SaveObject,
    SaveOp,
    SavePin,
    SaveRequest,
    TouchClean,
)
from tierfs.journal.ahead import PART_BYTES, Ahead, left
from tierfs.model import (
    ROOT,
    CleanRecord,
    DirectoryRecord,
    GroupRecord,
    Kind,
    Mark,
    ObjectRecord,
    OpKind,
    Reopen,
    Signature,
    WriterRecord,
    new_object_id,
)
from tierfs.osio import OS

DIES = """
import os, signal, sys
from pathlib import Path
import trio
from tests.component.journal.helpers import put
from tierfs.errors import JournalError
from tierfs.journal import DropOp, Journal, SaveOp
from tierfs.osio import OS

journal = Journal.open(sys.argv[1])
journal.write_ahead(OS(), Path(sys.argv[2]), take_up=True)

def early(*changes):
    with journal.together(later=True, early=True):
        journal.post(*changes)
    assert journal.is_ahead

async def main():
    WHAT
    os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


def post_early(journal: Journal, *changes: Change) -> bool:
    """Posts `changes`, or one; whether they survive the process at once."""
    with journal.together(later=True, early=True):
        journal.post(*changes or (SaveOp(put(journal)),))
    return journal.is_ahead


@pytest.fixture
def died(
    path: Path, tmp_path: Path, open_journal: Callable[..., Journal]
) -> Callable[..., list[int]]:
    """The rows that the next process finds after one that did `what` and was killed."""

    def run(what: str, *, take_up: bool = True) -> list[int]:
        child = python(DIES.replace("WHAT", what), path, tmp_path)
        out, _ = child.communicate(timeout=60)
        assert child.returncode == -9, out
        journal = open_journal()
        journal.write_ahead(OS(), tmp_path, take_up=take_up)
        return [op.row for op in journal.load().ops]

    return run


def test_what_was_posted_early_survives_kill_9(died: Callable[..., list[int]]) -> None:
    assert len(died("for _ in range(3): early(SaveOp(put(journal)))")) == 3


POSTS_ON = """
import os, random, sys
from pathlib import Path
import trio
from tests.component.journal.helpers import put
from tierfs.journal import DropOp, Journal, SaveOp
from tierfs.osio import OS

journal = Journal.open(sys.argv[1])
journal.write_ahead(OS(), Path(sys.argv[2]), take_up=True)
known = [op.row for op in journal.load().ops]
choose = random.Random(sys.argv[3])

def say(text):
    os.write(1, text.encode() + b"\\n")

async def main():
    while True:
        if known and choose.random() < 0.45:
            row = known.pop(choose.randrange(len(known)))
            change = DropOp(row)
            say(f"drop {row}")
        else:
            change = SaveOp(put(journal))
            known.append(change.op.row)
            say(f"save {change.op.row}")
        early = choose.random() < 0.7
        with journal.together(later=choose.random() < 0.8, early=early):
            journal.post(change)
        if early or choose.random() < 0.3:
            if not journal.is_ahead:
                await journal.written()
            say("answered")

trio.run(main)
"""


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIERFS_TEST_KILLS", "5"))))
def test_killed_at_any_moment_it_has_a_first_part_with_all_that_was_answered(
    seed: int, path: Path, tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    before: set[int] = set()
    for life in range(3):
        with python(POSTS_ON, path, tmp_path, f"{seed} {life}") as child:
            assert child.stdout is not None
            said = [child.stdout.readline()]
            timer = threading.Timer(random.Random(f"{seed} {life}").random() * 0.3, child.kill)
            timer.start()
            said += child.stdout.readlines()
            timer.join()
        journal = open_journal()
        journal.write_ahead(OS(), tmp_path, take_up=True)
        found = {op.row for op in journal.load().ops}
        journal.close()
        assert found in _possible(before, said)
        before = found


def _possible(before: set[int], said: list[str]) -> list[set[int]]:
    """The rows after each post from the last that was answered on."""
    states = [set(before)]
    for line in said:
        what, _, row = line.strip().partition(" ")
        if what == "answered":
            del states[:-1]
        elif what == "save":
            states.append(states[-1] | {int(row)})
        else:
            states.append(states[-1] - {int(row)})
    return states


def test_after_another_mount_of_the_tier_it_is_worth_nothing(
    died: Callable[..., list[int]],
) -> None:
    assert died("early(SaveOp(put(journal)))", take_up=False) == []


def test_what_came_after_it_is_not_undone(died: Callable[..., list[int]]) -> None:
    """All are in the database, and none is applied again."""
    code = (
        "first, second = put(journal), put(journal); early(SaveOp(first)); early(SaveOp(second));"
        " await journal.post(DropOp(first.row)).written()"
    )
    assert len(died(code)) == 1


def test_what_was_written_and_ended_since_does_not_come_back(
    died: Callable[..., list[int]],
) -> None:
    code = (
        "op = put(journal); early(SaveOp(op)); await journal.sync();"
        " await journal.post(DropOp(op.row)).written()"
    )
    assert died(code) == []


def test_a_post_behind_it_that_was_not_written_is_there_too(
    died: Callable[..., list[int]],
) -> None:
    code = "early(SaveOp(put(journal))); journal.post(SaveOp(put(journal))); journal.is_ahead"
    assert len(died(code)) == 2


async def test_it_is_not_noted_while_the_database_lacks_what_came_before(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    """Its rows may need those of that: of the directory that both are in, say."""
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    journal.post(SaveOp(put(journal)), later=True)
    assert not journal.is_ahead
    assert not post_early(journal)
    assert _sizes(tmp_path) == [0, 0]
    await journal.written()
    assert post_early(journal)


def _sizes(directory: Path) -> list[int]:
    return [file.stat().st_size for file in directory.glob("ahead-*")]


async def test_nothing_is_left_of_what_is_written(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    assert _sizes(tmp_path) == [0, 0]
    most = 0
    for number in range(3000):
        post_early(journal)
        if number % 50 == 49:
            await journal.written()
        most = max(most, sum(_sizes(tmp_path)))
    assert most < 3 * PART_BYTES
    await journal.post(DropOp(1)).written()
    await journal.post(DropOp(1)).written()
    assert _sizes(tmp_path) == [0, 0]
    journal.close()
    assert _sizes(tmp_path) == []


def test_without_a_directory_all_goes_on_without_it(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path / "none", take_up=True)
    assert not journal.is_ahead


async def test_every_kind_of_change_can_be_noted(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal, record = open_journal(), ObjectRecord(new_object_id(), Kind.FILE, True, None)
    sign = Signature(1, 2, 3, 4)
    every: list[Change] = [
        SaveOp(put(journal, kind=OpKind.REOPEN, flags=Reopen.WHOLE, mark=Mark.TORN)),
        DropOp(1), SaveObject(record), DropObject(record.id),
        SaveDirectory(DirectoryRecord(new_object_id(), ROOT, b"d", 5, True)), DropDirectory(ROOT),
        SaveGroup(GroupRecord(ROOT, 1, None, 2, (WriterRecord(1, 2, "living", True, True),))),
        DropGroup(ROOT), SaveClean(CleanRecord(sign, record.id, None, 5, 6)), DropClean(7),
        TouchClean(1, 2), SavePin(1, True), DropPin(1), SaveRequest(2**63), DropRequests((1, 2)),
    ]  # fmt: skip
    assert {type(each) for each in every} == set(get_args(Change))
    journal.write_ahead(OS(), tmp_path, take_up=True)
    assert post_early(journal, *every)
    await journal.written()


class Full(OS):
    """Nothing more can be written to the files."""

    full = False

    def _enter(self, step: str, *detail: object) -> None:
        if self.full and step == "journal.ahead":
            raise OSError(errno.ENOSPC, "full")


async def test_where_no_more_can_be_written_it_is_waited_for_again(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    system = Full()
    journal = open_journal()
    journal.write_ahead(system, tmp_path, take_up=True)
    assert post_early(journal)
    system.full = True
    assert not post_early(journal)
    await journal.written()
    assert len(journal.load().ops) == 2
    system.full = False
    await journal.post(DropOp(1)).written()
    assert _sizes(tmp_path) == []


async def test_what_cannot_be_noted_any_more_does_not_take_along_what_is(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    """The database may not have it yet."""
    system = Full()
    journal = open_journal()
    journal.write_ahead(system, tmp_path, take_up=True)
    assert post_early(journal)
    system.full = True
    for _ in range(2):
        post_early(journal)
    assert max(_sizes(tmp_path)) > 0


async def test_nobody_is_answered_early_while_the_database_is_far_behind(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    early = 0
    for _ in range(10_000):
        if not post_early(journal):
            break
        early += 1
    assert 100 < early < 9_999
    await journal.written()
    assert post_early(journal)


async def test_a_failed_drive_ends_it(tmp_path: Path, open_journal: Callable[..., Journal]) -> None:
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    assert post_early(journal)
    journal._writer.lost = JournalError("the drive is gone")
    assert not post_early(journal)
    assert _sizes(tmp_path) == []
    await journal.written()


def test_both_files_are_read_in_the_order_of_the_posts(tmp_path: Path) -> None:
    noted = Ahead(OS(), tmp_path / "x")
    body = "x" * (PART_BYTES // 2)
    for number in (1, 2, 3):
        noted.note(number, [(body, (number,))])
    noted.settle(1)
    for number in (4, 5, 6):
        noted.note(number, [(body, (number,))])
    noted.settle(3)
    noted.note(7, [(body, (7,))])
    found = [statements[0][1][0] for statements in left(OS(), tmp_path / "x", 4)]
    assert found == [5, 6, 7]
    noted.settle(7)
    assert noted.is_empty


def test_a_last_post_that_is_not_whole_counts_for_nothing(tmp_path: Path) -> None:
    noted = Ahead(OS(), tmp_path / "x")
    noted.note(1, [("a", (1,))])
    noted.note(2, [("b", (2,))])
    file = tmp_path / "x.0"
    file.write_bytes(file.read_bytes()[:-1])
    assert left(OS(), tmp_path / "x", 0) == [[("a", (1,))]]


def test_posts_of_which_one_is_missing_make_no_sense(tmp_path: Path) -> None:
    noted = Ahead(OS(), tmp_path / "x")
    for number in (4, 5, 7):
        noted.note(number, [("a", (number,))])
    assert left(OS(), tmp_path / "x", 5) == [[("a", (7,))]]
    with pytest.raises(ValueError, match="missing"):
        left(OS(), tmp_path / "x", 4)


def test_one_that_makes_no_sense_is_no_reason_to_go_on_without_a_word(
    tmp_path: Path, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    assert journal._ahead is not None
    file = Path(f"{journal._ahead._path}.0")
    file.write_bytes(b"\0" * 7 + b"\0\x02" + b"\0" * 7 + b"??")
    with pytest.raises(JournalError, match="cannot be read"):
        journal.write_ahead(OS(), tmp_path, take_up=True)
    file.unlink()
    journal.write_ahead(OS(), tmp_path, take_up=True)
    assert journal.is_ahead
