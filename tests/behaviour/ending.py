"""The end of a file system object that shares its process with others."""

from __future__ import annotations

import os

from tierfs.namespace.filesystem import FileSystem


def close_all(fs: FileSystem) -> None:
    """Closes what the end of a process would; nothing of `fs` runs any more."""
    core, handles = fs.core, fs.files.handles.values()
    core.closing.drain()
    core.closing_shared.drain()
    objects = {*core.tree.objects.values(), *(each.object for each in handles if each.object)}
    open_fds = {fd for obj in objects for fd in (obj.fd, obj.write_fd)}
    for fd in open_fds | {each.shared_fd for each in handles}:
        if fd >= 0:
            os.close(fd)
