"""Holds that time ends: temporary names, unlinks in a checkpoint, back-off, lingering files."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tierfs.model import REMOVALS, ObjectId, Op, OpKind, OpState
from tierfs.order.blocked import Blocked, Reason
from tierfs.order.classify import Klass
from tierfs.order.item import Item
from tierfs.order.settings import OrderSettings


@dataclass(slots=True)
class _Removal:
    """Unlinks pending in one checkpoint directory, and when it last changed.

    Attributes:
        asked: somebody waits for them: a flush, or what was issued later.
    """

    pending: int = 0
    last: float = 0.0
    asked: bool = False


class Holds:
    """Time holds of items. `now` is the caller's monotonic clock, in seconds.

    An item's holds begin when the clock is first seen after it came: calls without a time (add,
    update) are followed at once by one that has it.
    """

    def __init__(
        self, settings: OrderSettings, is_written: Callable[[ObjectId], bool] = lambda _: False,
        is_under_way: Callable[[Op], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        """`is_written`: whether a file in a directory is open for writing; `is_under_way`: whether
        who makes this removal in a sealed checkpoint may go on with it.
        """
        self._settings = settings
        self._is_written = is_written
        self._is_under_way = is_under_way
        self._fresh: dict[Item, None] = {}
        self._held: dict[Item, None] = {}
        self._timers: list[tuple[float, int, Item]] = []
        self._sequence = itertools.count()
        self._noted: set[ObjectId] = set()
        self._removals: dict[ObjectId, _Removal] = {}
        self._roots: dict[Item, ObjectId] = {}

    def begin(self, item: Item) -> None:
        """`item` came, or was flushed again: its holds begin anew."""
        item.since = None
        self._fresh[item] = None
        self._held.pop(item, None)
        root = self._root(item)
        if root is not None and item not in self._roots:
            self._roots[item] = root
            self._removals.setdefault(root, _Removal()).pending += 1
        # The commit name goes first, so nothing is gained by holding its unlink; a sealed
        # checkpoint is to be taken away whole.
        settles = root is not None and (not item.is_commit_unlink or item.op.group is not None)
        if settles or item.facts.placement.is_temporary:
            self._held[item] = None

    @property
    def are_there(self) -> bool:
        """Whether anything is held."""
        return bool(self._held)

    def end(self, item: Item) -> None:
        """`item` is gone."""
        self._fresh.pop(item, None)
        self._held.pop(item, None)
        self._leave(item)

    def drop(self, item: Item) -> bool:
        """End the hold of `item`; whether it had one."""
        return self._held.pop(item, self) is None

    def release(self, directory: ObjectId | None, keeps: Callable[[Op], bool]) -> list[Item]:
        """End the holds of what is pending now below `directory` (None: everywhere).

        What `keeps` its own does so until nothing more came for `group_settle`.
        """
        below = [i for i in self._held if directory is None or directory in i.facts.directories]
        freed = [item for item in below if not keeps(item.op)]
        for item in freed:
            del self._held[item]
        for item in below:
            if item in self._held and item in self._roots:
                self._removals[self._roots[item]].asked = True
        return freed

    def note(self, directory: ObjectId) -> None:
        """`directory` holds a committed commit name: unlinks in it are the removal of a whole."""
        self._noted.add(directory)

    def until(self, item: Item, now: float) -> Blocked | None:
        """The hold that `item` is under at `now`."""
        if item.not_before > now:
            return Blocked(Reason.BACK_OFF, until=item.not_before)
        if item not in self._held:
            return None
        since = now if item.since is None else item.since
        root = self._roots.get(item)
        if root is None:
            return _hold(Reason.TEMPORARY, since + self._settings.temporary_hold, now)
        last = max(since, self._removals[root].last)
        if item.op.group is not None:
            return _hold(Reason.SETTLE, self._settled(item, last, now), now)
        if self._is_written(root):
            settled, limit = now + self._settings.unlink_settle, self._settings.unlink_open_limit
        else:
            settled = last + self._settings.unlink_settle
            limit = self._settings.unlink_settle_limit
        return _hold(Reason.SETTLE, min(settled, since + limit), now)

    def _settled(self, item: Item, last: float, now: float) -> float:
        """Until when `item`, a removal in a sealed checkpoint, may be a part of that of all of it.

        The last one there was at `last`. While who makes them lives and is at nothing else, they
        are no edit, unless others have to wait for them.
        """
        settled, removal = last + self._settings.group_settle, self._removals[self._roots[item]]
        removal.asked = removal.asked or bool(item.waiters)
        if settled > now or removal.asked or not self._is_under_way(item.op):
            return settled
        return now + self._settings.unlink_settle

    def tick(self, now: float) -> Iterator[Item]:
        """Start the clocks of what came since the last call; then all whose time has come."""
        for item in self._fresh:
            self._start(item, now)
        self._fresh.clear()
        while self._timers and self._timers[0][0] <= now:
            yield heapq.heappop(self._timers)[2]

    def watch(self, item: Item, until: float) -> None:
        """Have `item` come out of `tick` at `until`."""
        heapq.heappush(self._timers, (until, next(self._sequence), item))

    def next_time(self) -> float | None:
        """When `tick` will next have something."""
        return self._timers[0][0] if self._timers else None

    def flushed(self, item: Item) -> None:
        """The state of `item` changed: see whether its RELEASE is being waited for."""
        if item.op.state is not OpState.CLOSED:
            item.flushed, item.lingering = None, False
        elif item.flushed is None:
            self._fresh[item] = None

    def linger(self, item: Item, now: float) -> bool:
        """Whether `item` has just become one that lingers; sets it."""
        if item.flushed is None or item.lingering:
            return False
        item.lingering = item.flushed + self._settings.linger <= now
        return item.lingering

    def _start(self, item: Item, now: float) -> None:
        if item.since is None:
            item.since = now
            root = self._roots.get(item)
            changed = item.facts.directories if root is None else (root,)
            for directory in changed:
                if directory in self._removals:
                    self._removals[directory].last = now
        if item.op.state is OpState.CLOSED and item.flushed is None:
            item.flushed = now
            self.watch(item, now + self._settings.linger)

    def _root(self, item: Item) -> ObjectId | None:
        """The checkpoint directory that a removal of `item` may be removing."""
        if item.op.group is not None and item.op.kind in REMOVALS:
            return item.op.group
        if item.op.kind is not OpKind.UNLINK or item.facts.placement.klass is not Klass.ORDERED:
            return None
        return item.facts.placement.checkpoint or next(
            (d for d in item.facts.directories if d in self._noted), None
        )

    def _leave(self, item: Item) -> None:
        root = self._roots.pop(item, None)
        if root is None:
            return
        removal = self._removals[root]
        removal.pending -= 1
        if not removal.pending:
            del self._removals[root]
            self._noted.discard(root)


def _hold(reason: Reason, until: float, now: float) -> Blocked | None:
    return Blocked(reason, until=until) if until > now else None
