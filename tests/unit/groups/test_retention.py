"""Which checkpoints `keep_last` and `keep_every` remove."""

from __future__ import annotations

import pytest

from tierfs.groups.retention import surplus

STEPS = [b"checkpoint-1000", b"checkpoint-500", b"checkpoint-1500", b"checkpoint-2000"]


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "gone"),
    [
        (0, 0, []),
        (0, 1000, []),
        (1, 0, [500, 1000, 1500]),
        (2, 0, [500, 1000]),
        (4, 0, []),
        (9, 0, []),
        (1, 1000, [500, 1500]),
        (2, 1, []),
    ],
)
def test_by_number(keep_last: int, keep_every: int, gone: list[int]) -> None:
    found = surplus(STEPS, keep_last=keep_last, keep_every=keep_every)
    assert found == [b"checkpoint-%d" % step for step in gone]


def test_numbers_are_no_texts() -> None:
    assert surplus([b"step_9", b"step_10"], keep_last=1, keep_every=0) == [b"step_9"]


def test_series_of_other_names_are_apart() -> None:
    found = surplus([b"step_1", b"step_2", b"iter_0000001"], keep_last=1, keep_every=0)
    assert found == [b"step_1"]


def test_the_last_number_is_the_step() -> None:
    names = [b"epoch=2-step=10.ckpt", b"epoch=1-step=20.ckpt", b"epoch=0-step=30.ckpt"]
    assert surplus(names, keep_last=1, keep_every=10) == []
    assert surplus(names, keep_last=1, keep_every=20) == [names[0]]


def test_what_is_named_stays_and_counts_for_nothing() -> None:
    found = surplus(STEPS, keep_last=2, keep_every=0, keep={b"checkpoint-500"})
    assert found == [b"checkpoint-1000"]


def test_nothing_of_nothing() -> None:
    assert surplus([], keep_last=1, keep_every=0) == []
