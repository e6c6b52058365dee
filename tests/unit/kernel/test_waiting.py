"""Which waits for the next request are spent awake."""

import os

from tierfs.kernel.waiting import LEAST_SLEPT, MOST_SLEPT, NextRequest, Vigil


def slept(vigil: Vigil) -> int:
    """How many waits are slept through until the next one is due."""
    count = 0
    while not vigil.is_due():
        count += 1
    return count


def test_stays_awake_as_long_as_requests_come():
    vigil = Vigil()
    for _ in range(1000):
        assert vigil.is_due()
        vigil.ended(came=True)


def test_sleeps_longer_after_each_wait_in_vain():
    # a caller that has our processor can ask nothing while we stay awake
    vigil = Vigil()
    lengths = []
    for _ in range(8):
        assert vigil.is_due()
        vigil.ended(came=False)
        lengths.append(slept(vigil))
        assert vigil.is_due()
    assert lengths[:3] == [LEAST_SLEPT, 2 * LEAST_SLEPT, 4 * LEAST_SLEPT]
    assert lengths[-2:] == [MOST_SLEPT, MOST_SLEPT]


def test_a_request_that_came_ends_that():
    vigil = Vigil()
    for came in (False, False, False, True, False):
        slept(vigil)
        vigil.ended(came=came)
    assert slept(vigil) == LEAST_SLEPT


def test_returns_whether_something_comes_or_not():
    reader, writer = os.pipe()
    try:
        waits = NextRequest()
        for _ in range(3 * LEAST_SLEPT):
            waits.wait(reader)
        os.write(writer, b"x")
        for _ in range(3 * LEAST_SLEPT):
            waits.wait(reader)
        assert os.read(reader, 1) == b"x"
    finally:
        os.close(reader)
        os.close(writer)
