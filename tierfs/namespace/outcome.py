"""What the namespace makes of the end of an op: the shared tier answers for the name from now on.

Called by the write-back in the synchronous step that ends the op; what takes I/O is left to the
`Chores`, which run behind.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Sequence

from tierfs.journal import Change, SaveClean, SaveDirectory, SaveOp
from tierfs.model import (
    BEGINS,
    OLDER,
    STAGED,
    Attributes,
    CleanRecord,
    Name,
    ObjectId,
    Op,
    OpKind,
    Reopen,
    Signature,
)
from tierfs.namespace.chores import Chores
from tierfs.namespace.clock import SETTLE_SECONDS
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.leaving import sealed_meanwhile
from tierfs.namespace.overlay.nodes import (
    UNKNOWN_INODE,
    Entry,
    LocalObject,
    Location,
    Node,
)
from tierfs.order import names
from tierfs.shared import unstaged_name
from tierfs.writeback import Outcome, OutcomeKind

log = logging.getLogger(__name__)


class Outcomes:
    """Takes the overlay back, name by name."""

    def __init__(self, core: Core, chores: Chores) -> None:
        self._core = core
        self._tree = core.tree
        self._chores = chores

    def __call__(self, outcome: Outcome) -> Sequence[Change]:
        """The end of an op; returns what the journal has to note of it."""
        op = outcome.op
        obj = self._tree.objects.get(op.object)
        changes: list[Change] = []
        if outcome.kind is OutcomeKind.COMMITTED:
            changes += self._committed(op, obj, outcome.st)
            changes += self._moved_back(op, outcome.other)
            self._core.links.committed(op)
            self._announce(outcome, obj)
            self._count_directories(op)
        else:
            self._dropped(op)
        self._keep_ctime(obj, outcome.st)
        self._count_links(op, obj, outcome)
        left = outcome.st.st_ino if outcome.st is not None else None
        if op.kind is OpKind.MKDIR and STAGED in op.fields:
            self._settle_staged(op)
            record = self._core.places.record(op.object)
            if record is not None and record.inode and unstaged_name(record.name) is None:
                self._ended_elsewhere(op.object, op.parent)
        elif op.kind not in (OpKind.SEAL, OpKind.TRASH, OpKind.REOPEN) or OLDER in op.fields:
            changes += self._settle_name(op.parent, op.name, op, left)
        if op.kind is OpKind.RENAME and op.parent2 is not None and op.name2 is not None:
            other = outcome.other.st_ino if outcome.other is not None else None
            changes += self._settle_name(op.parent2, op.name2, op, other)
        for directory in (op.parent, op.parent2, op.object, op.other):
            if directory is not None and (state := self._tree.directories.get(directory)):
                state.known_until = 0.0
        back = self._tree.objects.get(op.other) if op.other is not None else None
        self._settle_group(op, left, committed=outcome.kind is OutcomeKind.COMMITTED)
        lost = self._core.links.replaced_by(op)
        changes += self._core.close_op(op)
        for each in (obj, back, lost):
            if each is not None:
                self._chores.dispose_if_unused(each)
        self._core.freed.tell()
        return changes

    def _committed(
        self, op: Op, obj: LocalObject | None, st: os.stat_result | None
    ) -> list[Change]:
        match op.kind:
            case OpKind.PUT | OpKind.SYMLINK:
                return self._put(op, obj, st)
            case OpKind.MKDIR:
                return self._made(op, st)
            case OpKind.RENAME:
                return self._renamed(op, st)
            case OpKind.UNLINK | OpKind.RMDIR:
                self._gone(op.base_inode, (op.parent, op.name))
            case OpKind.SEAL:
                return self._sealed(op, st)
            case OpKind.TRASH:
                return self._save_directory(op.object)
            case OpKind.REOPEN:
                return self._reopened(op)
            case OpKind.SETATTR | OpKind.LINK:
                if st is not None:
                    self._chores.sign_again(st, times="times" in op.fields)
        return []

    def _count_directories(self, op: Op) -> None:
        """The shared tier counts them from now on; of what it said last that is known."""
        for directory, change in op.subdirectories:
            state = self._tree.directories.get(directory)
            if state is not None and state.known is not None:
                nlink = state.known.nlink + change
                state.known = dataclasses.replace(state.known, nlink=nlink)

    def _announce(self, outcome: Outcome, obj: LocalObject | None) -> None:
        """What is there now is known if the shared tier does not answer from here on."""
        op, st, announced = outcome.op, outcome.st, self._core.announced
        announced.committed(op, st, outcome.other, outcome.xattrs)
        state = self._tree.directories.get(op.object)
        if st is None or state is None:
            return
        state.known = Attributes.of(st)
        xattrs = outcome.xattrs
        if xattrs is None and obj is not None and obj.xattrs == frozenset():
            xattrs = {}
        if op.kind is OpKind.MKDIR and xattrs is not None and not outcome.adopted:
            announced.made(op.object, st, xattrs)

    def _count_links(self, op: Op, obj: LocalObject | None, outcome: Outcome) -> None:
        if obj is None or outcome.kind is not OutcomeKind.COMMITTED:
            return
        obj.version += 1  # who is asking the shared tier may have got an old answer
        if outcome.st is not None:
            own = obj.id in self._core.store.spread.published
            obj.committed_links = outcome.st.st_nlink - own
        elif op.kind is OpKind.UNLINK and obj.committed_links is not None:
            obj.committed_links -= 1
        node = self._tree.by_object.get(obj.id)
        for directory, name in self._tree.known_names(node) if node is not None else ():
            if (directory, name) != (op.parent, op.name):
                self._tree.directories[directory].look_again(name)

    def _keep_ctime(self, obj: LocalObject | None, st: os.stat_result | None) -> None:
        if obj is None or st is None:
            return
        node = self._tree.by_object.get(obj.id)
        if node is not None and node.object is obj:
            shown = max(node.linked_ns, obj.attributes.ctime_ns if obj.attributes else 0)
            if shown:
                node.ctimes = (st.st_ctime_ns, shown)

    def _put(self, op: Op, obj: LocalObject | None, st: os.stat_result | None) -> list[Change]:
        if obj is None or st is None:
            return []
        pins = self._pins(op, st)
        self._replaced(op, st.st_ino)
        return pins + self._keep(op, obj, st)

    def _pins(self, op: Op, st: os.stat_result) -> list[Change]:
        """What was committed stays here if what it replaces did, or what it lies in does."""
        entry = self._tree.entry(op.parent, op.name)
        before = entry.shared_inode if entry is not None else op.base_inode
        records = (self._core.places.record(directory) for directory in op.scope)
        above = [record.inode for record in records if record is not None]
        return self._core.pins.committed(st.st_ino, st.st_size, before=before, directories=above)

    def _keep(self, op: Op, obj: LocalObject, st: os.stat_result) -> list[Change]:
        """The local object becomes the clean copy of what was committed."""
        successor = self._successor(op)
        current = obj if successor is None else successor
        node = self._tree.by_object.get(current.id)
        if node is not None and node.object is current:
            self._tree.committed(node, Location(op.parent, op.name, st.st_ino))
        if op.kind is OpKind.SYMLINK:
            return []
        state = self._tree.directories.get(op.parent)
        if state is not None and names.role(op.name) is names.Role.COMMIT:
            state.vouched = True
        if st.st_ino in self._chores.forgetting:
            return []  # a number used again so soon: its record is still that of another file
        if successor is not None:
            # it holds the same content until it is written to, and becomes the clean copy then
            successor.origin = Signature.of(st)
            return []
        if self._core.store.spread.is_spilled(obj.id):
            return []  # it is no local copy: who opens it now reads the shared file
        obj.clean = True
        obj.origin = Signature.of(st)
        record = CleanRecord(obj.origin, obj.id, op.digest, st.st_size, _closed_ns(obj))
        return [SaveClean(record)]

    def _successor(self, op: Op) -> LocalObject | None:
        """The object that was opened for writing on top of the state that `op` has sent."""
        entry = self._tree.entry(op.parent, op.name)
        newer = entry.object if entry is not None else None
        return newer if newer is not None and newer.supersedes is op else None

    def _made(self, op: Op, st: os.stat_result | None) -> list[Change]:
        record = self._core.places.record(op.object)
        if st is not None:
            location = Location(op.parent, op.name, st.st_ino)
            tagged = record is not None and record.tagged
            self._tree.stands_at(op.object, location, tagged=tagged)
        return self._save_directory(op.object)

    def _renamed(self, op: Op, st: os.stat_result | None) -> list[Change]:
        if st is None:
            return []
        if op.other is None:
            self._replaced(op, st.st_ino)
        node = self._tree.by_object.get(op.object)
        if node is not None:
            self._tree.committed(node, Location(op.parent, op.name, st.st_ino))
        if node is None or node.directory is None:
            self._chores.sign_again(st, times=False)
        return self._save_directory(op.object)

    def _moved_back(self, op: Op, st: os.stat_result | None) -> list[Change]:
        """What an exchange moved the other way stands there now."""
        if st is None or op.other is None or op.parent2 is None or op.name2 is None:
            return []
        node = self._tree.by_object.get(op.other)
        if node is not None:
            self._tree.committed(node, Location(op.parent2, op.name2, st.st_ino))
        if node is None or node.directory is None:
            self._chores.sign_again(st, times=False)
        return self._save_directory(op.other)

    def _sealed(self, op: Op, st: os.stat_result | None) -> list[Change]:
        if st is None:
            return []
        record = self._core.places.record(op.object)
        tagged = record is None or record.tagged
        self._tree.stands_at(op.object, Location(op.parent, op.name, st.st_ino), tagged=tagged)
        # who is just being told where it stood before would take it for unsealed once more
        self._tree.directories[op.parent].look_again(op.name)
        return self._save_directory(op.object)

    def _reopened(self, op: Op) -> list[Change]:
        """The directories of the checkpoint may be others on the shared tier now."""
        places, tree = self._core.places, self._tree
        tree.directories[op.parent].look_again(op.name)
        for state in list(tree.directories.values()):
            record = places.record(state.id)
            if record is None or record.inode is None or not tree.is_within(state.id, op.object):
                continue
            location = Location(record.parent, record.name, record.inode)
            tree.stands_at(state.id, location, tagged=record.tagged)
            for name in state.unsealed:  # it went along
                state.look_again(name)
            if op.flags == Reopen.GIVEN_UP:
                state.scan, state.known_until, state.rebuilt = None, 0.0, time.monotonic()
                self._core.announced.forget(state.id)
        return self._save_directory(op.object)

    def _save_directory(self, directory: ObjectId) -> list[Change]:
        state = self._tree.directories.get(directory)
        record = self._core.places.record(directory)
        if state is None or record is None or not state.pins:
            return []
        return [SaveDirectory(record)]

    def _replaced(self, op: Op, inode: int) -> None:
        """What was under the name before is gone from there."""
        entry = self._tree.entry(op.parent, op.name)
        before = entry.shared_inode if entry is not None else op.base_inode
        if before is not None and before != inode:
            self._gone(before, (op.parent, op.name))

    def _gone(self, inode: int | None, taken: tuple[ObjectId, Name]) -> None:
        """The name `taken` does not lead to `inode` any more."""
        if inode is None:
            return
        node = self._tree.by_shared.get(inode)
        if node is not None and self._stands_elsewhere(node, taken):
            return
        if node is not None and not node.unlinked and self._has_another(node, inode, taken):
            self._relocate(node, taken)
            return
        self._core.journal.post(*self._core.pins.gone(inode))
        self._chores.forget_clean(inode)
        if node is not None:
            # the number may be given to another file from now on
            self._tree.uncommitted(node)
            if node.unlinked and node.object is not None:
                self._chores.dispose_if_unused(node.object)

    def _stands_elsewhere(self, node: Node, taken: tuple[ObjectId, Name]) -> bool:
        """Whether it is another name of `node` that counts, or the inode number was given to it
        since: what is removed is gone before that is known here.

        Where a directory stands is not said by its location.
        """
        if node.directory is None:
            at = node.shared
            return at is not None and (at.directory, at.name) != taken
        record = self._core.places.record(node.directory)
        return record is not None and (record.parent, record.name) != taken

    def _has_another(self, node: Node, inode: int, taken: tuple[ObjectId, Name]) -> bool:
        """Whether `inode` still has a name on the shared tier when `taken` is gone.

        Names of a later version, which is pending, are none of `inode`.
        """
        entries = (self._tree.entry(*place) for place in node.names - {taken})
        leads = any(entry is None or entry.shared_inode == inode for entry in entries)
        return leads or node.unknown > 0

    def _relocate(self, node: Node, taken: tuple[ObjectId, Name]) -> None:
        """One of several names is gone: the committed version is found under another."""
        here = node.shared
        if here is None or (here.directory, here.name) != taken:
            return
        for directory, name in node.names - {taken}:
            entry = self._tree.entry(directory, name)
            if entry is None or entry.shared_inode == here.inode:
                node.shared = Location(directory, name, here.inode)
                return

    def _dropped(self, op: Op) -> None:
        if op.kind is OpKind.RMDIR and op.object in self._tree.directories:
            self._tree.directories[op.object].removed = False

    def _settle_name(
        self, directory: ObjectId, name: bytes, op: Op, left: int | None
    ) -> list[Change]:
        """The overlay lets go of a name, or learns what the shared tier has under it now."""
        state = self._tree.directories.get(directory)
        entry = state.entries.get(name) if state is not None else None
        if state is None or entry is None:
            return []
        if entry.op is not op:
            return self._learn(entry, op, left)
        gone = left is None and entry.object is None
        going = self._core.backlog.going(directory, name) if gone else None
        if going is not None:
            # the removal of a checkpoint, held or not, that this one had not to wait for
            state.put(name, Entry(None, going, entry.shared_inode))
        elif gone:
            state.forget(name)
        else:
            state.drop(name)
        if not state.is_pending():
            state.settled = self._chores.clock() + SETTLE_SECONDS
        return []

    def _settle_staged(self, op: Op) -> None:
        """A checkpoint is made, not under its name: an older one of that name may be going."""
        state = self._tree.directories.get(op.parent)
        entry = state.entries.get(op.name) if state is not None else None
        if state is None or entry is None or entry.op is not op:
            return
        going = self._core.backlog.going(op.parent, op.name)
        if going is None:
            state.drop(op.name)
        else:
            state.put(op.name, Entry(None, going, entry.shared_inode))

    def published_elsewhere(self, directory: ObjectId, st: os.stat_result) -> None:
        """The checkpoint `directory`, staged when it was seen last, was published by another node.

        What is pending in it concerns a sealed one from now on.
        """
        core, tree = self._core, self._tree
        record = core.places.record(directory)
        name = None if record is None else unstaged_name(record.name)
        if record is None or name is None:
            return
        log.info("checkpoint %s: was published by another node", os.fsdecode(name))
        with core.journal.together():
            core.places.move(directory, record.parent, name)
            location = Location(record.parent, name, st.st_ino)
            tree.stands_at(directory, location, tagged=record.tagged)
            tree.directories[record.parent].look_again(name)
            core.journal.post(*self._save_directory(directory))
            self._ended_elsewhere(directory, record.parent)

    def _ended_elsewhere(self, directory: ObjectId, parent: ObjectId) -> None:
        core = self._core
        for op in list(core.backlog.ops_of_object(directory)):
            if op.kind is OpKind.REOPEN and op.flags not in BEGINS:
                core.drop_op(op)
        core.groups.end(directory)
        sealed_meanwhile(core, directory)
        core.groups.sealed(parent)

    def _as_it_was(self, directory: ObjectId) -> None:
        """The sealed checkpoint `directory` stands there again: what is removed in it is of that.

        Whoever asked for it while that was being done saw another file under the name.
        """
        for op in self._core.backlog.under(directory):
            if op.kind is OpKind.UNLINK and op.base_inode:
                op.base_inode = UNKNOWN_INODE
                self._core.journal.post(SaveOp(op))

    def _settle_group(self, op: Op, left: int | None, *, committed: bool) -> None:
        groups = self._core.groups
        given_up = op.kind is OpKind.REOPEN and op.flags == Reopen.GIVEN_UP
        if op.kind is not OpKind.SEAL and not given_up:
            if committed and op.kind is OpKind.RENAME and groups.patterns.profile_of(op.name):
                groups.sealed(op.parent)  # renamed into place as a whole
            return
        group = groups.get(op.object)
        if group is not None and group.seal is op:
            group.seal = None
            group.stays = given_up and not committed
        if not committed:
            return
        if given_up:
            self._as_it_was(op.object)
            self._ended_elsewhere(op.object, op.parent)
            if group is not None:
                groups.went_on(group)
            return
        groups.end(op.object)
        sealed_meanwhile(self._core, op.object)
        groups.sealed(op.parent)
        state = self._tree.directories.get(op.parent)
        entry = state.entries.get(op.name) if state is not None else None
        if state is None or entry is None or entry.object is not None:
            return
        if entry.op.object == op.object:
            return
        if any(later.kind is OpKind.TRASH for later in self._core.backlog.ops_of_object(op.object)):
            entry.shared_inode = left  # it was sealed to be removed, and is gone here
        else:
            state.drop(op.name)  # what is being removed under that name stands elsewhere now

    def _learn(self, entry: Entry, op: Op, left: int | None) -> list[Change]:
        entry.shared_inode = left
        later = entry.op
        if later.kind in (OpKind.PUT, OpKind.SYMLINK):
            later.base_inode = left  # what a restart has to know of the name
            return [SaveOp(later)]
        if left is None or later.base_inode is not None:
            return []
        if later.object not in (op.object, op.other):
            return []
        if later.kind is OpKind.RENAME and entry.object is not None:
            return []  # that is its target, not what it moves
        later.base_inode = left
        return [SaveOp(later)]


def _closed_ns(obj: LocalObject) -> int:
    """When `obj` was last closed: the order of commits says nothing of how files are used."""
    now = time.time_ns()
    return now - int((time.monotonic() - obj.flushed_at) * 1e9) if obj.flushed_at else now
