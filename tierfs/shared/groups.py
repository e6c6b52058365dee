"""The state of a checkpoint on the shared tier: numbered records that any node can read."""

from __future__ import annotations

import enum
import errno
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tierfs.model import Name, ObjectId
from tierfs.shared import layout
from tierfs.shared.control import ControlFiles
from tierfs.shared.places import Place
from tierfs.shared.walk import Incarnation

FORMAT = 1


class GroupState(enum.StrEnum):
    """Where a checkpoint stands; it goes to the next one, and from SEALED and BROKEN to OPEN."""

    OPEN = "open"  # being written
    BROKEN = "broken"  # it was being written, and files of it cannot be committed
    SEALING = "sealing"  # its rename is made now: whoever finds it half done goes on
    SEALED = "sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What stood under the final name when a seal began.

    Attributes:
        trash: its name in the trash; None: nobody removed it, so it goes to quarantine.
        first: it is taken away before the new one gets the name: the file system cannot exchange.
    """

    inode: int
    trash: Name | None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """`files` were there when another member began to write, and whether `members` live was not
    known then: if one of them does they count, else they were left behind.
    """

    members: frozenset[str]
    files: frozenset[Incarnation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One state record.

    Attributes:
        inode: of the directory of this generation.
        path: the final name, from the root of the tier, when the record was made.
        stale: files of an earlier generation that dead writers left in it.
        doubtful: of OPEN and BROKEN: what may have to count as stale.
        replaces: of SEALING.
        members: of OPEN and BROKEN: the members that take part in this generation.
        why, files: of BROKEN: for people, and the paths in it of what cannot be committed.
        number, member, time_ns: which record this is, who made it, and when.
    """

    state: GroupState
    inode: int
    path: bytes
    generation: int = 1
    stale: frozenset[Incarnation] = frozenset()
    doubtful: tuple[Left, ...] = ()
    replaces: Replaced | None = None
    members: frozenset[str] = frozenset()
    why: str = ""
    files: tuple[bytes, ...] = ()
    number: int = 0
    member: str = ""
    time_ns: int = 0

    @property
    def broken(self) -> str:
        """Why it is not whole and will not be by itself, for people; "" unless BROKEN."""
        if self.state is not GroupState.BROKEN:
            return ""
        return f"cannot be committed: {self.why} (said by member {self.member[:8]})"

    @property
    def is_unsealed(self) -> bool:
        """Whether its generation is being written, or was and is broken."""
        return self.state in (GroupState.OPEN, GroupState.BROKEN)

    @property
    def writers(self) -> frozenset[str]:
        """The members that take part in a generation that is not sealed."""
        return self.members or frozenset([self.member])

    def says_the_same(self, other: Record) -> bool:
        """Whether they differ at most in who made them, and when."""
        return replace(self, number=0, member="", time_ns=0) == replace(
            other, number=0, member="", time_ns=0
        )


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """One file of a sealed checkpoint; `mode` without the type bits."""

    path: bytes
    size: int
    mode: int
    digest: str | None


class Records(ControlFiles):
    """Reads and writes ``.tierfs/groups``; all calls block.

    A file there that cannot be understood raises OSError(EINVAL): another version of tierfs wrote
    it, and nothing is done to that checkpoint.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._writing_manifest = threading.RLock()

    def group_records(self, group: ObjectId) -> list[Record]:
        """The state records of `group`, oldest first; those before the last seal are not kept."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                found = [self._record(directory, number) for number in self._numbers(directory)]
                return [record for record in found if record is not None]
        except FileNotFoundError:
            return []

    def last_record(self, group: ObjectId) -> Record | None:
        """The state of `group` now; None: it was never written through tierfs, or is removed."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                return self._last(directory)
        except FileNotFoundError:
            return None

    def note_broken(self, group: ObjectId, why: str, files: Iterable[bytes]) -> None:
        """Say to every node that `files` of the unsealed `group` cannot be committed, and why.

        With no `files`: this member said so, and it is no longer so. Raises BlockingIOError when
        another node changed the state at this moment.
        """
        last, broken = self.last_record(group), tuple(sorted(files))
        if last is None or not last.is_unsealed:
            return
        if not broken and (last.state is GroupState.OPEN or last.member != self.member):
            return
        state = GroupState.BROKEN if broken else GroupState.OPEN
        record = replace(last, state=state, why=why if broken else "", files=broken)
        self.advance(group, record, after=last.number)

    def advance(self, group: ObjectId, record: Record, *, after: int | None = None) -> Record:
        """Make `record` the state of `group`, unless it is already; with its number.

        Raises BlockingIOError when another node did the same at this moment, or the last record is
        not number `after` any more: look again.
        """
        with self.control(layout.GROUPS, layout.encode_id(group), make=True) as directory:
            last = self._last(directory)
            if last is not None and last.says_the_same(record):
                return last
            number = last.number if last is not None else 0
            if after not in (None, number):
                raise _changed_elsewhere(record)
            record = replace(record, number=number + 1, member=self.member, time_ns=time.time_ns())
            name = layout.record_name(record.number)
            try:
                self.write_whole("record", directory, name, _encode(record), exclusive=True)
                late = self._numbers(directory)[-1] > record.number
                if late:  # the number was free because a seal elsewhere had made it needless
                    self.remove(directory, name)
            except FileExistsError:
                late = True
            if late:
                raise _changed_elsewhere(record)
            if record.state is GroupState.SEALED:
                self._prune(directory, record.number)
        return record

    def write_manifest(
        self, group: ObjectId, lines: Iterable[ManifestLine], inode: int | None
    ) -> None:
        """Say which files the generation of `group` that is sealed next consists of.

        `inode` is that of its directory: it may not come to be sealed.
        """
        data = _encode_manifest(group, lines, inode)
        with (
            self._writing_manifest,
            self.control(layout.GROUPS, layout.encode_id(group), make=True) as directory,
        ):
            self.write_whole("manifest", directory, layout.MANIFEST, data, exclusive=False)

    def strike(self, group: ObjectId, path: bytes) -> None:
        """`path`, with all that is below it, is about to go from the sealed `group`, or to change.

        Its manifest has it no more, so nobody takes it for lost or damaged.
        """
        with self._writing_manifest:
            try:
                lines = self.manifest(group) or []
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return  # that of another version says nothing to this one
            left = [line for line in lines if not (line.path + b"/").startswith(path + b"/")]
            if len(left) < len(lines):
                self.write_manifest(group, left, self.manifest_inode(group))

    def manifest(self, group: ObjectId) -> list[ManifestLine] | None:
        """The files of `group` when it was last sealed; None: it has no manifest."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                data = self.read_whole("manifest", directory, layout.MANIFEST)
                if data is None:
                    return None
                with _understood(self.shown_group(group, layout.MANIFEST)):
                    return _decode_manifest(group, data)
        except FileNotFoundError:
            return None

    def manifest_inode(self, group: ObjectId) -> int | None:
        """The directory that the manifest of `group` is about; None: it does not say."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                data = self.read_whole("manifest", directory, layout.MANIFEST)
            return int(json.loads((data or b"").splitlines()[0])["inode"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None

    def shown_group(self, group: ObjectId, name: Name = b"") -> str:
        """The full path of what is kept of `group`, for messages."""
        path = b"/".join((layout.CONTROL, layout.GROUPS, layout.encode_id(group)))
        return self.shown(Place(path), name)

    def write_linked(self, group: ObjectId, generation: int, files: Iterable[Incarnation]) -> None:
        """Say which files of `generation` the next one has, or leaves out because a user did."""
        with self.control(layout.GROUPS, layout.encode_id(group), make=True) as directory:
            data = json.dumps({"format": FORMAT, "files": sorted(files)}).encode() + b"\n"
            name = layout.linked_name(generation)
            self.write_whole("linked", directory, name, data, exclusive=False)

    def read_linked(self, group: ObjectId, generation: int) -> frozenset[Incarnation]:
        """What `write_linked` said; empty where it said nothing."""
        name = layout.linked_name(generation)
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                data = self.read_whole("linked", directory, name)
        except FileNotFoundError:
            data = None
        if data is None:
            return frozenset()
        with _understood(self.shown_group(group, name)):
            return _incarnations(_of_this_format(json.loads(data))["files"])

    def forget_linked(self, group: ObjectId, generation: int) -> None:
        """The list of `generation` is not needed any more; none being there is fine."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                self.remove(directory, layout.linked_name(generation))
        except FileNotFoundError:
            return

    def _numbers(self, directory: int) -> list[int]:
        names = (item.name for item in self.system.list_dir("record.list", directory))
        return sorted(number for name in names if (number := layout.record_number(name)))

    def _last(self, directory: int) -> Record | None:
        while numbers := self._numbers(directory):
            record = self._record(directory, numbers[-1])
            if record is not None:
                return record
        return None

    def _record(self, directory: int, number: int) -> Record | None:
        """None: a seal elsewhere has made it needless."""
        name = layout.record_name(number)
        data = self.read_whole("record", directory, name)
        if data is None:
            return None
        with _understood(os.fsdecode(name)):
            return _decode(json.loads(data), number)

    def _prune(self, directory: int, number: int) -> None:
        for item in list(self.system.list_dir("record.list", directory)):
            if layout.is_writer(item.name):
                self.remove(directory, item.name)
        for old in self._numbers(directory):
            if old < number:
                self.remove(directory, layout.record_name(old))


def _changed_elsewhere(record: Record) -> BlockingIOError:
    message = "another node changes the checkpoint at this moment"
    return BlockingIOError(errno.EAGAIN, message, os.fsdecode(record.path))


def _encode(record: Record) -> bytes:
    values: dict[str, object] = {
        "format": FORMAT,
        "state": record.state.value,
        "generation": record.generation,
        "inode": record.inode,
        "path": os.fsdecode(record.path),
        "member": record.member,
        "time_ns": record.time_ns,
    }
    if record.stale:
        values["stale"] = sorted(record.stale)
    if record.doubtful:
        values["doubtful"] = [
            {"members": sorted(left.members), "files": sorted(left.files)}
            for left in record.doubtful
        ]
    if record.is_unsealed:
        values["members"] = sorted(record.members)
    if record.state is GroupState.BROKEN:
        values["why"] = record.why
        values["files"] = [os.fsdecode(path) for path in record.files]
    if record.replaces is not None:
        trash = record.replaces.trash
        values["replaces"] = {
            "inode": record.replaces.inode,
            "trash": None if trash is None else trash.decode(),
            "first": record.replaces.first,
        }
    return json.dumps(values, indent=1).encode() + b"\n"


def _decode(values: dict[str, Any], number: int) -> Record:
    found = _of_this_format(values).get("replaces")
    replaces = None
    if found is not None:
        trash = None if found["trash"] is None else found["trash"].encode()
        replaces = Replaced(inode=int(found["inode"]), trash=trash, first=bool(found["first"]))
    return Record(
        state=GroupState(values["state"]),
        inode=int(values["inode"]),
        path=os.fsencode(values["path"]),
        generation=int(values["generation"]),
        stale=_incarnations(values.get("stale", ())),
        doubtful=tuple(
            Left(frozenset(map(str, left["members"])), _incarnations(left["files"]))
            for left in values.get("doubtful", ())
        ),
        replaces=replaces,
        members=frozenset(map(str, values.get("members", ()))),
        why=str(values.get("why", "")),
        files=tuple(os.fsencode(path) for path in values.get("files", ())),
        number=number,
        member=str(values["member"]),
        time_ns=int(values["time_ns"]),
    )


def _encode_manifest(group: ObjectId, lines: Iterable[ManifestLine], inode: int | None) -> bytes:
    lines = list(lines)
    head: dict[str, object] = {"format": FORMAT, "group": layout.encode_id(group).decode()}
    head["files"] = len(lines)
    if inode is not None:
        head["inode"] = inode
    text = [json.dumps(head)]
    for line in lines:
        path, mode = os.fsdecode(line.path), f"{line.mode:04o}"
        values = {"path": path, "size": line.size, "mode": mode, "digest": line.digest}
        text.append(json.dumps(values))
    return "\n".join([*text, ""]).encode()


def _decode_manifest(group: ObjectId, data: bytes) -> list[ManifestLine]:
    """ValueError where it is of another format or another checkpoint, or was cut off."""
    head, *lines = [json.loads(line) for line in data.splitlines()]
    _of_this_format(head)
    of_group = head["group"] == layout.encode_id(group).decode()
    if not of_group or head.get("files", len(lines)) != len(lines) or data[-1:] != b"\n":
        raise ValueError(head)
    return [
        ManifestLine(
            os.fsencode(line["path"]), int(line["size"]), int(line["mode"], 8), line["digest"]
        )
        for line in lines
    ]


def _incarnations(values: Iterable[list[int]]) -> frozenset[Incarnation]:
    return frozenset((int(inode), int(born_ns)) for inode, born_ns in values)


def _of_this_format(values: dict[str, Any]) -> dict[str, Any]:
    if values["format"] != FORMAT:
        raise ValueError(values["format"])
    return values


@contextmanager
def _understood(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = "damaged, or not of this version of tierfs: use the version that wrote it"
        raise OSError(errno.EINVAL, message, path) from error
