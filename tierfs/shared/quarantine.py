"""What no application removed and yet must not stay where it is: kept for a while, and named."""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from dataclasses import dataclass

from tierfs.errors import DirectoryGone
from tierfs.model import Name
from tierfs.osio import RENAME_NOREPLACE
from tierfs.shared import layout
from tierfs.shared.control import ControlFiles
from tierfs.shared.jobs import Staged
from tierfs.shared.places import Place
from tierfs.shared.publish import Publishing
from tierfs.shared.walk import Walks

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One entry of the quarantine.

    Attributes:
        path: where it was, from the root of the tier.
        why: for people.
        since_ns: ns since the epoch.
        shown: full path of the content now.
    """

    entry: Name
    path: bytes
    why: str
    since_ns: int
    shown: str


class Quarantine(ControlFiles, Publishing, Walks):
    """Blocking calls on ``.tierfs/quarantine``."""

    def quarantine(self, place: Place, name: Name, inode: int, why: str) -> str | None:
        """Move `name` there, in one rename; where it is now, for people.

        None: it is gone, or is not `inode`.
        """
        self.permitted(place, name)
        with self.opened(place) as directory:
            return self.quarantine_at(place, directory, name, inode, why)

    def quarantine_at(
        self,
        place: Place,
        directory: int,
        name: Name,
        inode: int,
        why: str,
        path: bytes | None = None,
        *,
        stays: bool = False,
    ) -> str | None:
        """As `quarantine`, where `directory` is open already; `place` is for the record.

        `path`: what to record as the place that it comes from, where that is another. `stays`: it
        is a file that keeps its name, too, until something else gets that.
        """
        if not self.has_inode(directory, name, inode):
            return None
        entry = b"%d-%s" % (time.time_ns(), secrets.token_hex(4).encode())
        values = {
            "format": "1",
            "path": os.fsdecode(path or os.path.join(place.path, name)),
            "beside": os.fsdecode(os.path.join(place.path, layout.quarantine_beside(entry))),
            "why": why,
            "member": self.member,
        }
        with self.control(layout.QUARANTINE, make=True) as quarantine:
            self.make_private(quarantine, entry)
        with self.control(layout.QUARANTINE, entry) as there:
            data = json.dumps(values, indent=1).encode() + b"\n"
            self.write_whole("quarantine", there, layout.WHY_FILE, data, exclusive=True)
            try:
                self._put(directory, name, there, layout.CONTENT, stays=stays)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._put(directory, name, directory, layout.quarantine_beside(entry), stays=stays)
            self.system.fsync_dir("quarantine.fsync_dir", there)
            self.system.fsync_dir("quarantine.fsync_dir", directory)
        return self._shown_entry(entry, os.fsencode(values["beside"]))

    def _put(self, directory: int, name: Name, target: int, new: Name, *, stays: bool) -> None:
        if stays:
            self.system.link_at("quarantine.link", directory, name, target, new)
        else:
            step = "quarantine.rename"
            self.system.rename_at(step, directory, name, target, new, RENAME_NOREPLACE)

    def quarantine_unpublished(
        self, staged: Staged, place: Place, name: Name, why: str
    ) -> str | None:
        """Move what was staged for `name` in `place` there; where it is now, for people.

        None: it is gone.
        """
        path = os.path.join(place.path, name)
        with self.opened_staging(staged.beside) as directory:
            kept = self.quarantine_at(place, directory, staged.name, staged.inode, why, path)
        self.forget_marker(staged.row, staged.beside)
        return kept

    def staged_stat(self, staged: Staged) -> os.stat_result:
        """The attributes of what was staged. Raises FileNotFoundError."""
        with self.opened_staging(staged.beside) as directory:
            return self.system.stat_at("quarantine.stat", directory, staged.name)

    def quarantine_staged(self, place: Place, why: str) -> bool:
        """Move the unsealed checkpoints in `place` there, if it holds nothing else; whether so."""
        with self.opened(place) as directory:
            names = [item.name for item in self.system.list_dir("quarantine.list", directory)]
            if not all(layout.unstaged_name(name) for name in names):
                return False
            for name in names:
                inode = self.system.stat_at("quarantine.stat", directory, name).st_ino
                self.quarantine_at(place, directory, name, inode, why)
        return True

    def quarantined(self) -> list[Quarantined]:
        """What is in quarantine, oldest first."""
        found = []
        try:
            with self.control(layout.QUARANTINE) as directory:
                items = self.system.list_dir("quarantine.list", directory)
        except FileNotFoundError:
            return []
        for item in items:
            since_ns = layout.quarantined_ns(item.name)
            values = self._why(item.name) if since_ns is not None else None
            if since_ns is None or values is None:
                continue
            shown = self._shown_entry(item.name, os.fsencode(values["beside"]))
            if shown is not None:
                path = os.fsencode(values["path"])
                found.append(Quarantined(item.name, path, values["why"], since_ns, shown))
        return sorted(found, key=lambda each: each.since_ns)

    def sweep_quarantine(self, keep_seconds: float) -> int:
        """Delete what has been there for longer than `keep_seconds`; how many entries."""
        count = 0
        limit_ns = time.time_ns() - int(keep_seconds * _SECOND)
        try:
            with self.control(layout.QUARANTINE) as directory:
                for item in self.system.list_dir("quarantine.list", directory):
                    since_ns = layout.quarantined_ns(item.name)
                    if since_ns is not None and since_ns < limit_ns:
                        self._delete_entry(directory, item.name)
                        count += 1
        except FileNotFoundError:
            return 0
        return count

    def _delete_entry(self, directory: int, entry: Name) -> None:
        values = self._why(entry)
        if values is not None:
            path, name = os.path.split(os.fsencode(values["beside"]))
            try:
                with self.opened(Place(path)) as parent:
                    self._delete_any(parent, name)
            except DirectoryGone:
                pass  # it was not put there, or its directory is gone with it
        with self.control(layout.QUARANTINE, entry) as there:
            self._delete_any(there, layout.CONTENT)
        self.delete_tree(directory, entry)

    def _delete_any(self, directory: int, name: Name) -> None:
        try:
            self.delete_tree(directory, name)
        except NotADirectoryError:
            self.remove(directory, name)

    def _why(self, entry: Name) -> dict[str, str] | None:
        try:
            with self.control(layout.QUARANTINE, entry) as there:
                data = self.read_whole("quarantine", there, layout.WHY_FILE)
            values = json.loads(data or b"null")
            return {key: str(values[key]) for key in ("path", "beside", "why")}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _shown_entry(self, entry: Name, beside: bytes) -> str | None:
        """Where the content of `entry` is; None: it never came."""
        here = b"/".join((layout.CONTROL, layout.QUARANTINE, entry))
        for path, name in ((here, layout.CONTENT), os.path.split(beside)):
            try:
                with self.opened(Place(path)) as directory:
                    self.system.stat_at("quarantine.stat", directory, name)
                return self.shown(Place(path), name)
            except (FileNotFoundError, DirectoryGone):
                continue
        return None
