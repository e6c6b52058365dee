"""Which policy holds for a path."""

from __future__ import annotations

from tierfs.config.policies import COMMITTED, LOCAL
from tierfs.control import requests
from tierfs.control.results import PolicyResult
from tierfs.control.server import Peer, Send
from tierfs.daemon.report import Report
from tierfs.daemon.rooms import Rooms


class PolicyHandler:
    """Answers from the path alone."""

    def __init__(self, rooms: Rooms, report: Report) -> None:
        self._rooms = rooms
        self._report = report

    async def policy(
        self, request: requests.Policy, peer: Peer, send: Send
    ) -> tuple[PolicyResult, int]:
        """TierfsError when the path lies elsewhere."""
        found = self._rooms.fs.core.policies.of(self._report.components(request.path))
        fsync, close = (
            COMMITTED if waits else LOCAL
            for waits in (found.fsync_committed, found.close_committed)
        )  # fmt: skip
        return PolicyResult(
            path=request.path, policy=str(found.kind), pattern=found.pattern, fsync=fsync,
            close=close,
        ), 0  # fmt: skip
