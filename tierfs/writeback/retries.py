"""Ops that failed: when each is tried again, and what the user is told of them."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection
from dataclasses import dataclass

import trio

from tierfs.errors import DirectoryGone, VerifyMismatch
from tierfs.journal import SaveOp
from tierfs.model import Mark, Op
from tierfs.writeback.failures import (
    Verdict,
    gone_for_good,
    judge,
    path_of,
    pause_seconds,
    unreadable,
)
from tierfs.writeback.records import RetryStatus
from tierfs.writeback.rooms import LocalFailure, Rooms
from tierfs.writeback.settings import WritebackSettings

log = logging.getLogger(__name__)

GONE_ATTEMPTS = 5
"""So often is a missing directory looked for: one that is only being renamed is found again."""


LOST = "local-lost"
"""The reason of what went with the local drive."""


@dataclass(slots=True)
class _Retry:
    op: Op
    text: str
    attempts: int
    due: float
    gone: int = 0
    reason: str = ""


class Retries:
    """The failures of the ops that are not over yet. Synchronous, no I/O."""

    def __init__(self, rooms: Rooms, settings: WritebackSettings) -> None:
        self._rooms = rooms
        self._settings = settings
        self._failed: dict[int, _Retry] = {}
        self._stuck: dict[int, _Retry] = {}
        self.stuck_changed = trio.Event()

    def failed(self, op: Op, error: BaseException) -> None:
        """`op` met `error`: give it a pause, or the mark STUCK."""
        retry = self._failed.get(op.row) or self._stuck.pop(op.row, None)
        if retry is None:
            retry = _Retry(op, "", op.attempts, 0.0)
        retry.gone = retry.gone + 1 if isinstance(error, DirectoryGone) else 0
        verdict = self._judge(error, path_of(op), retry)
        self._count(verdict, error)
        _say(op, verdict, error, first=retry.text != verdict.text)
        retry.attempts += 1
        retry.text, retry.reason = verdict.text, verdict.reason
        op.attempts, op.error = retry.attempts, verdict.text
        if verdict.stuck:
            self.mark(op, verdict, Mark.STUCK)
            return
        retry.due = self._rooms.clock() + pause_seconds(
            retry.attempts,
            self._settings.first_retry_seconds,
            self._settings.last_retry_seconds,
            random.random(),
        )
        self._failed[op.row] = retry
        self._rooms.backlog.back_off(op, retry.due)

    def mark(self, op: Op, verdict: Verdict, mark: Mark) -> None:
        """Take `op` out of the order, durably: it is `mark` because of `verdict`."""
        self._failed.pop(op.row, None)
        op.mark, op.error = mark, verdict.text
        if mark is Mark.STUCK:
            due = self._rooms.clock() + self._settings.stuck_retry_seconds
            self._stuck[op.row] = _Retry(op, verdict.text, op.attempts, due, reason=verdict.reason)
            self.stuck_changed.set()
        self._rooms.journal.post(SaveOp(op))
        self._rooms.backlog.update(op)

    def loaded(self, op: Op) -> None:
        """`op` came from the journal with the mark STUCK: it is tried again at once."""
        self._stuck[op.row] = _Retry(op, op.error or "", op.attempts, self._rooms.clock())
        self.stuck_changed.set()

    def retry_stuck(self, op: Op) -> bool:
        """Put a stuck `op` back into the order for an attempt; the row keeps its mark till then."""
        retry = self._stuck.get(op.row)
        if retry is None or op.mark is not Mark.STUCK:
            return False
        op.mark = None
        self._rooms.backlog.update(op)
        return True

    def due_stuck(self) -> list[Op]:
        """The stuck ops whose next attempt has come."""
        now = self._rooms.clock()
        return [r.op for r in self._stuck.values() if r.due <= now and r.op.mark is Mark.STUCK]

    async def until_stuck_due(self) -> None:
        """Return when a stuck op may be due; perhaps too early."""
        self.stuck_changed = trio.Event()
        dues = (r.due for r in self._stuck.values() if r.op.mark is Mark.STUCK)
        with trio.move_on_after(max(0.0, min(dues, default=math.inf) - self._rooms.clock())):
            await self.stuck_changed.wait()

    def hurry(self) -> None:
        """What was in the way may be gone: everything is tried again now."""
        now = self._rooms.clock()
        for retry in self._failed.values():
            retry.due = now
            self._rooms.backlog.back_off(retry.op, now)

    def went_well(self, op: Op) -> None:
        """A step of `op` succeeded: what comes next may fail for other reasons."""
        self._failed.pop(op.row, None)
        if op.mark is None:
            op.error = None

    def over(self, op: Op) -> None:
        """`op` is committed, dropped or taken back."""
        self._failed.pop(op.row, None)
        self._stuck.pop(op.row, None)

    def reason(self, op: Op) -> str:
        """Why `op` last failed, in a word such as ENOSPC; "" if it has not."""
        retry = self._failed.get(op.row) or self._stuck.get(op.row)
        return "" if retry is None else retry.reason

    def met(self, reasons: Collection[str]) -> bool:
        """Whether the last failure of an op that is tried again was for one of `reasons`."""
        return any(retry.reason in reasons for retry in self._failed.values())

    def report(self) -> tuple[RetryStatus, ...]:
        """The ops that are tried again by themselves, oldest first."""
        now = self._rooms.clock()
        return tuple(
            RetryStatus(r.op, path_of(r.op), r.text, r.attempts, max(0.0, r.due - now))
            for r in sorted(self._failed.values(), key=lambda r: r.op.number)
        )

    def _judge(self, error: BaseException, path: str, retry: _Retry) -> Verdict:
        if isinstance(error, LocalFailure) and isinstance(error.__cause__, OSError):
            if retry.reason == LOST:  # a read that was under way then ends now
                return Verdict(True, retry.text, LOST)
            return unreadable(error.__cause__, path)
        if retry.gone >= GONE_ATTEMPTS:
            return gone_for_good(path)
        return judge(error, path)

    def _count(self, verdict: Verdict, error: BaseException) -> None:
        self._rooms.statistics.failures[verdict.reason] += 1
        if isinstance(error, VerifyMismatch):
            self._rooms.statistics.verify_mismatches += 1


def _say(op: Op, verdict: Verdict, error: BaseException, *, first: bool) -> None:
    """One line for a new failure, a debug line for the same one again.

    Renames of this mount move directories under what is being sent into them: not worth a line.
    """
    unexpected = not isinstance(error, OSError | LocalFailure)
    passing = isinstance(error, DirectoryGone) and not verdict.stuck
    level = logging.WARNING if first and not passing else logging.DEBUG
    log.log(
        logging.ERROR if unexpected and first else level,
        "%s #%d: %s",
        op.kind,
        op.number,
        verdict.text,
        exc_info=error if unexpected else None,
    )
