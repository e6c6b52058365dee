"""The next generation of a sealed checkpoint that dead writers left: given up as a whole."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping

from tierfs.model import Kind, Name, ObjectId
from tierfs.shared import layout
from tierfs.shared.groups import GroupState, ManifestLine, Record
from tierfs.shared.places import Place
from tierfs.shared.presence import Others, busy
from tierfs.shared.reopen import Rebuilt, Reopening

log = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_WHY = "a job that was killed had written it over the published checkpoint"


class GivingUp(Reopening):
    """The blocking call that ends a generation without publishing it; it may be made again."""

    def give_up_next(self, place: Place, name: Name, group: ObjectId) -> list[Rebuilt]:
        """Put away what is staged of `group`, which stands sealed as `name`: that is its state.

        In one rename what is staged goes to quarantine; then the record says SEALED again.

        Returns the directories of the sealed one, with the inodes that they had in what is staged
        (0: that is not known any more); none where another node that lives writes there: then it
        stays. Raises FileNotFoundError where `name` is no sealed generation of `group`, and
        BlockingIOError while it is not known whether another node lives that takes part.
        """
        self.visible(place, name)
        with self.opened(place) as directory:
            left, last = self._free_staging(place, name), self.last_record(group)
            sealed = self.lookup(place, name)
            if sealed is None or sealed.directory_id not in (group, None) or last is None:
                raise FileNotFoundError(errno.ENOENT, "gone", self.shown(place, name))
            inode = sealed.st.st_ino
            if last.state is GroupState.SEALED:
                return self._standing(directory, name, {})
            if last.inode == inode:
                raise FileNotFoundError(errno.ENOENT, "it is not sealed", self.shown(place, name))
            match self._others_in(group, last):
                case Others.LIVING:
                    return []
                case Others.UNKNOWN:
                    raise busy(last)
            before: dict[bytes, int] = {}
            if left == last.inode:
                before = self._put_away(place, directory, name, group, last)
            if self._is_about_another(group, inode):
                self._describe(directory, name, group, inode)
            path, generation = os.path.join(place.path, name), max(1, last.generation - 1)
            record = Record(
                state=GroupState.SEALED, inode=inode, path=path, generation=generation
            )  # fmt: skip
            self.advance(group, record, after=last.number)
            self.forget_linked(group, last.generation - 1)
            return self._standing(directory, name, before)

    def _others_in(self, group: ObjectId, last: Record) -> Others:
        if last.state is GroupState.SEALING and last.member == self.member:
            return Others.GONE  # an attempt of this member, which has ended
        return self.others(group, last)

    def _put_away(
        self, place: Place, directory: int, name: Name, group: ObjectId, last: Record
    ) -> dict[bytes, int]:
        """Move what is staged to quarantine, but for what it shares; its directories' inodes.

        Unsealed checkpoints in it are no part of it, and go back.
        """
        staged, path = layout.staging_name(name), os.path.join(place.path, name)
        top = self.system.open_at("give_up.open", directory, staged, _DIRECTORY)
        try:
            found = self.walk_at(top)
            with self.below_at(directory, name) as sealed:
                self.take_along(top, sealed)
            kept = self.quarantine_at(place, directory, staged, last.inode, _WHY, path)
            shown = os.fsdecode(path)
            log.info("%s: what a killed job wrote over it is kept in %s", shown, kept)
            shared = self.read_linked(group, last.generation - 1)
            for each in found:
                if each.kind is not Kind.DIRECTORY and each.incarnation in shared:
                    folder, file = os.path.split(each.path)
                    with self.below_at(top, folder) as parent:
                        self.system.unlink_at("give_up.unlink", parent, file)
        finally:
            self.system.close("give_up.close", top)
        inodes = {each.path: each.inode for each in found if each.kind is Kind.DIRECTORY}
        return {**inodes, b"": last.inode}

    def _is_about_another(self, group: ObjectId, inode: int) -> bool:
        """Whether the manifest is not that of `inode`: a seal that was begun, refused for others
        that write, or failed before its record, may have written it.
        """
        about = self.manifest_inode(group)
        if about is None:  # of an earlier version
            return any(each.state is GroupState.SEALING for each in self.group_records(group))
        return about != inode

    def _describe(self, directory: int, name: Name, group: ObjectId, inode: int) -> None:
        """Make the manifest that of `name`, which is `inode`."""
        top = self.system.open_at("give_up.open", directory, name, _DIRECTORY)
        try:
            found = [each for each in self.walk_at(top) if each.kind is not Kind.DIRECTORY]
        finally:
            self.system.close("give_up.close", top)
        self.write_manifest(
            group,
            [ManifestLine(each.path, each.size, each.mode, each.digest) for each in found],
            inode,
        )

    def _standing(self, directory: int, name: Name, before: Mapping[bytes, int]) -> list[Rebuilt]:
        top = self.system.open_at("give_up.open", directory, name, _DIRECTORY)
        try:
            id = layout.decode_id(self.tag(top))
            inode = self.system.fstat("give_up.stat", top).st_ino
            rebuilt = [Rebuilt(b"", before.get(b"", 0), inode, id)]
            for each in self.walk_at(top):
                if each.kind is Kind.DIRECTORY:
                    was = before.get(each.path, 0)
                    rebuilt.append(Rebuilt(each.path, was, each.inode, each.directory_id))
        finally:
            self.system.close("give_up.close", top)
        return rebuilt
