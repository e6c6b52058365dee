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
    Written,
    fits,
    to_evict,
    what_now,
)
from tierfs.capacity.expected import MOST, WINDOW
from tierfs.capacity.promises import FASTEST, LATEST, SOONEST

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


def test_the_largest_of_late_is_expected_again() -> None:
    """Of any name that differs in its numbers alone; a size is forgotten after some time."""
    expected = Expectations(5000)
    path = (b"run", b"f3.tmp")
    expected.note((b"run", b"f7.tmp"), 1000)
    for _ in range(WINDOW):
        expected.note(path, 10)
    assert expected.of(path) == 1100
    assert expected.known(path) == 10
    for _ in range(WINDOW):
        expected.note(path, 10)
    assert expected.of(path) == 11


def give(promises: Promises, number: int, expected: int, size: int = 0) -> bool:
    """A promise for as much as was free at the last look."""
    if promises.missing(max(expected, size)):
        return False
    promises.take(number, expected, size)
    return True


def test_promises_cover_what_all_will_write() -> None:
    promises = Promises(0.1)
    assert give(promises, 1, 400)  # before the first look nothing is known
    promises.looked(Usage(1000, 900), {1: Written(100, 100)}, 0.1, 0.0)
    assert promises.rest == 300
    assert promises.wanted == 400  # a tenth stays free
    assert promises.missing(501) == 1
    assert give(promises, 2, 500)
    assert not give(promises, 3, 1)
    promises.over(2, 100)  # what it wrote is not seen to be taken yet
    assert promises.rest == 400
    assert give(promises, 3, 400)
    promises.looked(Usage(1000, 800), {1: Written(100, 100)}, 0.1, 0.0)
    assert promises.rest == 300 + 400


def test_a_file_that_was_larger_than_expected_counts_with_all_that_it_wrote() -> None:
    promises = Promises(0.0)
    promises.looked(Usage(1000, 900), {}, 0.0, 0.0)
    assert give(promises, 1, 10)
    promises.over(1, 500)
    assert promises.missing(500) == 100


def test_a_promise_grows_with_its_file() -> None:
    promises = Promises(0.0)
    promises.looked(Usage(10000, 9000), {}, 0.0, 0.0)
    assert give(promises, 1, 100)
    promises.looked(Usage(10000, 8000), {1: Written(1000, 1000)}, 0.0, 0.5)
    assert promises.rest == 500
    promises.looked(Usage(10000, 7700), {1: Written(1300, 1300)}, 0.0, 1.0)
    assert promises.rest == 200


def test_an_old_look_is_good_for_what_nobody_can_have_written_since() -> None:
    promises, total = Promises(0.0), 4 * FASTEST
    promises.looked(Usage(total, FASTEST), {}, 0.0, 10.0)
    assert promises.is_ample(FASTEST // 2, 10.5)
    assert not promises.is_ample(FASTEST // 2, 10.6)
    assert promises.surely_leaves(FASTEST, 10.5)  # nothing is promised
    promises.take(1, FASTEST // 4, 0)
    assert promises.surely_leaves(FASTEST // 4, 10.5)
    assert not promises.surely_leaves(FASTEST // 4, 10.6)


def test_others_leave_what_is_promised() -> None:
    promises = Promises(0.1)
    promises.looked(Usage(1000, 500), {}, 0.1, 0.0)
    assert promises.leaves(501)  # nothing is promised: it will see for itself
    promises.take(1, 300, 0)
    assert promises.leaves(100)
    assert not promises.leaves(101)  # a tenth stays free besides


def test_the_fuller_the_tier_the_sooner_it_is_looked_at() -> None:
    promises = Promises(0.0)
    promises.looked(Usage(4 * FASTEST, FASTEST // 10), {}, 0.0, 0.0)
    assert promises.pause() == LATEST  # nothing is promised
    promises.take(1, 0, 0)
    assert promises.pause() == pytest.approx(0.1)
    promises.take(2, FASTEST, 0)
    assert promises.pause() == SOONEST


def test_a_version_that_shares_its_blocks_may_have_to_take_all_of_them() -> None:
    promises = Promises(0.0)
    promises.looked(Usage(1000, 500), {}, 0.0, 0.0)
    assert give(promises, 1, 100, 300)
    promises.looked(Usage(1000, 500), {1: Written(300, 300)}, 0.0, 0.0)
    assert promises.rest == 300
    promises.over(1, 300)
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


def test_of_many_closes_at_a_start_the_last_ones_count() -> None:
    closed = [((b"d", b"f%d" % number), number) for number in range(2 * MOST)]
    one_by_one, at_once = Expectations(5000), Expectations(5000)
    for path, size in closed:
        one_by_one.note(path, size)
    at_once.restore(closed)
    for name in (b"f1", b"f%d" % (2 * MOST - 1), b"f%d" % (3 * MOST), b"g"):
        assert at_once.of((b"d", name)) == one_by_one.of((b"d", name))
        assert at_once.known((b"d", name)) == one_by_one.known((b"d", name))
