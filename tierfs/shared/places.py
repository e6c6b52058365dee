"""Where the directories stand on the shared tier now. Pure; shared by write-back and namespace."""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.errors import DirectoryGone
from tierfs.model import ROOT, TRASH, DirectoryRecord, Name, ObjectId
from tierfs.shared import layout


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the shared tier, as a caller believes it to be.

    Attributes:
        path: from the root of the tier, without a leading slash; b"" is the root.
        inode: the inode it must have; None: any.
        id: what its xattr ``user.tierfs.id`` must say; None: not looked at.
    """

    path: bytes
    inode: int | None = None
    id: ObjectId | None = None


class Places:
    """The shared tree: directory id → (parent id, name, inode).

    It changes when an op is committed, not when it is issued. The root and the trash are always
    there; the trash is made when something is moved into it.
    """

    def __init__(self, root_inode: int) -> None:
        self._records = {
            ROOT: DirectoryRecord(ROOT, ROOT, b"", root_inode),
            TRASH: DirectoryRecord(TRASH, ROOT, layout.TRASH_PATH),
        }

    def record(self, directory: ObjectId) -> DirectoryRecord | None:
        """What is known of `directory`."""
        return self._records.get(directory)

    def at_inode(self, inode: int) -> DirectoryRecord | None:
        """The known directory that is `inode`; looks at all of them."""
        return next((each for each in self._records.values() if each.inode == inode), None)

    def exists(self, directory: ObjectId) -> bool:
        """Whether `directory` stands on the shared tier: its MKDIR, if it had one, is committed."""
        record = self._records.get(directory)
        return directory == TRASH or (record is not None and record.inode is not None)

    def path(self, directory: ObjectId) -> bytes:
        """The path of `directory` from the root; that of one to be made is where it will be.

        Raises DirectoryGone where it, or one above it, is not known.
        """
        names: list[Name] = []
        current = directory
        while current != ROOT:
            record = self._records.get(current)
            if record is None:
                raise DirectoryGone(f"directory {directory:016x}")
            names.append(record.name)
            current = record.parent
        return b"/".join(reversed(names))

    def place(self, directory: ObjectId) -> Place:
        """What :class:`SharedTier` needs to find `directory`, and to know that it is the one.

        Raises DirectoryGone.
        """
        path = self.path(directory)
        record = self._records[directory]
        return Place(path, record.inode, directory if record.tagged else record.tag)

    def add(self, record: DirectoryRecord) -> None:
        """Make a directory known; its parent need not be known yet."""
        self._records[record.id] = record

    def move(self, directory: ObjectId, parent: ObjectId, name: Name) -> None:
        """A rename was committed: `directory` is (parent, name) now.

        Raises ValueError if `parent` lies in `directory`.
        """
        current = parent
        while current != ROOT:
            if current == directory:
                raise ValueError(f"directory {directory:016x} cannot be moved into itself")
            current = self._records[current].parent
        record = self._records[directory]
        record.parent, record.name = parent, name

    def carrying(self, id: ObjectId) -> list[DirectoryRecord]:
        """The known directories that have `id` on the shared tier; looks at all of them.

        Mostly one: but who moves a directory out of the next generation of a checkpoint leaves
        that of the sealed one there, with the same id.
        """
        own = self._records.get(id)
        others = [each for each in self._records.values() if each.tag == id and each is not own]
        return others if own is None else [own, *others]

    def group(self, directory: ObjectId) -> ObjectId:
        """The id under which all nodes know the checkpoint `directory`: that which it carries."""
        record = self._records.get(directory)
        return directory if record is None or record.tag is None else record.tag

    def made(
        self, directory: ObjectId, inode: int, tagged: bool, tag: ObjectId | None = None
    ) -> None:
        """The MKDIR of `directory` was committed, or the one found there, with `tag`, adopted."""
        record = self._records[directory]
        record.inode, record.tagged, record.tag = inode, tagged, tag

    def forget(self, directory: ObjectId) -> None:
        """`directory` is gone, or nothing pending needs it any more. Root and trash stay."""
        if directory not in (ROOT, TRASH):
            self._records.pop(directory, None)
