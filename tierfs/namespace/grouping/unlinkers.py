"""Who unlinks in sealed checkpoints: a removal that was killed in the middle is no edit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tierfs.groups import Process, State, Writers
from tierfs.journal import Journal, SaveOp
from tierfs.model import CUT_OFF, ROOT, UNLINKED_BY, ObjectId, Op, OpKind, Phase
from tierfs.order import Backlog


class Unlinkers:
    """By sealed checkpoint, the processes whose unlinks in it are pending. Synchronous.

    Each UNLINK is journaled with those who were at it, until they end well: so a removal that was
    cut off is known after a restart, too, also when it was cut off while no daemon was there.
    """

    def __init__(self, backlog: Backlog, journal: Journal) -> None:
        self._backlog = backlog
        self._journal = journal
        self._known: dict[ObjectId, Writers] = {}
        self._at: dict[Process, ObjectId] = {}
        self._elsewhere: set[int] = set()
        backlog.is_under_way = lambda op: self.is_under_way(op, besides=self._elsewhere)

    def pending(self, sealed: ObjectId) -> list[Op]:
        """The UNLINKs that are pending in `sealed`."""
        return [
            op for op in self._backlog.under(sealed)
            if op.kind is OpKind.UNLINK and op.group == sealed
        ]  # fmt: skip

    def unlinks(self, sealed: ObjectId, process: Process) -> None:
        """`process` is about to unlink something in the checkpoint `sealed`."""
        self._at[process] = sealed
        self._elsewhere.discard(process.pid)
        if sealed not in self._known:
            needed = {*self._at.values()}
            self._known = {d: w for d, w in self._known.items() if d in needed or self.pending(d)}
        elif not self.pending(sealed):
            del self._known[sealed]  # those are done
            for each in [each for each, at in self._at.items() if at == sealed]:
                self._knows(sealed, each)
        self._knows(sealed, process)

    @property
    def are_there(self) -> bool:
        """Whether any that lives has unlinked in a sealed checkpoint."""
        return bool(self._at)

    def is_at(self, process: int) -> bool:
        """Whether that process lives and has unlinked in a sealed checkpoint."""
        return any(each.pid == process for each in self._at)

    def goes_on(self, process: int, scope: Collection[ObjectId]) -> None:
        """`process` makes, writes or removes something in the last directory of `scope`."""
        if any(each.pid == process and at not in scope for each, at in self._at.items()):
            self._elsewhere.add(process)

    def sign(self, op: Op) -> None:
        """Notes in the UNLINK `op`, of which the row is still to be written, who is at it."""
        known = self._known.get(op.group) if op.group is not None else None
        if op.kind is OpKind.UNLINK and known is not None and not any(_unlinked_by(op)):
            signed = [f"{UNLINKED_BY}{p.pid} {p.start}" for p in known.processes(State.LIVING)]
            op.fields = (*op.fields, *sorted(signed))

    def ended(self, process: Process, *, killed: bool) -> list[ObjectId]:
        """`process` is no more; the checkpoints in which that cuts a removal off."""
        self._at.pop(process, None)
        self._elsewhere.discard(process.pid)
        return [
            sealed for sealed, who in self._known.items()
            if process in who.processes() and self._is_cut_off(sealed, process, killed=killed)
        ]  # fmt: skip

    def restore(self, follow: Callable[[int], int]) -> list[ObjectId]:
        """What the backlog says after a restart; the checkpoints in which a removal was cut off.

        `follow` follows the process of that id from now on; its start time. Of one that is gone
        nobody saw how it ended: it counts as killed.
        """
        found: dict[ObjectId, set[Process]] = {}
        for op in self._backlog.under(ROOT):
            if op.kind is OpKind.UNLINK and op.group is not None and op.fields:
                found.setdefault(op.group, set()).update(_unlinked_by(op))
        cut_off = []
        for sealed, processes in found.items():
            for each in processes:
                self._knows(sealed, each)
                if follow(each.pid) == each.start:
                    self._at[each] = sealed
                else:
                    self._is_cut_off(sealed, each, killed=True)
            if self.killed(sealed):
                cut_off.append(sealed)
        return cut_off

    def is_under_way(self, op: Op, besides: Collection[int]) -> bool:
        """Whether `op` is one of a removal in a sealed checkpoint that somebody is still at.

        Not one of the processes `besides`, nor one that has gone on to another checkpoint.
        """
        who = self._known.get(op.group) if op.group is not None else None
        return who is not None and any(
            self._at.get(each) == op.group and each.pid not in besides
            for each in who.processes(State.LIVING)
        )

    def killed(self, sealed: ObjectId) -> bool:
        """Whether one of those who unlinked in `sealed` was killed."""
        who = self._known.get(sealed)
        if who is not None and who.processes(State.KILLED):
            return True
        return any(CUT_OFF in op.fields for op in self.pending(sealed))

    def _knows(self, sealed: ObjectId, process: Process) -> None:
        self._known.setdefault(sealed, Writers()).wrote(process)

    def _is_cut_off(self, sealed: ObjectId, process: Process, *, killed: bool) -> bool:
        """`process`, which unlinked in `sealed`, is no more: whether that is cut off."""
        self._known[sealed].ended(process, killed=killed)
        signature = f"{UNLINKED_BY}{process.pid} {process.start}"
        pending = self.pending(sealed)
        for op in pending:
            fields = tuple(field for field in op.fields if field not in (signature, CUT_OFF))
            fields += (CUT_OFF,) if killed or CUT_OFF in op.fields else ()
            if op.phase is not Phase.PUBLISHING and fields != op.fields:
                op.fields = fields
                self._journal.post(SaveOp(op))
        return killed and bool(pending)


def _unlinked_by(op: Op) -> Iterator[Process]:
    for field in op.fields:
        if field.startswith(UNLINKED_BY):
            pid, start = field.removeprefix(UNLINKED_BY).split()
            yield Process(int(pid), int(start))
