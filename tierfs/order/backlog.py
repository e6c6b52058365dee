"""The backlog: all pending ops, and which of them may be worked on now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tierfs.model import Name, ObjectId, Op, OpKind, OpState, Phase
from tierfs.order import retract
from tierfs.order.blocked import Blocked, Reason, show
from tierfs.order.classify import Placement, classify
from tierfs.order.dependents import Dependents
from tierfs.order.held import HeldRemovals
from tierfs.order.holds import Holds
from tierfs.order.hopeless import Hopeless
from tierfs.order.indexes import Indexes
from tierfs.order.item import Item, fields_of
from tierfs.order.lookups import Lookups
from tierfs.order.ready import Ready, Work, work_of
from tierfs.order.rules import Rules, Unsealed
from tierfs.order.settings import OrderSettings

_EXCLUDED = frozenset({OpKind.SEAL, OpKind.TRASH, OpKind.RMDIR})
"""Others wait for these only while they are being published."""

_RENAMEABLE = frozenset({OpKind.PUT, OpKind.SYMLINK, OpKind.LINK})


class Backlog(Lookups):
    """All pending ops in their order; pure: no I/O, no await, time is an argument.

    `now` is the caller's monotonic clock in seconds. Ops are added in the order of their numbers.
    The backlog reads an op's fields when it is told of a change, so tell it after each one; the
    only fields that it writes are those that `renumber` and `retarget` name. Calls cost
    O(log n): a waiting op is parked under one op that it waits for, the latest, and is looked at
    again only when that one changes. An op that is not in the backlog is a KeyError.

    Attributes:
        is_under_way: whether who makes this removal in a sealed checkpoint may go on with it.
    """

    def __init__(self, settings: OrderSettings | None = None) -> None:
        self._settings = settings or OrderSettings()
        self._indexes = Indexes()
        self._rules = Rules(self._indexes, self._settings.small_bytes)
        self._dependents = Dependents(self._indexes)
        self._hopeless = Hopeless(self._dependents)
        self._holds = Holds(
            self._settings, lambda d: self._indexes.opened.first(d) is not None,
            lambda op: self.is_under_way(op),
        )  # fmt: skip
        self.is_under_way: Callable[[Op], bool] = lambda op: False
        self._ready = Ready()
        self._removals = HeldRemovals(self._indexes)
        self._items = {}
        self._recheck: dict[Item, None] = {}
        self._passing: dict[Item, None] = {}
        self.examined = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, op: Op) -> bool:
        return op.row in self._items

    # Changes

    def add(self, op: Op) -> None:
        """`op` was issued, or its file was created. ValueError when its row is known already."""
        if op.row in self._items:
            raise ValueError(f"row {op.row} is in the backlog already")
        item = Item(op, seen=fields_of(op, self._settings.small_bytes))
        self._let_go(self._removals.ended_by(op))
        item.facts = self._rules.facts(item, op, self._classify(op))
        self._items[op.row] = item
        self._removals.issued(item)
        self._indexes.place(item)
        self._holds.begin(item)
        self._changed(item)
        if self._rules.affects_others(item):  # hardly ever
            self._reindex(self._rules.affected(item))
        self._end_temporary_holds(item)
        self._hold_open_files_before(item)
        self._retract(item)

    def remove(self, op: Op) -> None:
        """`op` was committed or dropped."""
        self._let_go(self._removals.ended(self._items[op.row]))
        item = self._items.pop(op.row)
        item.held = None
        affected = list(self._rules.affected(item))
        self._unpark(item)
        self._ready.discard(item)
        self._recheck.pop(item, None)
        self._passing.pop(item, None)
        self._indexes.unplace(item)
        self._holds.end(item)
        self._hopeless.gone(item)
        self._wake(item)
        self._reindex(affected)

    def renumber(self, op: Op, number: int) -> None:
        """The file of `op` was flushed: its place is now `number`, and `op.first` the first such.

        It keeps its number while something issued since needs its name or object where it is.
        Sets `op.number` and `op.first`; its state is the caller's to set, before this call.
        """
        item = self._items[op.row]
        position = item.facts.position
        if all(self._indexes.same.next_after(key, position) is None for key in item.facts.keys):
            op.number = number
        op.first = op.first or (number if item.floor is None else min(number, item.floor))
        item.flushed, item.lingering = None, False
        self._holds.begin(item)
        self.update(op)
        self._retract(item)

    def retarget(
        self,
        op: Op,
        parent: ObjectId,
        name: Name,
        scope: tuple[ObjectId, ...],
        path: tuple[Name, ...],
        number: int,
        overwrites: bool | None = None,
    ) -> None:
        """A file (or symlink, link) whose op is pending was renamed; sets these fields of `op`.

        What waited for it goes on doing so, unless it must wait for something issued since; when
        that is not enough (`depended`), issue a RENAME op instead. ValueError for other kinds.
        """
        if op.kind not in _RENAMEABLE:
            raise ValueError(f"{op.kind} of {show(op)} is renamed by an op of its own")
        item = self._items[op.row]
        op.parent, op.name, op.scope, op.path, op.number = parent, name, scope, path, number
        if overwrites is not None:
            op.overwrites = overwrites
        self.update(op)
        self._holds.begin(item)
        self._end_temporary_holds(item)
        self._retract(item)

    def update(self, op: Op) -> None:
        """Any field of `op` changed: state, mark, phase, size, object, targets."""
        item = self._items[op.row]
        self._recheck[item] = None
        if op.kind in _EXCLUDED:
            self._wake(item)
        seen, item.seen = item.seen, fields_of(op, self._settings.small_bytes)
        if seen == item.seen:
            return
        self._holds.flushed(item)
        placed = seen[0] == item.seen[0]
        self._reindex([item], None if placed else self._classify(op))
        if seen[1][:2] != item.seen[1][:2]:
            self._hold_open_files_before(item)

    def sealed_around(self, op: Op) -> None:
        """The checkpoint that `op` lies in was sealed after it was issued: `op.group` says so."""
        self.update(op)
        self._holds.begin(self._items[op.row])

    def done_with(self, op: Op) -> None:
        """The worker that took `op` gives it back: staged, or failed."""
        item = self._items[op.row]
        item.taken = False
        self.update(op)

    def back_off(self, op: Op, until: float) -> None:
        """`op` failed: it stays in the order, but is not taken before `until`."""
        item = self._items[op.row]
        item.not_before = until
        self._recheck[item] = None

    def note_commit_names(self, directory: ObjectId) -> None:
        """`directory` holds a committed commit name, so unlinks in it wait to see it unlinked.

        To be called before such an unlink is added, where the name of the directory does not
        say that it is a checkpoint.
        """
        self._holds.note(directory)

    def release_holds(
        self, directory: ObjectId | None = None, keeps: Callable[[Op], bool] = lambda op: False
    ) -> None:
        """End the time holds of what is pending now below `directory` (None: everywhere), but for
        what `keeps` its own.
        """
        self._recheck.update(dict.fromkeys(self._holds.release(directory, keeps)))

    def release_hold(self, op: Op) -> None:
        """End the time hold of `op` alone; it may be over."""
        item = self._items.get(op.row)
        if item is not None and self._holds.drop(item):
            self._recheck[item] = None

    def group_unsealed(self, directory: ObjectId, name: Name, since: int = 0) -> None:
        """The checkpoint `directory`, called `name`, is not sealed: pointers to it are held.

        They are in the order again behind a SEAL of it that is pending, and after
        :meth:`group_sealed`. `name` is for messages. `since` is the number of its REOPEN:
        pointers issued before mean the generation before, and go on; kept when it is unsealed
        already.
        """
        known = self._rules.unsealed.get(directory)
        self._rules.unsealed[directory] = Unsealed(name, since if known is None else known.since)
        self._reindex([*self._indexes.seals.items((directory, b""))])
        self._reindex(self._pointers_about(directory))

    def group_sealed(self, directory: ObjectId) -> None:
        """The checkpoint `directory` is sealed, or no checkpoint any more; unknown: no change."""
        if self._rules.unsealed.pop(directory, None) is not None:
            self._reindex([*self._indexes.seals.items((directory, b""))])
            self._reindex(self._pointers_about(directory))

    def hold_removal(self, op: Op, reason: str) -> bool:
        """Hold the TRASH `op`, the removals inside what it takes away, and its RMDIR.

        They are out of the order: not taken, and nobody waits for them. Ends by
        :meth:`release_removal`, when `op` is dropped, and when an op is issued that needs the name
        `op` takes away or removes a directory above it. False, and not held, when such an op is
        pending already. ValueError for other kinds.
        """
        if op.kind is not OpKind.TRASH:
            raise ValueError(f"{op.kind} of {show(op)} is no removal of a checkpoint")
        parts = self._removals.hold(self._items[op.row], reason)
        self._reindex(parts)
        return bool(parts)

    def is_needed(self, op: Op) -> bool:
        """Whether something issued since needs the TRASH `op` done: it cannot be held."""
        return self._removals.is_needed(self._items[op.row])

    def release_removal(self, op: Op) -> None:
        """End that hold, if there is one: all of it is in the order again."""
        self._let_go(self._removals.ended(self._items[op.row]))

    def let_pass(self, op: Op) -> None:
        """The removal `op` waits no more for the saves issued before it: it makes room for them.

        For what is marked and for what shares its name it waits as before. ValueError for other
        kinds.
        """
        item = self._items[op.row]
        if not item.is_removal:
            raise ValueError(f"{op.kind} of {show(op)} is no removal")
        item.makes_room = True
        self._passing[item] = None
        self._recheck[item] = None

    def let_none_pass(self) -> None:
        """The removals that went before the saves have their place behind them again."""
        passing, self._passing = self._passing, {}
        for item in passing:
            item.makes_room = False
            self._recheck[item] = None

    # Questions

    def take(
        self,
        now: float,
        want: Callable[[Op], bool] | None = None,
        *,
        work: Collection[Work] = tuple(Work),
    ) -> Op | None:
        """The oldest op that can be worked on and that `want` accepts; it is then taken.

        A PUT whose phase is below STAGED is to be staged, everything else to be published or
        applied. What is not `work` is not even looked at, while `want` is asked about every
        ready op. Given back by `done_with`, or removed.
        """
        self._advance(now)
        while True:
            ready = self._ready.oldest_first(work)
            item = next((it for it in ready if want is None or want(it.op)), None)
            if item is None:
                return None
            # Others may have been marked or opened since it became ready.
            if self._examine(item, now):
                item.taken = True
                self._ready.discard(item)
                return item.op

    def may_publish(self, op: Op, now: float) -> Blocked | None:
        """Why `op` may not be published or applied yet; None: its turn has come."""
        self._advance(now)
        item = self._items[op.row]
        gate = self._gate(item, now)
        if gate is not None:
            return gate
        aside = self._aside(item)
        if aside is not None:
            return aside
        wait = self._rules.wait(item, latest=False)
        return None if wait is None else Blocked(wait.reason, by=wait.item.op)

    def next_time(self, now: float) -> float | None:
        """When a hold or back-off will end (not before `now`); None: none is running."""
        self._advance(now)
        return self._holds.next_time()

    def depended(self, op: Op, besides: Op | None = None) -> bool:
        """Whether something issued later waits for `op`: it must not be dropped or superseded.

        `besides` does not count: it is what would supersede it. Of a marked op only what shares
        its name or object counts, for the rest a newer version is what they wait for; so it is
        of a held pointer. A SEAL can always be dropped until it is being published.
        """
        item = self._items[op.row]
        if op.kind is OpKind.SEAL and op.phase is not Phase.PUBLISHING:
            return False
        found = self._dependents.of(item)
        if item.facts.mark is not None or item.facts.aside:
            found = self._dependents.bound_to(item)
        return any(one.op is not besides for one in found)

    def blocked_for_good(self, op: Op, now: float) -> list[Op]:
        """A marked, open or held op that `op` is, or waits for, however indirectly; else empty.

        A flush cannot wait for it: only a retry, the user, the writer or a seal ends that. A held
        removal (`is_held`) is one too, though a flush does not even count it.
        """
        self._advance(now)
        root = self._hopeless.root(self._items[op.row])
        return [] if root is None else [root.op]

    def explain(self, op: Op, now: float) -> str:
        """One line for people: what `op` is waiting for."""
        item = self._items[op.row]
        if item.taken:
            return f"{show(op)} is being sent"
        blocked = self.may_publish(op, now)
        return f"{show(op)} is next" if blocked is None else blocked.sentence(op, now)

    def is_held(self, op: Op) -> bool:
        """Whether `op` is a held removal, or part of one: it does not count as pending."""
        return self._items[op.row].held is not None

    def held(self) -> list[tuple[Op, str]]:
        """The TRASHes that are held, and why."""
        return [(item.op, item.held or "") for item in self._removals]

    # Inside

    def _classify(self, op: Op) -> Placement:
        return classify(op, self._settings.small_bytes)

    def _reindex(
        self, items: Iterator[Item] | list[Item], placement: Placement | None = None
    ) -> None:
        """Index `items` anew (the first as `placement`), then all whose place depends on them."""
        todo = list(items)
        while todo:
            item = todo.pop()
            facts = self._rules.facts(item, item.op, placement or item.facts.placement)
            placement = None
            if facts == item.facts:
                continue
            if self._rules.affects_others(item):
                todo += self._rules.affected(item)
            self._ready.discard(item)
            self._indexes.move(item, facts)
            self._changed(item)
            if self._rules.affects_others(item):
                todo += self._rules.affected(item)

    def _changed(self, item: Item) -> None:
        self._hopeless.changed(item)
        self._wake(item)
        self._recheck[item] = None

    def _wake(self, item: Item) -> None:
        """Look again at what is parked under `item`."""
        for waiter in item.waiters:
            waiter.blocker = None
            self._recheck[waiter] = None
        item.waiters.clear()

    def _unpark(self, item: Item) -> None:
        if item.blocker is not None:
            del item.blocker.waiters[item]
            item.blocker = None

    def _end_temporary_holds(self, item: Item) -> None:
        """A temporary name that something else concerns now has served its time."""
        if not self._holds.are_there:
            return
        for key in item.facts.keys:
            earlier = self._indexes.same.before(key, item.facts.position)
            if earlier is not None and earlier.facts.placement.is_temporary:
                self._holds.drop(earlier)
                self._recheck[earlier] = None

    def _hold_open_files_before(self, item: Item) -> None:
        """What is open while a commit name is issued is waited for until it is committed."""
        flushed = item.op.kind is not OpKind.PUT or item.op.first
        if item.is_removal or not item.facts.placement.is_commit_name or not flushed:
            return
        number = item.facts.position[0]
        for opened in list(self._indexes.opened.items(item.facts.parent)):
            if opened is not item and (opened.floor is None or opened.floor >= number):
                opened.floor = number - 1
                self._reindex([opened])

    def _retract(self, first: Item) -> None:
        """Have what vouches for a checkpoint, or all of it, taken away before what is in it."""
        moved = retract.behind(self._indexes, first)
        for place, item in enumerate(moved, start=1):
            item.moved = (first.op.number, place)
            if not first.is_commit_unlink:
                self._holds.drop(item)
        # From the last on, so that no two of a key ever change places.
        self._reindex(moved)

    def _pointers_about(self, directory: ObjectId) -> list[Item]:
        """The pointers to `directory`, and those in it."""
        inside = self._indexes.everything.items(directory)
        found = [*self._indexes.pointers.items(directory), *(i for i in inside if i.facts.targets)]
        return [*dict.fromkeys(found)]

    def _let_go(self, parts: list[Item]) -> None:
        """`parts` of a removal are not held any more."""
        if parts:
            for item in parts:
                item.held = None
            self._reindex(parts)

    def _advance(self, now: float) -> None:
        for item in self._holds.tick(now):
            if item.op.row in self._items and self._items[item.op.row] is item:
                if self._holds.linger(item, now):
                    self._reindex([item])
                self._recheck[item] = None
        recheck, self._recheck = self._recheck, {}
        for item in recheck:
            self._examine(item, now)

    def _examine(self, item: Item, now: float) -> bool:
        """Find out whether `item` can be worked on, and put it where it will be found again."""
        self.examined += 1
        self._unpark(item)
        self._ready.discard(item)
        if item.taken:
            return False
        gate = self._gate(item, now)
        if gate is not None:
            if gate.until is not None:
                self._holds.watch(item, gate.until)
            return False
        if item.facts.aside and not item.to_stage:
            return False
        wait = None if item.to_stage else self._rules.wait(item, latest=True)
        if wait is not None:
            item.blocker = wait.item
            wait.item.waiters[item] = None
            return False
        self._ready.add(item, work_of(item))
        return True

    def _gate(self, item: Item, now: float) -> Blocked | None:
        """Why `item` itself cannot go on, whatever others do."""
        op = item.op
        if op.mark is not None:
            return Blocked(Reason.MARKED)
        if op.kind is OpKind.PUT and op.state in (OpState.OPEN, OpState.CLOSED):
            return Blocked(Reason.OPEN)
        return self._holds.until(item, now)

    def _aside(self, item: Item) -> Blocked | None:
        """What holds `item` out of the order, if that is no other op."""
        if item.held is not None:
            return Blocked(Reason.REMOVAL, detail=item.held)
        target = self._rules.unsealed_target(item.facts)
        if target is None or not item.facts.aside:
            return None
        name = self._rules.unsealed[target].name
        return Blocked(Reason.UNSEALED, detail=repr(name.decode(errors="backslashreplace")))
