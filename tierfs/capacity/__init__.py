"""What fits on the local tier, what has to go, who has to wait. Pure: no I/O, no clock."""

from tierfs.capacity.backlog import Limits, Turns, Waiting
from tierfs.capacity.expected import Expectations
from tierfs.capacity.full import Full, Next, what_now
from tierfs.capacity.promises import Promises, Written
from tierfs.capacity.watermarks import Marks, Usage, beyond, fits, to_evict

__all__ = [
    "Expectations",
    "Full",
    "Limits",
    "Marks",
    "Next",
    "Promises",
    "Turns",
    "Usage",
    "Waiting",
    "Written",
    "beyond",
    "fits",
    "to_evict",
    "what_now",
]
