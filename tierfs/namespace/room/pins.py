"""Files whose local copies stay, whatever else has to go.

A pin is that of a shared inode: of a file, or of a directory, in which it holds for what is there
when it is set and for all that is committed below it later. A new version of a pinned file is
pinned, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierfs.journal import Change, DropPin, Journal, SavePin


class Pins:
    """What is pinned; all of it also in the journal. Synchronous.

    Attributes:
        bytes: of the local copies that are pinned.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._files: dict[int, int] = {}
        self._directories: set[int] = set()
        self.bytes = 0

    def load(self) -> None:
        """Takes up what the journal has. Blocking."""
        found = self._journal.pins()
        self._files = {inode: size for inode, directory, size in found if not directory}
        self._directories = {inode for inode, directory, _ in found if directory}
        self.bytes = sum(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def is_pinned(self, inode: int) -> bool:
        """Whether the copy of the shared file `inode` stays."""
        return inode in self._files

    def pin_file(self, inode: int, size: int) -> None:
        """The shared file `inode` is pinned; its local copy, if there is one, has `size` bytes."""
        self._note(inode, size)
        self._journal.post(SavePin(inode, directory=False))

    def copied(self, inode: int, size: int) -> None:
        """There is a local copy now of what is pinned, if `inode` is."""
        if inode in self._files:
            self._note(inode, size)

    def pin_directory(self, inode: int) -> None:
        """What is committed below the shared directory `inode` is pinned from now on."""
        self._directories.add(inode)
        self._journal.post(SavePin(inode, directory=True))

    def remove(self, inode: int) -> bool:
        """The file or directory `inode` is pinned no more; whether it was."""
        known = inode in self._files or inode in self._directories
        if known:
            self._journal.post(self._forget(inode))
        return known

    def committed(
        self, inode: int, size: int, *, before: int | None, directories: Iterable[int | None]
    ) -> list[Change]:
        """A file was committed as `inode`, in place of `before`, below `directories`."""
        inherits = before is not None and before in self._files
        if inherits or not self._directories.isdisjoint(directories):
            self._note(inode, size)
            return [SavePin(inode, directory=False)]
        return self.gone(inode)  # a number that was another file's

    def gone(self, inode: int) -> list[Change]:
        """The shared file `inode` is there no more."""
        return [self._forget(inode)] if inode in self._files else []

    def _note(self, inode: int, size: int) -> None:
        self.bytes += size - self._files.get(inode, 0)
        self._files[inode] = size

    def _forget(self, inode: int) -> DropPin:
        self.bytes -= self._files.pop(inode, 0)
        self._directories.discard(inode)
        return DropPin(inode)
