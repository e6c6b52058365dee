"""Who unlinks in sealed checkpoints: a removal that was killed in the middle is no edit."""

from __future__ import annotations

from tierfs.groups import Process, State, Writers
from tierfs.journal import Journal, SaveOp
from tierfs.model import CUT_OFF, ObjectId, Op, OpKind, Phase
from tierfs.order import Backlog


class Unlinkers:
    """By sealed checkpoint, the processes whose unlinks in it are pending. Synchronous.

    Over a restart of the daemon is kept that one was killed; who lived then, and did not go on
    unlinking, counts as having ended well.
    """

    def __init__(self, backlog: Backlog, journal: Journal) -> None:
        self._backlog = backlog
        self._journal = journal
        self._known: dict[ObjectId, Writers] = {}

    def pending(self, sealed: ObjectId) -> list[Op]:
        """The UNLINKs that are pending in `sealed`."""
        return [
            op for op in self._backlog.under(sealed)
            if op.kind is OpKind.UNLINK and op.group == sealed
        ]  # fmt: skip

    def unlinks(self, sealed: ObjectId, process: Process) -> None:
        """`process` is about to unlink something in the checkpoint `sealed`."""
        if sealed not in self._known:
            self._known = {d: who for d, who in self._known.items() if self.pending(d)}
        elif not self.pending(sealed):
            del self._known[sealed]  # those are done
        self._known.setdefault(sealed, Writers()).wrote(process)

    def ended(self, process: Process, *, killed: bool) -> None:
        """`process` is no more."""
        for sealed, who in self._known.items():
            who.ended(process, killed=killed)
            if killed and process in who.processes():
                self._cut_off(sealed)

    def _cut_off(self, sealed: ObjectId) -> None:
        for op in self.pending(sealed):
            if op.phase is not Phase.PUBLISHING and CUT_OFF not in op.fields:
                op.fields = (*op.fields, CUT_OFF)
                self._journal.post(SaveOp(op))

    def killed(self, sealed: ObjectId) -> bool:
        """Whether one of those who unlinked in `sealed` was killed."""
        who = self._known.get(sealed)
        if who is not None and who.processes(State.KILLED):
            return True
        return any(CUT_OFF in op.fields for op in self.pending(sealed))
