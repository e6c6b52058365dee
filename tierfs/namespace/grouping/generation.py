"""How, and from where in the order, a sealed checkpoint that is changed gets its next generation.

The next generation begins before the first removal in it that is still to be made: what is removed
and given again is so in the next one, and a marker that is written again is one of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierfs.groups import END_MARKERS
from tierfs.model import REMOVALS, ObjectId, Op, OpKind, Phase, Reopen
from tierfs.order import Backlog

_MAKE_NO_NAME = REMOVALS | {OpKind.SETATTR}


def how_to_edit(
    backlog: Backlog, sealed: ObjectId, removed: Sequence[Op], *, killed: bool
) -> Reopen | None:
    """What has to be done before `removed` are made in the checkpoint `sealed`; None: nothing.

    Where names are given again it stays whole as it is until the next generation is, too; where
    their remover was `killed`, until its own removal, which has its place in the order, may go. One
    that loses its end marker is whole no more.
    """
    again = [op for op in removed if _is_given_again(backlog, op)]
    markers = [op for op in removed if op.parent == sealed and op.name in END_MARKERS]
    if killed or (again and all(marker in again for marker in markers)):
        return Reopen.LINKED
    return Reopen.WHOLE if markers else None


def first_number(backlog: Backlog, sealed: ObjectId, removed: Sequence[Op], following: int) -> int:
    """The number of the REOPEN: before `removed`, or `following` where nothing is removed.

    It stands behind what gave the checkpoint its place, and what is being published in it.
    """
    waiting = [op.number for op in removed if op.phase is not Phase.PUBLISHING]
    if not waiting:
        return following
    placed = [op.number for op in backlog.ops_of_object(sealed)]
    return max([min(waiting) - 1, backlog.last_published_in(sealed), *placed])


def _is_given_again(backlog: Backlog, removal: Op) -> bool:
    last = backlog.of_name(removal.parent, removal.name)
    return (
        last is not None
        and last.kind not in _MAKE_NO_NAME
        and (last.parent, last.name) == (removal.parent, removal.name)
        and not last.log
    )
