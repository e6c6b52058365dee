"""Small files of tierfs' own in ``.tierfs``: always whole, whoever looks and whatever crashes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tierfs.model import Name
from tierfs.shared import layout
from tierfs.shared.staging import Staging

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class ControlFiles(Staging):
    """Blocking calls on what lies in ``.tierfs``."""

    @contextmanager
    def control(self, *names: Name, make: bool = False) -> Iterator[int]:
        """The directory ``.tierfs/NAMES…``; with `make` it is made, root's alone.

        Raises FileNotFoundError.
        """
        fd = self._open_area(names, make)
        try:
            yield fd
        finally:
            self.system.close("control.close", fd)

    def write_whole(
        self, step: str, directory: int, name: Name, data: bytes, *, exclusive: bool
    ) -> None:
        """Write the file `name`, durably; nobody ever sees a part of it.

        It takes the place of what is there, or with `exclusive` raises FileExistsError.
        """
        self.guard()
        temporary = layout.staged_name(0, b"%s-%s" % (name, secrets.token_hex(4).encode()))
        staging = self.staging_fd
        fd = self.system.open_at(f"{step}.create", staging, temporary, _CREATE, 0o600)
        try:
            try:
                self.system.pwrite_all(f"{step}.write", fd, data, 0)
                self.system.fsync(f"{step}.fsync", fd)
            finally:
                self.system.close(f"{step}.close", fd)
            # link(2) is exclusive and shows the whole content at once, to every node.
            give = self.system.link_at if exclusive else self.system.rename_at
            give(f"{step}.publish", staging, temporary, directory, name)
            self.system.fsync_dir(f"{step}.fsync_dir", directory)
        finally:
            self.remove(staging, temporary)

    def read_whole(self, step: str, directory: int, name: Name) -> bytes | None:
        """The content of the file `name`; None: there is none."""
        try:
            fd = self.system.open_at(f"{step}.open", directory, name, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            size = self.system.fstat(f"{step}.stat", fd).st_size
            return self.system.pread(f"{step}.read", fd, size, 0)
        finally:
            self.system.close(f"{step}.close", fd)

    def _open_area(self, names: tuple[Name, ...], make: bool) -> int:
        self.guard()
        path = b"/".join((layout.CONTROL, *names))
        try:
            return self.system.open_beneath("control.open", self.root_fd, path, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        for count, name in enumerate(names):
            parent = b"/".join((layout.CONTROL, *names[:count]))
            fd = self.system.open_beneath("control.open", self.root_fd, parent, _DIRECTORY)
            try:
                self.make_private(fd, name)
            finally:
                self.system.close("control.close", fd)
        return self.system.open_beneath("control.open", self.root_fd, path, _DIRECTORY)
