"""What a shared tier holds, as salvage needs it: where directories stand, and all files."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field, replace

from tierfs.groups import Patterns
from tierfs.model import Kind, ObjectId
from tierfs.shared import TRASH_PATH, Found, Place, SharedTier, unstaged_name

_CONTROL = os.path.dirname(TRASH_PATH)


@dataclass(slots=True)
class Landscape:
    """Everything on a shared tier, unsealed checkpoints included.

    Attributes:
        entries: by path from the root.
        directories: directory id → path. Of a checkpoint that is written anew the staged one.
        files: by size and mtime: what may be the same content.
    """

    entries: dict[bytes, Found] = field(default_factory=dict)
    directories: dict[ObjectId, bytes] = field(default_factory=dict)
    files: dict[tuple[int, int], list[Found]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, tier: SharedTier) -> Landscape:
        """Looks at all of `tier`. Blocks; raises OSError where anything cannot be read."""
        found = cls()
        with tier.opened(Place(b"")) as top:
            todo = [b""]
            while todo:
                base = todo.pop()
                with tier.below_at(top, base) as directory:
                    for each in tier.walk_at(directory):
                        if not _is_control(os.path.join(base, each.path)):
                            found.add(replace(each, path=os.path.join(base, each.path)))
                    staged = [
                        os.path.join(base, path)
                        for path, _, item in tier.below(directory)
                        if item.kind is Kind.DIRECTORY and unstaged_name(item.name) is not None
                    ]
                for path in staged:
                    if not _is_control(path):
                        found.add_staged(tier, path)
                        todo.append(path)
        return found

    def sealed(self, path: bytes, patterns: Patterns) -> bytes | None:
        """The checkpoint under its final name that `path` lies in; None: it lies in none."""
        names = path.split(b"/")[:-1]
        top = patterns.top(names)
        if top is None or any(unstaged_name(name) is not None for name in names[:top]):
            return None
        found = b"/".join(names[: top + 1])
        return found if found in self.entries else None

    def add(self, entry: Found) -> None:
        """Another entry; what is staged comes after what is not."""
        self.entries[entry.path] = entry
        if entry.directory_id is not None:
            self.directories[entry.directory_id] = entry.path
        if entry.kind is Kind.FILE:
            self.files[entry.size, entry.mtime_ns].append(entry)

    def add_staged(self, tier: SharedTier, path: bytes) -> None:
        """The unsealed checkpoint `path`, whose last name is ``.staging_NAME``."""
        folder, name = os.path.split(path)
        entry = tier.lookup_staged(Place(folder), name)
        if entry is not None and entry.directory_id is not None:
            self.directories[entry.directory_id] = path


def _is_control(path: bytes) -> bool:
    return path == _CONTROL or path.startswith(_CONTROL + b"/")


def shown_in_mount(path: bytes) -> bytes:
    """`path` with the names that a mount gives to unsealed checkpoints."""
    return b"/".join(unstaged_name(name) or name for name in path.split(b"/"))
