"""What becomes of each object of a local tier without a journal: decided from facts alone."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tierfs.groups import Patterns
from tierfs.local import Seen
from tierfs.mend.landscape import Landscape
from tierfs.model import ROOT, SPECIAL, Kind, Name, ObjectId
from tierfs.order.names import Role, role
from tierfs.shared import Found, staging_name
from tierfs.shared.digest import digest_kind
from tierfs.shared.layout import hidden

DOUBT_NS = 60 * 1_000_000_000
"""What was written less than this before the last sign of life may have been open for writing."""


class Fate(enum.Enum):
    """What is done with a file or symlink."""

    SAME = enum.auto()  # the shared tier has it
    COMMIT = enum.auto()
    BESIDE = enum.auto()  # kept, under another name


@dataclass(frozen=True, slots=True)
class Claim:
    """The last version of a name, as the local tier has it; `path` is where it is to stand."""

    seen: Seen
    path: bytes

    @property
    def name(self) -> Name:
        """The last component."""
        return self.path.rpartition(b"/")[2]

    @property
    def rank(self) -> tuple[int, int]:
        """Data first, then what makes a directory whole, then what leads to it (R2)."""
        kind = self.seen.attributes.kind
        roles = {Role.COMMIT: 1, Role.POINTER: 2}
        order = 3 if kind is Kind.SYMLINK else roles.get(role(self.name), 0)
        return order, self.seen.attributes.mtime_ns


@dataclass(slots=True)
class Claims:
    """The objects of a local tier, sorted out.

    Attributes:
        directories: to be made, parents first: (path, object).
        contents: files and symlinks, in the order in which they are to be committed.
        homeless: files whose directory is not there any more, or that have no label.
        earlier: versions and copies of names that have a later one.
        older: count of `earlier`, and of spilled files that are on the shared tier already.
        stubs, special: counts of what has no content here, and of what belongs to this node alone.
        last_ns: when the local tier showed its last sign of life.
    """

    directories: list[tuple[bytes, Seen]]
    contents: list[Claim]
    homeless: list[Seen]
    earlier: list[Claim]
    older: int = 0
    stubs: int = 0
    special: int = 0
    last_ns: int = 0


class _Directories:
    def __init__(self, objects: Iterable[Seen], landscape: Landscape, patterns: Patterns) -> None:
        self._local = {s.id: s for s in objects if s.attributes.kind is Kind.DIRECTORY}
        self._landscape = landscape
        self._patterns = patterns

    def path(self, directory: ObjectId | None, below: frozenset[ObjectId] = frozenset()) -> (
        bytes | None
    ):  # fmt: skip
        """Where `directory` stands, or is to stand; None: nobody knows it."""
        if directory is None or directory in below:
            return None
        if directory == ROOT:
            return b""
        if directory in self._landscape.directories:
            return self._landscape.directories[directory]
        seen = self._local.get(directory)
        if seen is None or seen.name is None:
            return None
        above = self.path(seen.parent, below | {directory})
        return None if above is None else _join(above, self._as_made(above, seen.name))

    def _as_made(self, above: bytes, name: Name) -> Name:
        """A checkpoint is made under its staging name: nobody shall take it for a whole one."""
        names = [each.removeprefix(staging_name(b"")) for each in above.split(b"/") if each]
        inside = self._patterns.top(names) is not None
        return staging_name(name) if not inside and self._patterns.profile_of(name) else name

    def missing(self) -> list[tuple[bytes, Seen]]:
        """Those that the shared tier has not, parents first."""
        found = [
            (path, seen)
            for seen in self._local.values()
            if seen.id not in self._landscape.directories
            and (path := self.path(seen.id)) is not None
        ]
        return sorted(found, key=lambda each: each[0].count(b"/"))


def sort_out(objects: list[Seen], landscape: Landscape, patterns: Patterns) -> Claims:
    """Which object is the last version of which name."""
    directories = _Directories(objects, landscape, patterns)
    claims = Claims(directories.missing(), [], [], [])
    last: dict[bytes, Seen] = {}
    for seen in sorted(objects, key=lambda each: each.attributes.ctime_ns):
        kind = seen.attributes.kind
        claims.last_ns = max(claims.last_ns, seen.attributes.ctime_ns)
        if kind is Kind.DIRECTORY:
            continue
        if kind in SPECIAL or kind is Kind.OTHER:
            claims.special += 1
        elif seen.is_stub:
            claims.stubs += 1
        elif seen.name is None and seen.attributes.nlink > 1:
            claims.older += 1  # spilled, and its file has its final name
        elif (
            seen.name is None
            or (folder := directories.path(seen.parent)) is None
            or hidden(folder, seen.name)  # no mount gives such a name: the label is damaged
        ):
            claims.homeless.append(seen)
        else:
            path = _join(folder, seen.name)
            if path in last:
                claims.older += 1
                claims.earlier.append(Claim(last[path], path))
            last[path] = seen
    claims.contents = [Claim(seen, path) for path, seen in last.items()]
    claims.contents.sort(key=lambda claim: claim.rank)
    return claims


def judge_file(
    seen: Seen, here: Found | None, alike: Iterable[Found], digest: Callable[[str], str],
    doubtful_from_ns: int,
) -> tuple[Fate, str]:  # fmt: skip
    """What becomes of a file, and why.

    `here`: what stands under its name; `alike`: shared files of its size and mtime; `digest`: that
    of its content, of a given kind; what was written since `doubtful_from_ns` is doubtful.
    """
    mine = seen.attributes
    for other in alike:
        if _is_same(other, here, digest):
            return Fate.SAME, f"the shared tier has it as {other.path.decode(errors='replace')}"
    if here is not None:
        if here.kind is not Kind.FILE:
            return Fate.BESIDE, f"conflict: the shared tier has a {here.kind} of that name"
        if here.size != mine.size:
            return Fate.BESIDE, (
                f"conflict: the shared tier has {here.size} bytes, this has {mine.size}"
            )
        if here.mtime_ns >= mine.mtime_ns:
            return Fate.BESIDE, "conflict: the shared tier has another content that is not older"
    if mine.mtime_ns >= doubtful_from_ns:
        return Fate.BESIDE, "doubtful: it may have been open for writing at the end"
    return Fate.COMMIT, "newer than on the shared tier" if here is not None else "missing there"


def _is_same(other: Found, here: Found | None, digest: Callable[[str], str]) -> bool:
    if other.digest is None:
        return other is here
    try:
        return digest(digest_kind(other.digest)) == other.digest
    except ValueError:  # of a later version: it cannot be compared
        return False


def _join(folder: bytes, name: Name) -> bytes:
    return folder + b"/" + name if folder else name
