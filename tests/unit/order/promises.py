"""What DESIGN promises about the order, read naively from all that is pending: O(n) for each op,
written without the indexes of the backlog, to check it by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierfs.model import STAGED, Mark, Op, OpKind, OpState, staging_name
from tierfs.order import Klass, classify
from tierfs.order.classify import TAKING

if TYPE_CHECKING:
    from tests.unit.order.world import World

OPEN = (OpState.OPEN, OpState.CLOSED)


class Promises:
    """Checks each publication of `world`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open_at: dict[int, set[int]] = {}
        self._goes_first: dict[int, set[int]] = {}
        self._known: dict[int, int] = {}

    def issued(self, op: Op) -> None:
        """`op` was issued or flushed, or got another name."""
        placement = classify(op)
        is_flushed = bool(op.first) or op.kind is not OpKind.PUT
        if not placement.is_commit_name or not is_flushed or self._known.get(op.row) == op.number:
            return
        self._known[op.row] = op.number
        below = [o for o in self._others(op) if op.parent in inside(o)]
        if op.kind is OpKind.UNLINK:
            first = {o.row for o in below if self._is_movable(o)}
            self._goes_first[op.row] = first
        else:
            files = (o for o in below if o.kind is OpKind.PUT and not classify(o).is_log)
            self._open_at[op.row] = {o.row for o in files if o.state in OPEN}

    def forget_open_files(self) -> None:
        """After a crash no file is open."""
        self._open_at.clear()

    def check(self, op: Op) -> None:
        """Publishing `op` now breaks no promise."""
        others = self._others(op)
        for other in others:
            passed = self._world.backlog.is_held(other) or is_replaced(other, op)
            shared = keys(other) & keys(op) and other.number < op.number and not passed
            assert not shared, f"{op} before {other}: same name or object"
            assert not self._is_negative_for(other, op), f"{op} before {other}"
        placement = classify(op)
        self._check_rebuilt(op, others)
        if placement.klass is not Klass.ORDERED:
            return
        for other in others:
            covered = set(placement.cover) & inside(other) and not other.log
            if covered and self._before(other, op):
                self._check_cover(op, other)
        if op.kind is OpKind.UNLINK and not placement.is_commit_name:
            self._check_commit_name_first(op, others)
        if op.kind not in TAKING:
            self._check_marker(op, others)
        self._check_groups(op, others, placement.is_pointer)

    def _others(self, op: Op) -> list[Op]:
        return [other for other in self._world.pending.values() if other is not op]

    def _check_cover(self, op: Op, other: Op) -> None:
        if self._leads_to_unsealed(other):
            return
        if op.kind in TAKING:
            missed = other.kind not in TAKING and other.mark is not Mark.TORN
            assert not missed, f"removal {op} before the save {other}"
        elif other.kind not in TAKING:
            excused = other.mark is not None or self._is_withdrawn(other)
            assert excused, f"{op} before {other} in its cover"

    def _check_commit_name_first(self, op: Op, others: list[Op]) -> None:
        for other in others:
            is_marker = other.kind is OpKind.UNLINK and classify(other).is_commit_name
            if is_marker and other.parent in op.scope:
                assert other.number > op.number, f"{op} before the commit name {other}"
            first = self._goes_first.get(other.row, set())
            assert op.row not in first, f"{op} before the commit name {other}"

    def _check_marker(self, op: Op, others: list[Op]) -> None:
        assert not self._is_withdrawn(op), f"{op} is withdrawn"
        if not classify(op).is_commit_name:
            return
        for other in others:
            placement, item = classify(other), self._world.backlog._items[other.row]
            if placement.is_log or op.parent not in inside(other):
                continue
            newer = (other.parent, other.name) == (op.parent, op.name)  # version of the same name
            is_open = other.kind is OpKind.PUT and other.state in OPEN and not newer
            assert not is_open, f"{op}: {other} is open"
            in_place = other.first and not (item.lifted or item.lingering or other.mark)
            plain = placement.klass is not Klass.ORDERED
            was_open = other.row in self._open_at.get(op.row, set())
            assert not (was_open and in_place and plain), f"{op} before {other}, open at its issue"

    def _leads_to_unsealed(self, op: Op) -> bool:
        if op.kind is OpKind.RENAME and self._world.backlog._items[op.row].facts.aside:
            return True  # of such a pointer
        unsealed = self._world.unsealed
        if unsealed & inside(op) or not classify(op).is_pointer:
            return False
        since = self._world.since
        return any(op.number >= since.get(d, 0) for d in unsealed.intersection(op.targets))

    def _check_groups(self, op: Op, others: list[Op], is_pointer: bool) -> None:
        assert not self._world.backlog.is_held(op), f"{op} is held"
        if is_pointer:
            assert not self._leads_to_unsealed(op), f"{op}: its checkpoint is not sealed"
        if op.kind is OpKind.SEAL:
            late = [o for o in others if op.object in (*o.scope, *o.scope2)]
            assert not late, f"{op} before {late} in it"

    def _check_rebuilt(self, op: Op, others: list[Op]) -> None:
        items = self._world.backlog._items
        position = items[op.row].facts.position
        for other in others:
            rebuilds = other.kind in (OpKind.REOPEN, OpKind.TRASH)
            inside = other.object in (*op.scope, *op.scope2)
            if rebuilds and inside and not self._world.backlog.is_held(other):
                assert items[other.row].facts.position > position, f"{op} before {other}"
            if op.kind is OpKind.REOPEN and op.object in (*other.scope, *other.scope2):
                excused = other.kind in TAKING or other.mark is not None
                excused = excused or self._leads_to_unsealed(other)
                assert excused or not self._before(other, op), f"{op} without {other}"

    def _is_movable(self, unlink: Op) -> bool:
        """Whether nothing issued between needs `unlink` where it is."""
        world = self._world
        is_plain_unlink = unlink.kind is OpKind.UNLINK and not classify(unlink).is_commit_name
        if not is_plain_unlink or unlink in world.taken:
            return False
        above = {*zip(unlink.scope, unlink.path, strict=True)}
        later = [o for o in world.pending.values() if o.number > unlink.number]
        needed = any(keys(o) & (keys(unlink) | above) for o in later) or any(
            (o.kind is OpKind.RMDIR and o.object in unlink.scope)
            or (o.kind is OpKind.RENAME and o.overwrites and o.parent in unlink.scope)
            for o in later
        )
        return classify(unlink).klass is Klass.ORDERED and not needed

    def _is_negative_for(self, other: Op, op: Op) -> bool:
        negative = classify(other).negative
        if negative is None or other.mark or not other.first or other.state is OpState.OPEN:
            return False
        item, own = self._world.backlog._items[other.row], self._world.backlog._items[op.row]
        if item.lingering or item.facts.rank > own.facts.rank:
            return False
        directory, sibling = negative
        return any(
            here == directory and (not sibling or name in (sibling, sibling + b".ckpt"))
            for here, name in zip(op.scope, op.path, strict=True)
        )

    def _before(self, other: Op, op: Op) -> bool:
        """Whether `other` was issued before `op`, which ranks before the commit names that it was
        open for.
        """
        items = self._world.backlog._items
        item, number = items[other.row], min(op.number, items[op.row].facts.position[0])
        if other.kind is OpKind.PUT:
            if not other.first or item.lingering:
                return False
            if classify(other).klass is not Klass.ORDERED:
                return not item.lifted and other.first < number
        return other.number < number

    def _is_withdrawn(self, op: Op) -> bool:
        """Whether a mark keeps `op` itself from being published."""
        placement = classify(op)
        watched = {op.parent} if placement.is_commit_name else set()
        watched |= {*op.targets} if placement.is_pointer else set()
        marked = [other for other in self._others(op) if other.mark is not None]
        return any(watched & inside(other) and not classify(other).is_log for other in marked)


def keys(op: Op) -> set[tuple[int, bytes | None]]:
    """What must be applied in number order."""
    name, source = (op.parent, op.name), (op.parent2 or 0, op.name2)
    found = {(op.object, b""), name, source} - {(0, None)}
    directory, checkpoint = source if op.kind is OpKind.RENAME else name
    if op.kind in (OpKind.SEAL, OpKind.REOPEN) or STAGED in op.fields:
        found.add((directory, staging_name(checkpoint)))
    if op.kind is OpKind.MKDIR and STAGED in op.fields:
        found.remove(name)
    return found


def is_replaced(other: Op, seal: Op) -> bool:
    """Whether `other` is the removal of the checkpoint that `seal` replaces."""
    if seal.kind is not OpKind.SEAL or other.kind not in (OpKind.TRASH, OpKind.RMDIR):
        return False
    return other.object != seal.object and STAGED not in other.fields


def inside(op: Op) -> set[int]:
    """The directories in whose subtrees `op` lies."""
    made = (OpKind.MKDIR, OpKind.SEAL, OpKind.REOPEN)
    return {*op.scope, *op.scope2, *((op.object,) if op.kind in made else ())}
