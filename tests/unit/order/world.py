"""A small world for simulations: a logical tree that issues ops as the namespace does, a shared
tree to which they are applied, and the promises (promises.py) that check every step.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from tests.unit.order.promises import Promises
from tests.unit.order.tree import is_log
from tierfs.model import REMOVALS, ROOT, Mark, ObjectId, Op, OpKind, OpState, Phase
from tierfs.order import Backlog, OrderSettings

DIRECTORY_NAMES = ["run", "step-1", "step-2", "sub", "x.tmp", "3.orbax-checkpoint-tmp", "data"]
FILE_NAMES = ["a.bin", "b.bin", "c.bin", "small.json", ".metadata", "meta.pt", "latest", "w.tmp",
              ".incomplete", "step-1-unfinished", "train.log"]  # fmt: skip
Spot = tuple[ObjectId, bytes]


@dataclass(eq=False)
class Node:
    """What a name of the logical tree leads to."""

    object: ObjectId
    kind: OpKind  # of the op that makes it: PUT, MKDIR or SYMLINK
    put: Op | None = None  # or the SYMLINK


class World:
    """Issues, sends and checks; `random` decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = OrderSettings()
        self.backlog = Backlog(self.settings)
        self.now = 100.0
        self.logical: dict[Spot, Node] = {}
        self.shared: dict[Spot, ObjectId] = {}
        self.up: dict[ObjectId, Spot] = {}
        self.pending: dict[int, Op] = {}
        self.taken: list[Op] = []
        self.published = 0
        self.unsealed: set[ObjectId] = set()
        self.since: dict[ObjectId, int] = {}
        self.promises = Promises(self)
        self._ids = itertools.count(100)
        self._numbers = itertools.count(1)
        self._rows = itertools.count(1)

    # The logical tree

    def directories(self) -> list[ObjectId]:
        return [ROOT] + [n.object for n in self.logical.values() if n.kind is OpKind.MKDIR]

    def where(self, directory: ObjectId) -> tuple[tuple[ObjectId, ...], tuple[bytes, ...]]:
        if directory == ROOT:
            return (ROOT,), ()
        parent, name = self.up[directory]
        scope, path = self.where(parent)
        return (*scope, directory), (*path, name)

    def new_object(self) -> ObjectId:
        return ObjectId(next(self._ids))

    def free_spot(self, choices: list[str]) -> Spot | None:
        spot = (self.random.choice(self.directories()), self.random.choice(choices).encode())
        too_deep = len(self.where(spot[0])[0]) > 3
        return None if spot in self.logical or too_deep else spot

    def some(self, *kinds: OpKind) -> tuple[Spot, Node] | None:
        found = [(spot, node) for spot, node in self.logical.items() if node.kind in kinds]
        return self.random.choice(found) if found else None

    def concerns(self, spot: Spot) -> bool:
        return spot in self.shared or self.backlog.of_name(*spot) is not None

    # Issuing

    def issue(
        self, kind: OpKind, spot: Spot, object_id: ObjectId, source: Spot | None = None,
        **fields: object,
    ) -> Op:  # fmt: skip
        scope, path = self.where(spot[0])
        op = Op(
            row=next(self._rows), number=next(self._numbers), kind=kind, object=object_id,
            parent=spot[0], name=spot[1], timestamp_ns=0, scope=scope, path=(*path, spot[1]),
        )  # fmt: skip
        if source is not None:
            op.parent2, op.name2 = source
            op.scope2, path2 = self.where(source[0])
            op.path2 = (*path2, source[1])
        op.log = kind is OpKind.PUT and is_log(spot[1])
        for name, value in fields.items():
            setattr(op, name, value)
        self.place_in_group(op)
        self.pending[op.row] = op
        self.backlog.add(op)
        self.promises.issued(op)
        return op

    def place_in_group(self, op: Op) -> None:
        """Say of `op` in which checkpoint it lies, when it gets its place."""

    def drop(self, op: Op) -> None:
        self.backlog.remove(op)
        del self.pending[op.row]

    def droppable(self, op: Op, besides: Op | None = None) -> bool:
        free = op.phase is Phase.QUEUED and op not in self.taken
        return free and not self.backlog.depended(op, besides=besides)

    def create(self) -> None:
        spot = self.free_spot(FILE_NAMES)
        if spot is not None:
            self._write(spot, ObjectId(next(self._ids)))

    def _write(self, spot: Spot, object_id: ObjectId) -> None:
        small = spot[1] not in (b"a.bin", b"b.bin", b"c.bin")
        op = self.issue(
            OpKind.PUT, spot, object_id, state=OpState.OPEN, overwrites=self.concerns(spot),
            size=9 if small else 1 << 20,
        )  # fmt: skip
        self.logical[spot] = Node(object_id, OpKind.PUT, op)

    def rewrite(self) -> None:
        """Write a file again: a new version, or in place when its op has not begun."""
        found = self.some(OpKind.PUT)
        if found is None:
            return
        spot, node = found
        op = node.put
        if op is not None and op.state in (OpState.OPEN, OpState.CLOSED):
            return
        begun = op is not None and (op.phase is not Phase.QUEUED or op in self.taken)
        if op is not None and not begun and self.droppable(op) and self.random.random() < 0.5:
            op.state, op.first, op.mark = OpState.OPEN, 0, None
            self.backlog.update(op)
            return
        in_place = self.random.random() < 0.5
        self._write(spot, node.object if in_place else ObjectId(next(self._ids)))
        if op is not None and self.droppable(op, besides=self.logical[spot].put):
            self.drop(op)

    def flush(self) -> None:
        op = self._open_file()
        if op is not None:
            if op.state is OpState.OPEN:
                op.state = OpState.CLOSED
            if not self.backlog.depended(op):
                self.backlog.renumber(op, next(self._numbers))
            op.first = op.first or op.number
            self.backlog.update(op)
            self.promises.issued(op)

    def release(self) -> None:
        op = self._open_file()
        if op is not None:
            self._close(op)

    def _close(self, op: Op) -> None:
        if op.state is OpState.OPEN:
            if not self.backlog.depended(op):
                self.backlog.renumber(op, next(self._numbers))
            op.first = op.first or op.number
        op.state = OpState.PENDING
        self.backlog.update(op)
        self.promises.issued(op)

    def _open_file(self) -> Op | None:
        ops = [op for op in self.pending.values() if op.state in (OpState.OPEN, OpState.CLOSED)]
        return self.random.choice(ops) if ops else None

    def mkdir(self) -> None:
        spot = self.free_spot(DIRECTORY_NAMES)
        if spot is not None:
            made = ObjectId(next(self._ids))
            self.up[made] = spot
            self.issue(OpKind.MKDIR, spot, made)
            self.logical[spot] = Node(made, OpKind.MKDIR)

    def symlink(self) -> None:
        spot = self.free_spot(["latest", "newest", "l.tmp"])
        if spot is not None:
            made = ObjectId(next(self._ids))
            targets = (self.random.choice(self.directories()),)
            op = self.issue(OpKind.SYMLINK, spot, made, targets=targets)
            self.logical[spot] = Node(made, OpKind.SYMLINK, op)

    def unlink(self) -> None:
        found = self.some(OpKind.PUT, OpKind.SYMLINK)
        if found is not None:
            self.unlink_at(*found)

    def unlink_at(self, spot: Spot, node: Node) -> None:
        self._detach(spot, node)
        del self.logical[spot]
        if self.concerns(spot):
            self.issue(OpKind.UNLINK, spot, node.object)

    def _detach(self, spot: Spot, node: Node) -> None:
        op = node.put
        if op is None or op.row not in self.pending or op.object != node.object:
            return
        if (op.parent, op.name) == spot and self.droppable(op):
            self.drop(op)
        elif op.state in (OpState.OPEN, OpState.CLOSED):
            self._close(op)

    def rmtree(self) -> None:
        """As shutil does: depth first, in no order."""
        found = self.some(OpKind.MKDIR)
        if found is not None and found[0][0] != ROOT and self.is_free(found[1].object):
            self._rmtree(*found)

    def is_free(self, directory: ObjectId) -> bool:
        """Whether `directory` may be moved and removed."""
        return True

    def _rmtree(self, spot: Spot, node: Node) -> None:
        inside = [(s, n) for s, n in self.logical.items() if s[0] == node.object]
        self.random.shuffle(inside)
        for one, child in inside:
            if child.kind is OpKind.MKDIR:
                self._rmtree(one, child)
            else:
                self.unlink_at(one, child)
        del self.logical[spot]
        op = self.backlog.of_object(node.object)
        if op is not None and op.kind is OpKind.MKDIR and self.droppable(op):
            self.drop(op)
        else:
            self.rmdir(spot, node.object)

    def may_move(self, node: Node, new: Spot) -> bool:
        return self.is_free(node.object)

    def rmdir(self, spot: Spot, directory: ObjectId) -> None:
        self.issue(OpKind.RMDIR, spot, directory)

    def rename(self) -> None:
        found = self.some(OpKind.PUT, OpKind.MKDIR, OpKind.SYMLINK)
        if found is None:
            return
        old, node = found
        if node.kind is OpKind.MKDIR:
            new = self.free_spot(DIRECTORY_NAMES)
            inside = new is not None and node.object in self.where(new[0])[0]
            if new is None or inside:
                return
        else:
            new = (self.random.choice(self.directories()), self.random.choice(FILE_NAMES).encode())
            there = self.logical.get(new)
            if new == old or (there is not None and there.kind is OpKind.MKDIR):
                return
            if there is not None and self.may_move(node, new):
                self._detach(new, there)
        if self.may_move(node, new):
            self._move(old, new, node)

    def _move(self, old: Spot, new: Spot, node: Node) -> None:
        overwrites = self.concerns(new)
        op = node.put
        here = op is not None and op.row in self.pending and (op.parent, op.name) == old
        if here and op.object == node.object and self.droppable(op):
            scope, path = self.where(new[0])
            op.scope, op.path = scope, (*path, new[1])
            self.place_in_group(op)
            number = next(self._numbers)
            op.log = op.kind is OpKind.PUT and is_log(new[1])
            self.backlog.retarget(
                op, new[0], new[1], scope, (*path, new[1]), number, overwrites=overwrites
            )
            self.promises.issued(op)
            if self.concerns(old):
                self.issue(OpKind.UNLINK, old, ObjectId(next(self._ids)))
        else:
            self.moved(new, old, node, overwrites)
            if op is not None and op.state in (OpState.OPEN, OpState.CLOSED):
                self._close(op)
        if node.kind is OpKind.MKDIR:
            self.up[node.object] = new
        del self.logical[old]
        self.logical[new] = node

    def moved(self, new: Spot, old: Spot, node: Node, overwrites: bool) -> None:
        self.issue(OpKind.RENAME, new, node.object, source=old, overwrites=overwrites)

    def link(self) -> None:
        found, new = self.some(OpKind.PUT), self.free_spot(["hard.bin"])
        if found is None or new is None:
            return
        spot, node = found
        if node.put is not None and (node.put.targets or node.put.state is not OpState.PENDING):
            return
        self.issue(OpKind.LINK, new, node.object, source=spot)
        self.logical[new] = Node(node.object, OpKind.PUT)

    def mark(self) -> None:
        ops = [op for op in self.pending.values() if op not in self.taken]
        if ops:
            op = self.random.choice(ops)
            op.mark = self.random.choice([None, Mark.STUCK, Mark.SUSPECT])
            if op.kind is OpKind.PUT and self.random.random() < 0.3:
                op.mark = Mark.TORN
            self.backlog.update(op)

    # Sending

    def take(self) -> bool:
        op = self.backlog.take(self.now, lambda op: self.random.random() < 0.8)
        if op is not None:
            assert op.mark is None
            self.taken.append(op)
        return op is not None

    def complete(self) -> None:
        """Finish something that was taken: staged, failed, or published."""
        if not self.taken:
            return
        op = self.taken.pop(self.random.randrange(len(self.taken)))
        if op.row not in self.pending:
            return
        if op.kind is OpKind.PUT and op.phase is Phase.QUEUED:
            assert op.state is OpState.PENDING
            op.phase = Phase.STAGED
        elif self.random.random() < 0.1:
            self.backlog.back_off(op, self.now + 5.0)
        elif self.backlog.may_publish(op, self.now) is None and self.may_go(op):
            self.publish(op)
            return
        self.backlog.done_with(op)

    def may_go(self, op: Op) -> bool:
        """Whether the write-back, too, is for it."""
        return True

    def publish(self, op: Op) -> None:
        self.promises.check(op)
        self.apply(op)
        self.drop(op)
        self.published += 1

    def apply(self, op: Op) -> None:
        """Do it, and insist that it is possible."""
        spot = (op.parent, op.name)
        assert op.parent == ROOT or op.parent in self.shared.values(), f"{op}: no parent"
        if op.kind in REMOVALS:
            if op.kind is OpKind.RMDIR:
                assert spot in self.shared, f"{op}: nothing there"
                inside = [s for s in self.shared if s[0] == self.shared[spot]]
                assert not inside, f"{op}: not empty: {inside}"
            # Of a name whose maker was dropped as well there may be nothing to take away.
            self.shared.pop(spot, None)
        elif op.kind in (OpKind.RENAME, OpKind.LINK):
            source = (op.parent2, op.name2)
            assert source in self.shared, f"{op}: no source"
            found = self.shared[source]
            if op.kind is OpKind.RENAME:
                del self.shared[source]
            self.shared[spot] = found
        else:
            replaces = op.kind is OpKind.PUT or op.overwrites
            assert replaces or spot not in self.shared, f"{op}: exists"
            self.shared[spot] = op.object

    def crash(self) -> None:
        """Lose everything but the rows."""
        self.taken.clear()
        self.promises.forget_open_files()
        self.backlog = self.new_backlog()
        for op in sorted(self.pending.values(), key=lambda op: op.number):
            op.phase = Phase.QUEUED
            if op.state in (OpState.OPEN, OpState.CLOSED):
                op.state, op.first = OpState.PENDING, op.first or op.number
            self.backlog.add(op)

    def new_backlog(self) -> Backlog:
        return Backlog(self.settings)

    # The end

    def close_all(self) -> None:
        for op in list(self.pending.values()):
            if op.state in (OpState.OPEN, OpState.CLOSED):
                self._close(op)

    def unmark_all(self) -> None:
        for op in self.pending.values():
            if op.mark is not None:
                op.mark = None
                self.backlog.update(op)

    def drain(self) -> None:
        """Send until nothing can be sent any more, however long one waits."""
        while True:
            op = self.backlog.take(self.now)
            if op is not None:
                self.taken.append(op)
            if self.taken:
                self.complete()
                continue
            until = self.backlog.next_time(self.now)
            if until is None:
                return
            self.now = max(self.now, until)

    def shown(self) -> dict[Spot, ObjectId]:
        return {spot: node.object for spot, node in self.logical.items()}
