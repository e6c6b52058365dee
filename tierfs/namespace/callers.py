"""Who asks: the credentials of a request of the kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials of a request; `process` is the thread group id, 0 when it is not visible."""

    uid: int
    gid: int
    process: int
    umask: int = 0
