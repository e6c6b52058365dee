"""How many descriptors the open files of applications take: all of one file share its own. Pure."""

from __future__ import annotations

import errno
from collections.abc import Collection

from tierfs.namespace.overlay.nodes import Handle

MOST_OF_ONE = 2
"""An open file takes no more: of its object one to read and one to write, or with one of its
object one of the shared file."""


class Descriptors:
    """Refuses the open file with which nothing could be sent any more.

    They are not counted at each open, but when there may be too many by what was counted last.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._surely = most // MOST_OF_ONE

    def check(self, handles: Collection[Handle]) -> None:
        """OSError(EMFILE): one more than `handles` would be too many."""
        if self._surely <= 0:
            left = self._most - in_use(handles)
            if left <= 0:
                raise OSError(errno.EMFILE, "the daemon has too many open files")
            self._surely = max(1, left // MOST_OF_ONE)
        self._surely -= 1


def in_use(handles: Collection[Handle]) -> int:
    """The descriptors of `handles`."""
    objects = {handle.object for handle in handles if handle.object is not None}
    far = sum(handle.shared_fd >= 0 for handle in handles)
    return far + sum((obj.fd >= 0) + (obj.write_fd >= 0) for obj in objects)
