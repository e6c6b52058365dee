"""What is said of a removal that is held."""

from __future__ import annotations

import time
from typing import Any, cast

from tierfs.model import Op
from tierfs.writeback.removals import Removals
from tierfs.writeback.settings import WritebackSettings

REASON = "it is the last whole checkpoint there"


def test_a_full_tier_says_when_a_held_removal_goes() -> None:
    full = False
    settings = WritebackSettings(full_hold=600.0)
    removals = Removals(cast(Any, None), settings, lambda: full, lambda name: True)
    issued = time.time_ns() - 100 * 10**9
    op = cast(Op, type("Held", (), {"timestamp_ns": issued}))
    assert removals.told(op, REASON) == REASON
    full = True
    said = removals.told(op, REASON)
    assert said.startswith(f"{REASON}; the shared tier is full: it goes in ")
    assert 490 <= int(said.partition("goes in ")[2].split()[0]) <= 500
    assert said.endswith("by tierfs purge at once")
