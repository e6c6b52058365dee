"""Whether content gets to a tier: what asks it, and what its answers say."""

from __future__ import annotations

import pytest

from tierfs.health import Content, Limits, State

LIMITS = Limits(slow=1.0, hangs=5.0, down=5.0, calm=5.0)


@pytest.fixture
def content() -> Content:
    return Content(LIMITS)


def test_what_moves_is_not_asked_for(content: Content) -> None:
    for now in range(100):
        assert not content.is_due(now, 0.9, 0)
        assert content.read(now, 0.9).state is State.HEALTHY


def test_what_is_not_taken_is_slow_then_failing(content: Content) -> None:
    assert content.is_due(11.0, 1.0, 0)
    assert not content.is_due(12.0, 2.0, 1), "it is asked"
    assert content.read(11.5, 1.5).state is State.HEALTHY
    assert content.read(12.0, 2.0).state is State.SLOW
    found = content.read(16.0, 6.0)
    assert found.state is State.FAILING
    assert "nothing was taken for 6 s" in found.reason


def test_a_write_that_is_taken_may_wait_for_its_sync(content: Content) -> None:
    """It stands behind all that was sent before: at 1 MB/s that takes a while."""
    assert content.is_due(1.0, 1.0, 0)
    content.taken()
    assert content.read(30.9, 30.9).state is State.SLOW
    assert content.read(31.0, 31.0).state is State.FAILING, "for too long: a device that hangs"


def test_a_tier_of_which_only_pieces_are_late_is_slow(content: Content) -> None:
    for now in range(1, 120):
        if content.is_due(now, now, 0):
            content.taken()
            content.answered()
        assert content.read(now, now).state is (State.SLOW if now >= 5 else State.HEALTHY)


def test_bytes_are_an_answer(content: Content) -> None:
    assert content.is_due(1.0, 1.0, 0)
    assert content.read(7.0, 7.0).state is State.FAILING
    assert not content.is_due(8.0, 0.1, 1)
    assert content.read(11.9, 0.1).state is State.FAILING, "it gets better after a calm time"
    assert content.read(12.1, 0.1).state is State.HEALTHY
    assert content.is_due(18.0, 1.0, 1), "the question before hangs still"
    assert content.read(18.5, 1.5).state is State.HEALTHY, "the time counts from the new one"


def test_questions_that_hang_are_put_again_and_not_without_end(content: Content) -> None:
    asked = []
    for now in range(1, 200):
        if content.is_due(now, now, len(asked)):
            asked.append(now)
    assert asked == [1, 11, 21, 31]


def test_errors_are_failing(content: Content) -> None:
    assert content.is_due(1.0, 1.0, 0)
    content.failed("EIO")
    found = content.read(1.5, 1.5)
    assert found.state is State.FAILING
    assert "EIO" in found.reason
    assert content.is_due(3.0, 3.0, 0)
    content.answered()
    assert content.read(10.0, 0.0).state is State.HEALTHY
