"""What a directory tree holds, in a form that two trees can be compared by."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_OURS = (".tierfs",)
_STAGING = ".staging_"

# XFS shows root its ACLs a second time, in the form in which they are on disk.
_NOT_COMPARED = ("user.tierfs.", "trusted.SGI_ACL_")


@dataclass(frozen=True, slots=True)
class Entry:
    """All that must be equal on every tier; times of directories follow a rule of their own."""

    kind: str
    mode: int
    uid: int
    gid: int
    nlink: int
    size: int
    mtime_ns: int
    content: str
    xattrs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One path on which two trees differ."""

    path: str
    left: Entry | None
    right: Entry | None

    def __str__(self) -> str:
        if self.left is None or self.right is None:
            return f"{self.path}: {'only right' if self.left is None else 'only left'}"
        parts = [
            f"{field}: {getattr(self.left, field)!r} != {getattr(self.right, field)!r}"
            for field in Entry.__slots__
            if getattr(self.left, field) != getattr(self.right, field)
        ]
        return f"{self.path}: {', '.join(parts)}"


def snapshot(root: Path | str) -> dict[str, Entry]:
    """Every entry below `root` by relative path, without fifos, sockets and what tierfs keeps."""
    found: dict[str, Entry] = {}
    base = os.fsencode(root)
    pending = [b""]
    while pending:
        directory = pending.pop()
        for name in os.listdir(os.path.join(base, directory)):
            if os.fsdecode(name) in _OURS or name.startswith(_STAGING.encode()):
                continue
            path = os.path.join(directory, name)
            entry = _entry(os.path.join(base, path))
            if entry is None:
                continue
            found[path.decode(errors="backslashreplace")] = entry
            if entry.kind == "directory":
                pending.append(path)
    return found


def _entry(path: bytes) -> Entry | None:
    st = os.lstat(path)
    content = ""
    if stat.S_ISREG(st.st_mode):
        kind, size, content = "file", st.st_size, _digest(path)
    elif stat.S_ISDIR(st.st_mode):
        kind, size = "directory", 0
    elif stat.S_ISLNK(st.st_mode):
        kind, size, content = "symlink", st.st_size, os.fsdecode(os.readlink(path))
    else:
        return None
    return Entry(
        kind,
        stat.S_IMODE(st.st_mode),
        st.st_uid,
        st.st_gid,
        0 if kind == "directory" else st.st_nlink,
        size,
        0 if kind == "directory" else st.st_mtime_ns,
        content,
        _xattrs(path),
    )


def _digest(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = os.listxattr(path, follow_symlinks=False)
    return tuple(
        (name, os.getxattr(path, name, follow_symlinks=False))
        for name in sorted(names)
        if not name.startswith(_NOT_COMPARED)
    )


def compare(left: Path | str, right: Path | str, *, ignore: Iterable[str] = ()) -> None:
    """Fail with every path on which the trees differ; `ignore` names fields of an entry."""
    differences = _differences(snapshot(left), snapshot(right), frozenset(ignore))
    assert not differences, f"{left} and {right} differ:\n" + "\n".join(map(str, differences))


def compare_snapshots(
    left: dict[str, Entry], right: dict[str, Entry], *, ignore: Iterable[str] = ()
) -> None:
    """As `compare`, of snapshots taken before."""
    differences = _differences(left, right, frozenset(ignore))
    assert not differences, "differ:\n" + "\n".join(map(str, differences))


def _differences(
    left: dict[str, Entry], right: dict[str, Entry], ignore: frozenset[str]
) -> list[Difference]:
    found = []
    for path in sorted(left.keys() | right.keys()):
        one, other = left.get(path), right.get(path)
        if one is None or other is None or _key(one, ignore) != _key(other, ignore):
            found.append(Difference(path, one, other))
    return found


def _key(entry: Entry, ignore: frozenset[str]) -> tuple[object, ...]:
    return tuple(getattr(entry, field) for field in Entry.__slots__ if field not in ignore)
