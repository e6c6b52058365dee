"""Who unlinks in sealed checkpoints: a removal that was killed in the middle is no edit."""

from __future__ import annotations

from tierfs.groups import Process, State, Writers
from tierfs.model import ObjectId, Op, OpKind
from tierfs.order import Backlog


class Unlinkers:
    """By sealed checkpoint, the processes whose unlinks in it are pending. Synchronous.

    Not kept over a restart of the daemon: who unlinked before counts as having ended well.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
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
        for who in self._known.values():
            who.ended(process, killed=killed)

    def killed(self, sealed: ObjectId) -> bool:
        """Whether one of those who unlinked in `sealed` was killed."""
        who = self._known.get(sealed)
        return who is not None and bool(who.processes(State.KILLED))
