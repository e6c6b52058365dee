"""The order of the write-back (R1, R2 of DESIGN 5): which op is plain or ordered, its cover, and
who waits for whom. Pure: no I/O, no await, time is an argument.
"""

from tierfs.order import names
from tierfs.order.backlog import Backlog
from tierfs.order.blocked import Blocked, Reason
from tierfs.order.classify import Klass, Placement, classify
from tierfs.order.ready import Work
from tierfs.order.settings import OrderSettings

__all__ = [
    "Backlog",
    "Blocked",
    "Klass",
    "OrderSettings",
    "Placement",
    "Reason",
    "Work",
    "classify",
    "names",
]
