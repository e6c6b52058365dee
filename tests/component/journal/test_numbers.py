"""Numbers are reserved before they are handed out."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tierfs.errors import JournalError
from tierfs.journal.numbers import BLOCK, Numbers


class Reservations:
    def __init__(self) -> None:
        self.asked: list[tuple[int, Future[None]]] = []

    def __call__(self, limit: int) -> Future[None]:
        self.asked.append((limit, Future()))
        return self.asked[-1][1]


def test_a_reservation_is_asked_for_a_block_before_it_is_needed() -> None:
    reserve = Reservations()
    numbers = Numbers(1, 1 + 2 * BLOCK, reserve)
    taken = [numbers.take() for _ in range(BLOCK)]
    assert reserve.asked == []
    taken.append(numbers.take())
    ((limit, future),) = reserve.asked
    assert limit == 1 + 3 * BLOCK
    future.set_result(None)
    taken.extend(numbers.take() for _ in range(BLOCK - 1))
    assert [limit for limit, _ in reserve.asked] == [1 + 3 * BLOCK]
    assert taken == list(range(1, 1 + 2 * BLOCK))


def test_an_unreserved_number_is_never_handed_out() -> None:
    reserve = Reservations()
    numbers = Numbers(1, 1 + 2 * BLOCK, reserve)
    for _ in range(2 * BLOCK):
        last = numbers.take()
    assert last == 2 * BLOCK
    reserve.asked[0][1].set_exception(JournalError("the drive is gone"))
    for _ in range(2):
        with pytest.raises(JournalError, match="gone"):
            numbers.take()


def test_who_has_the_last_number_keeps_it() -> None:
    numbers = Numbers(1, 1 + 2 * BLOCK, Reservations())
    held = numbers.take()
    assert numbers.take_behind(held) == held
    other = numbers.take()
    assert numbers.take_behind(held) == other + 1
    assert numbers.take() == other + 2
