"""What fits, what goes, who waits: decided from numbers alone."""

from __future__ import annotations

import pytest

from tierfs.capacity import (
    Expectations,
    Full,
    Limits,
    Marks,
    Next,
    Promises,
    Turns,
    Usage,
    Waiting,
    fits,
    to_evict,
    what_now,
)
from tierfs.capacity.expected import MOST

MARKS = Marks(0.8, 0.6)


@pytest.mark.parametrize(
    ("free", "wanted", "missing"),
    [
        (200, 0, 0),  # at the mark: nothing goes
        (199, 0, 201),  # above: down to the low one
        (300, 250, 0),
        (300, 350, 50),
        (100, 450, 350),  # what is wanted is more than the low mark leaves
    ],
)
def test_what_has_to_go(free: int, wanted: int, missing: int) -> None:
    assert to_evict(Usage(1000, free), MARKS, wanted) == missing


def test_a_low_mark_above_the_high_one_is_the_high_one() -> None:
    assert to_evict(Usage(1000, 100), Marks(0.5, 0.8)) == 400


def test_what_fits_stays_below_the_high_mark() -> None:
    usage = Usage(1000, 300)  # 700 are taken
    assert fits(usage, MARKS, may_go=200, wanted=300)
    assert not fits(usage, MARKS, may_go=200, wanted=301)


def test_a_file_is_expected_to_be_like_that_of_its_sibling() -> None:
    expected = Expectations(5000)
    first = (b"run", b"checkpoint-500", b"model-00001.safetensors")
    second = (b"run", b"checkpoint-1000", b"model-00001.safetensors")
    assert expected.of(second) == 5000
    expected.note(first, 1000)
    assert expected.of(second) == 1100
    assert expected.known((b"other", b"checkpoint-1000", b"model-00001.safetensors")) is None
    assert expected.known((b"run", b"checkpoint-1000", b"optimizer.pt")) is None


def test_the_same_name_counts_before_one_with_other_numbers() -> None:
    expected = Expectations(5000)
    expected.note((b"run", b"step-1", b"rank0.pt"), 10)
    expected.note((b"run", b"step-1", b"rank1.pt"), 20)
    assert expected.known((b"run", b"step-2", b"rank0.pt")) == 10
    assert expected.known((b"run", b"step-2", b"rank7.pt")) == 20
    expected.note((b"run", b"step-1.ckpt"), 30)
    assert expected.known((b"run", b"step-2.ckpt")) == 30


def test_no_more_names_are_remembered_than_that() -> None:
    expected = Expectations(5000)
    for index in range(3 * MOST):
        expected.note((b"d%s" % (b"x" * (index % 7)), b"a" * (1 + index // 7)), index)
    assert len(expected._sizes) == MOST


def test_promises_cover_what_all_will_write() -> None:
    promises = Promises(0.1)
    assert promises.give(1, 400, 0)  # before the first look nothing is known
    promises.looked(Usage(1000, 900), 0, {1: 100}, 0.1)
    assert promises.rest == 300
    assert promises.wanted == 400  # a tenth stays free
    assert not promises.give(2, 501, 0)
    assert promises.give(2, 500, 0)
    assert not promises.give(3, 1, 0)
    promises.over(2, 100)  # what it wrote is not seen to be taken yet
    assert promises.rest == 400
    assert promises.give(3, 400, 0)
    promises.looked(Usage(1000, 800), 0, {1: 100}, 0.1)
    assert promises.rest == 300 + 400


def test_what_can_be_evicted_is_room_unless_the_tier_is_below_its_share() -> None:
    promises = Promises(0.1)
    promises.looked(Usage(1000, 200), 600, {}, 0.1)
    assert promises.give(1, 700, 0)
    promises.over(1, 0)
    promises.looked(Usage(1000, 99), 800, {}, 0.1)
    assert not promises.give(2, 1, 0)


def test_a_version_that_shares_its_blocks_may_have_to_take_all_of_them() -> None:
    promises = Promises(0.0)
    promises.looked(Usage(1000, 500), 0, {}, 0.0)
    assert promises.give(1, 100, 300)
    promises.looked(Usage(1000, 500), 0, {1: 300}, 0.0)
    assert promises.rest == 300


@pytest.mark.parametrize(
    ("coming", "can_spill", "found"),
    [(1, True, Next.WAIT), (1, False, Next.WAIT), (0, True, Next.SPILL), (0, False, Next.REFUSE)],
)
def test_who_waits_spills_or_fails(coming: int, can_spill: bool, found: Next) -> None:
    assert what_now(Full(coming, can_spill)) is found


def rows(admitted: list[Waiting]) -> list[int]:
    return [each.row for each in admitted]


def test_closes_go_in_their_order() -> None:
    turns, limits = Turns(), Limits(pending_bytes=100)
    for row, size in ((1, 60), (2, 60), (3, 10)):
        turns.come(Waiting(row, size))
    assert rows(turns.admit(limits, 50, 0)) == []
    assert rows(turns.admit(limits, 40, 0)) == [1]  # the small one does not overtake
    assert turns.is_in(3)
    assert rows(turns.admit(limits, 30, 0)) == [2, 3]
    assert not turns


def test_when_nothing_is_pending_the_first_goes_whatever_its_size() -> None:
    turns, limits = Turns(), Limits(pending_bytes=100, pending_age=5)
    for row in (1, 2):
        turns.come(Waiting(row, 1000))
    assert rows(turns.admit(limits, 0, 99)) == [1]
    assert rows(turns.admit(limits, 1000, 1)) == []


def test_an_age_limit_lets_nobody_go_behind_what_is_old() -> None:
    turns, limits = Turns(), Limits(pending_age=5)
    turns.come(Waiting(1, 1))
    assert rows(turns.admit(limits, 1, 6)) == []
    assert rows(turns.admit(limits, 1, 5)) == [1]
