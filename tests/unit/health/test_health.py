"""The state of a tier: what makes it worse, and when it is believed again."""

from __future__ import annotations

import pytest

from tierfs.health import Health, Limits, Reading, Silence, State, worse

LIMITS = Limits(slow=1.0, hangs=5.0, down=5.0, calm=5.0)


@pytest.fixture
def health() -> Health:
    found = Health(LIMITS)
    found.answered(0.0, 0.01)
    return found


def test_what_answers_fast_is_healthy(health: Health) -> None:
    assert health.read(1.0) == Reading(State.HEALTHY)


def test_an_idle_tier_stays_healthy_for_ever(health: Health) -> None:
    assert health.read(1e6).state is State.HEALTHY


def test_slow_answers_are_no_more_than_slow(health: Health) -> None:
    for second in range(1, 60):
        health.answered(second, 3.0)
        assert health.read(second, oldest=2.9).state <= State.SLOW
    assert health.read(59.5).state is State.SLOW
    assert "3.0 s" in health.read(59.5).reason


def test_nothing_answered_is_down(health: Health) -> None:
    assert health.read(3.0, oldest=2.0).state is State.SLOW
    found = health.read(7.0, oldest=6.0)
    assert found.state is State.DOWN
    assert "6 s" in found.reason


def test_one_call_that_hangs_beside_others_that_do_not(health: Health) -> None:
    for second in range(1, 40):
        health.answered(second, 0.01)
        state = health.read(second, oldest=second, hanging=int(second > 5)).state
        assert state is (State.FAILING if second > 5 else State.HEALTHY)


def test_errors_are_failing_then_down(health: Health) -> None:
    health.failed(10.0, "EIO")
    assert health.read(10.0) == Reading(State.FAILING, "calls fail: EIO")
    health.failed(15.5, "EIO")
    assert health.read(15.5).state is State.DOWN


def test_it_gets_better_only_after_a_calm_time(health: Health) -> None:
    health.failed(10.0, "EIO")
    assert health.read(10.0).state is State.FAILING
    health.answered(10.5, 0.01)
    assert health.read(14.9).state is State.FAILING
    assert health.read(15.1).state is State.HEALTHY


def test_flapping_does_not_look_healthy(health: Health) -> None:
    for second in range(10, 60, 4):
        health.failed(second, "EIO")
        assert health.read(second).state >= State.FAILING
        health.answered(second + 1, 0.01)
        assert health.read(second + 1).state >= State.FAILING
        assert health.read(second + 3).state >= State.FAILING


def test_the_worse_of_two() -> None:
    slow, down = Reading(State.SLOW, "s"), Reading(State.DOWN, "d")
    assert worse(slow, down) == worse(down, slow) == down
    assert State.DOWN.label == "down"


def test_silence_begins_when_nothing_comes_back() -> None:
    silence = Silence(1.0)
    silence.answered(10.0, 0.01)
    assert not silence.look(10.9, oldest=0.9)
    assert silence.look(11.0, oldest=1.0)
    assert silence.now
    assert silence.since == 11.0
    assert not silence.look(12.0, oldest=2.0), "it began before"


def test_one_call_that_hangs_is_no_silence() -> None:
    silence = Silence(1.0)
    for tenth in range(100):
        silence.answered(tenth / 10, 0.01)
        assert not silence.look(tenth / 10 + 0.05, oldest=tenth / 10)
    assert not silence.now


def test_an_error_is_silence_until_answers_come_in_a_row() -> None:
    silence = Silence(1.0)
    assert silence.failed(5.0)
    assert not silence.answered(5.1, 0.01)
    assert not silence.answered(5.2, 0.01)
    assert not silence.failed(5.3)
    assert not silence.answered(5.4, 0.01)
    assert not silence.answered(5.5, 3.0), "a slow answer does not count"
    assert not silence.answered(5.6, 0.01)
    assert not silence.answered(5.7, 0.01)
    assert silence.answered(5.8, 0.01)
    assert not silence.now
