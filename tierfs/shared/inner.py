"""The unsealed checkpoints that lie in a published one, while that gets another generation.

They came there with their directory and are no part of it: a generation is what is published, and
they are linked into none. So they move to whichever generation is the one that goes on.
"""

from __future__ import annotations

import os

from tierfs.model import Kind
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import layout
from tierfs.shared.walk import Walks


class Inner(Walks):
    """The blocking call that brings them there; it may be made again."""

    def take_along(self, source: int, target: int) -> None:
        """Move the unsealed checkpoints below the open directory `source` to `target`.

        Each keeps its place in it. One whose directory is not in `target` stays: that was removed.
        """
        staged = [
            path
            for path, _, item in self.below(source)
            if item.kind is Kind.DIRECTORY and layout.unstaged_name(item.name) is not None
        ]
        for path in staged:
            folder, name = os.path.split(path)
            try:
                with self.below_at(source, folder) as old, self.below_at(target, folder) as new:
                    self._move(old, new, name)
            except (FileNotFoundError, FileExistsError):
                continue

    def _move(self, old: int, new: int, name: bytes) -> None:
        times = [self.system.fstat("inner.stat", each).st_mtime_ns for each in (old, new)]
        self.system.rename_at("inner.rename", old, name, new, name, RENAME_NOREPLACE)
        for each, mtime_ns in zip((old, new), times, strict=True):
            # frameworks sort checkpoints by the time of their directory
            self.system.utime_fd("inner.times", each, None, mtime_ns)
            self.system.fsync_dir("inner.fsync_dir", each)
