"""The objects of a local tier as they lie there: looked at without its lock, never changed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tierfs.errors import TierError
from tierfs.local import labels, small_files
from tierfs.local.fanout import FanOut, file_name
from tierfs.local.identity import MEMBER
from tierfs.model import Attributes, Kind, Name, ObjectId
from tierfs.osio import OS

_MEMBER_ID = re.compile(rb"[0-9a-f]{32}\n")
_FLAGS = os.O_RDONLY | os.O_NOATIME
_TARGET_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """One object and what its labels say.

    Attributes:
        parent, name: the last name given to it; None where the label is missing or damaged.
        is_stub: its content is not here.
    """

    id: ObjectId
    attributes: Attributes
    parent: ObjectId | None
    name: Name | None
    is_stub: bool


class Survey:
    """Reads a local tier that a daemon may have mounted. All methods block and raise OSError.

    Attributes:
        member: the id of the local tier.
    """

    def __init__(self, path: Path, system: OS) -> None:
        """Raises TierError if `path` is no local tier."""
        self._system = system
        self._path = path
        with contextlib.ExitStack() as stack:
            try:
                root = system.open_root("survey.open", os.fspath(path))
                stack.callback(system.close, "survey.close", root)
                member = small_files.read(system, root, MEMBER) or b""
                if not _MEMBER_ID.fullmatch(member):
                    raise TierError(
                        f"{path}: no local tier of tierfs (no MEMBER file): name the directory "
                        "that was given to the mount as --local"
                    )
                self._fan = FanOut(system, root, read_only=True)
            except OSError as error:
                raise TierError(
                    f"local tier {path}: {error.strerror}: name a directory that exists and that "
                    "you may read (as root)"
                ) from error
        self.member = member.strip().decode()
        self._far: FanOut | None = None
        self._spilled: set[ObjectId] = set()

    def attach(self, root: int) -> None:
        """`root`, which is taken over, holds the objects that were spilled to the shared tier.

        One that was just being moved there is still whole here.
        """
        try:
            self._far = FanOut(self._system, root, read_only=True)
        finally:
            self._system.close("survey.close", root)
        for object_id in self._far.ids():
            self._spilled.add(object_id)
            with self.opened(object_id) as fd:
                if labels.get(self._system, fd, labels.STUB) is not None:
                    self._spilled.discard(object_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._fan.close()
        if self._far is not None:
            self._far.close()

    def objects(self) -> Iterator[Seen]:
        """Every object; one that is made or removed meanwhile may be missing."""
        for object_id in list(dict.fromkeys((*self._spilled, *self._fan.ids()))):
            try:
                with self.opened(object_id) as fd:
                    yield self._seen(object_id, fd)
            except FileNotFoundError:
                continue

    @contextlib.contextmanager
    def opened(self, object_id: ObjectId) -> Iterator[int]:
        """A descriptor of the object, for reading."""
        fan = self._far if object_id in self._spilled and self._far is not None else self._fan
        directory = fan.directory(object_id)
        fd = self._system.open_at("survey.open", directory, file_name(object_id), _FLAGS)
        try:
            yield fd
        finally:
            self._system.close("survey.close", fd)

    def xattrs(self, fd: int) -> dict[bytes, bytes]:
        """The application's xattrs of the object `fd`."""
        found = {}
        for name in self._system.list_xattr("survey.xattrs", fd):
            value = labels.get(self._system, fd, name)
            if value is not None and not name.startswith(labels.UNLISTED):
                found[name] = value
        return found

    def target(self, object_id: ObjectId) -> bytes:
        """The target of a SYMLINK."""
        with self.opened(object_id) as fd:
            return self._system.pread("survey.target", fd, _TARGET_BYTES, 0)

    def shown(self, object_id: ObjectId) -> str:
        """The path of the object's file, for people."""
        name = file_name(object_id).decode()
        return os.path.join(self._path, "objects", name[-2:], name)

    def _seen(self, object_id: ObjectId, fd: int) -> Seen:
        """Where a label makes no sense the object is a file without a name: it is kept."""
        attributes = Attributes.of(self._system.fstat("survey.stat", fd))
        parent, name = None, None
        with contextlib.suppress(ValueError):
            if attributes.kind is Kind.FILE:
                attributes = replace(attributes, kind=self._kind(fd))
            parent, name = labels.parse_name(labels.get(self._system, fd, labels.NAME) or b"")
        is_stub = labels.get(self._system, fd, labels.STUB) is not None
        return Seen(object_id, attributes, parent, name, is_stub)

    def _kind(self, fd: int) -> Kind:
        """What a regular file stands for; ValueError if it cannot be that."""
        kind = labels.kind_of(self._system, fd)
        if kind is Kind.SYMLINK:
            target = self._system.pread("survey.target", fd, _TARGET_BYTES, 0)
            if not 0 < len(target) < _TARGET_BYTES or b"\0" in target:
                raise ValueError(f"no symlink leads to {target!r}")
        return kind
