"""The small world with checkpoints that are staged, sealed, begun anew and taken away whole."""

from __future__ import annotations

from tests.unit.order.world import Node, Spot, World
from tierfs.model import (
    REMOVALS,
    STAGED,
    TRASH,
    ObjectId,
    Op,
    OpKind,
    Reopen,
    staging_name,
)
from tierfs.namespace.grouping.generation import first_number
from tierfs.order import Backlog

GROUP_NAMES = ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


class GroupsWorld(World):
    """`sealed` and `unsealed` say which directories are checkpoints, as the mount sees it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sealed: set[ObjectId] = set()
        self.old: dict[ObjectId, ObjectId] = {}  # generation under the final name of a reopened one
        self.seen: set[str] = set()
        self.at_end = False

    def group_of(self, scope: tuple[ObjectId, ...]) -> ObjectId | None:
        return next((d for d in scope if d in self.sealed or d in self.unsealed), None)

    def is_free(self, directory: ObjectId) -> bool:
        """What of a new generation is removed or moved while the old one is there is not this."""
        below = [d for d in self.directories() if directory in self.where(d)[0]]
        return not self.old.keys() & {*below, *self.where(directory)[0]}

    def may_move(self, node: Node, new: Spot) -> bool:
        """Neither a checkpoint into another, nor a pointer into what it may lead to."""
        below = [d for d in self.directories() if node.object in self.where(d)[0]]
        fixed = {*below} & (self.sealed | self.unsealed) or (node.put and node.put.targets)
        if fixed and self.group_of(self.where(new[0])[0]):
            return False
        return node.kind is not OpKind.MKDIR or self.is_free(node.object)

    # Issuing

    def place_in_group(self, op: Op) -> None:
        ends = [self.group_of(scope) for scope in (op.scope, op.scope2) if scope]
        for end in ends:
            self.drop_seal(end)
        op.unsealed = all(end in self.unsealed for end in ends)
        op.group = ends[0] if op.kind in REMOVALS and ends[0] in self.sealed else None

    def drop_seal(self, group: ObjectId | None) -> None:
        for op in list(self.pending.values()):
            if op.kind is OpKind.SEAL and op.object == group:
                self.drop(op)
                self.seen.add("dropped seal")
                self.drop_obsolete()

    def drop_obsolete(self) -> None:
        for op in self.backlog.obsolete_pointers():
            self.drop(op)
            self.seen.add("obsolete pointer")

    def drop(self, op: Op) -> None:
        super().drop(op)
        if op.kind is OpKind.MKDIR and op.parent == self.up[op.object][0]:
            gone = (op.parent, op.name) not in self.logical
            if gone and op.object not in self.shared.values():
                self.no_group(op.object)

    def droppable(self, op: Op, besides: Op | None = None) -> bool:
        """A held pointer has a newer version or goes, however far it has come."""
        leads = {*op.targets} & self.unsealed and op.row in self.pending
        if leads and not self.backlog.depended(op, besides=besides):
            return True
        return super().droppable(op, besides)

    def group(self) -> None:
        spot = self.free_spot(GROUP_NAMES)
        if spot is not None and self.group_of(self.where(spot[0])[0]) is None:
            self.make_group(spot)

    def make_again(self) -> None:
        """The same step once more, the old one removed first."""
        found = [(s, n) for s, n in self.logical.items() if n.object in self.sealed]
        if found and self.random.random() < 0.5:
            spot, node = self.random.choice(found)
            self._rmtree(spot, node)
            self._write((self.make_group(spot), b"a.bin"), self.new_object())

    def make_group(self, spot: Spot) -> ObjectId:
        made = self.new_object()
        self.up[made] = spot
        self.unsealed.add(made)
        self.backlog.group_unsealed(made, spot[1])
        self.issue(OpKind.MKDIR, spot, made, fields=(STAGED,))
        self.logical[spot] = Node(made, OpKind.MKDIR)
        return made

    def _write(self, spot: Spot, object_id: ObjectId) -> None:
        group = self.group_of(self.where(spot[0])[0])
        if group in self.sealed and self.concerns(spot):
            self.reopen(group, Reopen.LINKED)
        super()._write(spot, object_id)
        if spot[1] == b"latest":
            op = self.logical[spot].put
            op.targets = (self.random.choice(self.directories()),)
            self.backlog.update(op)

    def reopen(self, group: ObjectId, how: Reopen) -> None:
        spot = self.up[group]
        removed = [o for o in self.backlog.under(group) if o.group == group]
        number = next(self._numbers)
        if how is not Reopen.UNLISTED:
            number = first_number(self.backlog, group, removed, number)
            later = [o for o in self.backlog.under(group) if o.number > number]
            self.seen.update(["begun before what is pending"] if later else [])
        self.sealed.discard(group)
        self.unsealed.add(group)
        op = self.issue(OpKind.REOPEN, spot, group, flags=how, number=number)
        if how is not Reopen.UNLISTED:
            self.since[group] = op.number
            self.backlog.group_unsealed(group, spot[1], op.number)
        for op in self.backlog.under(group):
            ends = [self.group_of(scope) for scope in (op.scope, op.scope2) if scope]
            if op.kind is not OpKind.REOPEN and all(end in self.unsealed for end in ends):
                op.unsealed, op.group = True, None
        for op in [*self.backlog.under(group)]:
            self.backlog.update(op)
        self.drop_obsolete()
        if how is Reopen.LINKED:
            self.old[group] = self.new_object()
        self.seen.add(how.name)

    def edit(self) -> None:
        """Collected unlinks become an edit; or somebody writes again what dead writers left."""
        edited = [op.group for op in self.pending.values() if op.group in self.sealed]
        if edited and self.random.random() < 0.5:
            self.reopen(self.random.choice(edited), Reopen.WHOLE)
        elif self.unsealed and self.random.random() < 0.3:
            group = self.random.choice(sorted(self.unsealed))
            self.drop_seal(group)
            self.reopen(group, Reopen.UNLISTED)

    def seal(self) -> None:
        ready = [d for d in sorted(self.unsealed) if not [*self.backlog.under(d)]]
        if ready:
            group = self.random.choice(ready)
            self.issue(OpKind.SEAL, self.up[group], group)

    def rmdir(self, spot: Spot, directory: ObjectId) -> None:
        if directory in self.sealed:
            self.issue(OpKind.TRASH, spot, directory)
            self.issue(OpKind.RMDIR, spot, directory)
        elif directory in self.unsealed:
            self.drop_seal(directory)
            self.issue(OpKind.RMDIR, spot, directory, fields=(STAGED,))
        else:
            super().rmdir(spot, directory)
        self.no_group(directory)

    def no_group(self, directory: ObjectId) -> None:
        self.sealed.discard(directory)
        self.unsealed.discard(directory)
        self.since.pop(directory, None)
        self.backlog.group_sealed(directory)

    def moved(self, new: Spot, old: Spot, node: Node, overwrites: bool) -> None:
        fields = (STAGED,) if node.object in self.unsealed else ()
        if fields:
            self.drop_seal(node.object)
        self.issue(
            OpKind.RENAME, new, node.object, source=old, overwrites=overwrites, fields=fields
        )
        self.no_group(node.object)

    def publish_by_rename(self) -> None:
        """A framework renames its own directory into place: that is the seal."""
        found, new = self.some(OpKind.MKDIR), self.free_spot(GROUP_NAMES)
        if found is None or new is None:
            return
        old, node = found
        scopes = [self.where(d)[0] for d in self.directories()]
        below = [scope for scope in scopes if node.object in scope]
        in_group = [*map(self.group_of, [*below, self.where(new[0])[0]])]
        if any(in_group) or node.object in self.where(new[0])[0]:
            return
        self._move(old, new, node)
        self.sealed.add(node.object)

    # Sending

    def may_go(self, op: Op) -> bool:
        if op.kind is not OpKind.TRASH:
            return True
        there = {name for (parent, name), _ in self.shared.items() if parent == op.parent}
        whole = there & {name.encode() for name in GROUP_NAMES}
        if self.at_end or whole - self.backlog.removals_in(op.parent):
            return True
        held = self.backlog.hold_removal(op, "the only one")
        self.seen.add("held" if held else "not held")
        return not held

    def release_one(self) -> None:
        """Its time is over."""
        held = self.backlog.held()
        if held and self.random.random() < 0.2:
            self.backlog.release_removal(held[0][0])

    def apply(self, op: Op) -> None:
        spot = (op.parent, op.name)
        staging = (op.parent, staging_name(op.name))
        trash = (TRASH, b"%x" % op.object)
        if op.kind is OpKind.SEAL:
            self._exchange(op, spot, staging)
        elif op.kind is OpKind.REOPEN and op.flags != Reopen.UNLISTED:
            assert self.shared[spot] == op.object
            self.shared[staging] = self.shared.pop(spot)
            if op.flags == Reopen.LINKED:
                self.shared[spot] = self.old[op.object]
        elif op.kind is OpKind.REOPEN:
            assert self.shared[staging] == op.object
        elif op.kind is OpKind.TRASH and self.shared.get(trash) != op.object:
            assert self.shared[spot] == op.object
            self.shared[trash] = self.shared.pop(spot)
        elif op.kind is OpKind.RMDIR:
            assert not [s for s in self.shared if s[0] == op.object], f"{op}: not empty"
            (stands,) = [s for s, o in self.shared.items() if o == op.object]
            assert STAGED not in op.fields or stands == staging
            del self.shared[stands]
        elif op.kind is OpKind.MKDIR and STAGED in op.fields:
            assert staging not in self.shared
            self.shared[staging] = op.object
        elif op.kind is OpKind.RENAME and STAGED in op.fields:
            self.shared[spot] = self.shared.pop((op.parent2, staging_name(op.name2)))
        elif op.kind is not OpKind.TRASH:
            whole = op.kind is OpKind.RENAME and op.name.decode() in GROUP_NAMES
            assert not whole or spot not in self.shared, f"{op}: exists"
            super().apply(op)

    def _exchange(self, op: Op, spot: Spot, staging: Spot) -> None:
        there = self.shared.get(spot)
        self.shared[spot] = self.shared.pop(staging)
        assert self.shared[spot] == op.object
        if there is not None and there != self.old.pop(op.object, None):
            self.shared[TRASH, b"%x" % there] = there
            self.seen.add("exchanged")
        self.no_group(op.object)
        self.sealed.add(op.object)
        for trash, _ in self.backlog.held():
            if trash.parent == op.parent:
                self.backlog.release_removal(trash)

    def new_backlog(self) -> Backlog:
        backlog = Backlog(self.settings)
        for group in self.unsealed:
            backlog.group_unsealed(group, self.up[group][1], self.since.get(group, 0))
        return backlog

    # The end

    def drain(self) -> None:
        self.drop_obsolete()
        super().drain()

    def finish(self) -> None:
        """Send, seal and let go of what is held, until nothing changes any more."""
        self.at_end = True
        for _ in range(20):
            self.drain()
            for trash, _ in self.backlog.held():
                self.backlog.release_removal(trash)
            for _ in self.unsealed.copy():
                self.seal()
            if not self.pending:
                return
