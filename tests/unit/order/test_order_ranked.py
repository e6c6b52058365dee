"""The index of the backlog against a list that is sorted anew for each question."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from tierfs.order.ranked import Ranked

STEPS = st.lists(st.tuples(st.sampled_from("aaarq"), st.integers(0, 30)), max_size=40)


@given(STEPS)
def test_items_are_in_order_whenever_they_are_asked_for(steps: list[tuple[str, int]]) -> None:
    ranked: Ranked[str] = Ranked(lambda item: item.position)  # type: ignore[attr-defined]
    there: list[Any] = []
    for row, (what, number) in enumerate(steps):
        position = (number, 0, row)
        if what == "a":
            item: Any = SimpleNamespace(position=position)
            there.append(item)
            ranked.add("key", item)
        elif what == "r" and there:
            ranked.remove("key", there.pop(number % len(there)))
        else:
            there.sort(key=lambda item: item.position)
            below = [item for item in there if item.position < position]
            assert list(ranked.items("key")) == there
            assert ranked.before("key", position) is (below[-1] if below else None)
            assert list(ranked.below("key", position, latest=False)) == below
            assert list(ranked.after("key", position)) == there[len(below) :]
    assert bool(ranked) == bool(there)
