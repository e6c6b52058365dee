"""Helpers of the tests that use a real mount: nodes, devices that fail, and what to compare."""

from tests.harness.devices import LoopDevice, frozen, hangs, immutable, shut_down, stuttering
from tests.harness.errors import fails_with
from tests.harness.events import Event, Recorder
from tests.harness.faulty import FaultyTier
from tests.harness.node import CommandResult, Node
from tests.harness.trees import Difference, compare, snapshot
from tests.harness.users import as_user
from tests.harness.waiting import wait_until

__all__ = [
    "CommandResult",
    "Difference",
    "Event",
    "FaultyTier",
    "LoopDevice",
    "Node",
    "Recorder",
    "as_user",
    "compare",
    "fails_with",
    "frozen",
    "hangs",
    "immutable",
    "shut_down",
    "snapshot",
    "stuttering",
    "wait_until",
]
