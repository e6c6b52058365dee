"""What earlier starts of this member left in staging: moved aside first, deleted later."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable

from tierfs.errors import DirectoryGone
from tierfs.model import Kind, Name
from tierfs.osio import DirItem
from tierfs.shared import layout
from tierfs.shared.places import Place
from tierfs.shared.staging import Staging

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_MEMBER = re.compile(rb"[0-9a-f]{32}")


class Sweeping(Staging):
    """Deletes what tierfs staged itself, and nothing else; all calls block."""

    def retire_old_generations(self) -> int:
        """Take away the sources of renames that a hung worker may still make; how many there were.

        To be called before the first commit. Afterwards a late rename finds nothing.
        """
        with self.member_staging() as directory:
            old = [
                item.name
                for item in self.system.list_dir("retire.list", directory)
                if layout.generation_number(item.name) is not None
                and item.name != self.generation
                and not item.name.startswith(layout.RETIRED_PREFIX)
            ]
            for name in old:
                aside = layout.RETIRED_PREFIX + name
                self.system.rename_at("retire.rename", directory, name, directory, aside)
            self.system.fsync_dir("retire.fsync_dir", directory)
            for name in self._retired(directory):
                self._remove_staged_beside(directory, name)
        return len(old)

    def sweep(self) -> int:
        """Delete what was moved aside; the number of things deleted.

        What tierfs did not stage stays, and its directory with it: see :meth:`foreign`.
        """
        count = 0
        with self.member_staging() as directory:
            for name in self._retired(directory):
                count += self._sweep_generation(directory, name)
        self._sweep_probes()
        return count

    def foreign(self) -> list[str]:
        """Paths in ``.tierfs`` that tierfs does not know: to be reported, never touched."""
        control = layout.CONTROL
        parts = (layout.ID_FILE, layout.STAGING, *_PARTS)
        found = self._unknown(control, lambda name: name in parts)
        for part, known in _PARTS.items():
            found += self._unknown(control + b"/" + part, known)
        staging = control + b"/" + layout.STAGING
        found += self._unknown(staging, _is_member)
        mine = staging + b"/" + self.member.encode()
        found += self._unknown(mine, _is_staging)
        for item in self._list(mine):
            if layout.generation_number(item.name) is not None:
                found += self._unknown(mine + b"/" + item.name, layout.is_staged)
        return found

    def _unknown(self, path: bytes, known: Callable[[Name], bool]) -> list[str]:
        return [
            self.shown(Place(path), item.name) for item in self._list(path) if not known(item.name)
        ]

    def _list(self, path: bytes) -> list[DirItem]:
        try:
            with self.opened(Place(path)) as fd:
                return self.system.list_dir("foreign.list", fd)
        except DirectoryGone:
            return []

    def _retired(self, directory: int) -> list[Name]:
        return [
            item.name
            for item in self.system.list_dir("retire.list", directory)
            if item.name.startswith(layout.RETIRED_PREFIX)
            and layout.generation_number(item.name) is not None
        ]

    def _sweep_generation(self, parent: int, name: Name) -> int:
        count = 0
        self._remove_staged_beside(parent, name)
        directory = self.system.open_at("sweep.open", parent, name, _DIRECTORY)
        try:
            for item in self.system.list_dir("sweep.list", directory):
                if layout.is_staged(item.name):
                    self._delete(directory, item)
                    count += 1
        finally:
            self.system.close("sweep.close", directory)
        self._delete_empty(parent, name)
        return count

    def _sweep_probes(self) -> None:
        with self.opened(Place(b"")) as root:
            for item in self.system.list_dir("sweep.list", root):
                if item.name.startswith(layout.probe_prefix(self.member)):
                    directory = self.system.open_at("sweep.open", root, item.name, _DIRECTORY)
                    try:
                        for name in layout.PROBE_FILES:
                            self.remove(directory, name)
                    finally:
                        self.system.close("sweep.close", directory)
                    self._delete_empty(root, item.name)

    def _delete(self, directory: int, item: DirItem) -> None:
        self.remove(directory, item.name, directory_there=item.kind is Kind.DIRECTORY)

    def _delete_empty(self, directory: int, name: Name) -> None:
        try:
            self.system.rmdir_at("sweep.rmdir", directory, name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # something foreign is in it
                raise

    def _remove_staged_beside(self, parent: int, generation: Name) -> None:
        directory = self.system.open_at("sweep.open", parent, generation, _DIRECTORY)
        try:
            for item in self.system.list_dir("sweep.list", directory):
                if item.kind is Kind.SYMLINK and item.name.startswith(b"beside-"):
                    target = self.system.readlink_at("sweep.marker", directory, item.name)
                    self._remove_beside(target)
        finally:
            self.system.close("sweep.close", directory)

    def _remove_beside(self, target: bytes) -> None:
        path, name = os.path.split(target)
        prefix = b"%s%s_" % (layout.STAGING_PREFIX, self.member.encode())
        if not name.startswith(prefix):
            return
        try:
            with self.opened(Place(path)) as directory:
                st = self.system.stat_at("sweep.stat", directory, name)
                self._delete(directory, DirItem(name, Kind.of_mode(st.st_mode), st.st_ino))
        except (DirectoryGone, FileNotFoundError):
            return


def _is_member(name: Name) -> bool:
    return _MEMBER.fullmatch(name) is not None


def _is_staging(name: Name) -> bool:
    return (
        name in (layout.SPILLED, layout.DRIVE_FAILED) or layout.generation_number(name) is not None
    )


_PARTS: dict[Name, Callable[[Name], bool]] = {
    layout.NODES: _is_member,
    layout.GROUPS: layout.is_id,
    layout.TRASH: lambda name: layout.trashed(name) is not None,
    layout.QUARANTINE: lambda name: layout.quarantined_ns(name) is not None,
}
"""What may be in each part of ``.tierfs``, the staging areas apart."""
