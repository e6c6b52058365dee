"""Finding directories beneath the root, and knowing that they are the meant ones."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tierfs.errors import DirectoryGone, TierError
from tierfs.model import Name
from tierfs.osio import OS
from tierfs.shared import layout
from tierfs.shared.bandwidth import Bandwidth
from tierfs.shared.jobs import SharedSettings
from tierfs.shared.places import Place
from tierfs.threads import Pool

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})


class Tree:
    """The root of the shared tier, held open: what is mounted over it later is never written to.

    Attributes:
        shared_threads: make the blocking calls on names.
        transfer_threads: send data.
        lost: why the path of the tier does not lead to it any more, None while it does (see
            `Standing`).
        small_threads: send files of one block; None: those of the others.
        bandwidth: what all that is sent may take of the shared tier.
    """

    def __init__(
        self,
        root: Path,
        member: str,
        system: OS,
        settings: SharedSettings,
        *,
        shared_threads: Pool,
        transfer_threads: Pool,
        small_threads: Pool | None = None,
        expected_id: str | None = None,
        absent: int | None = None,
    ) -> None:
        """Open `root` and nothing else; `expected_id` is the id it had at the last mount.

        `absent`: its inode then; it is not opened now, but by `Standing.beat` once it answers.

        Raises TierError.
        """
        self.root = root
        self.member = member
        self.system = system
        self.settings = settings
        self.shared_threads = shared_threads
        self.transfer_threads = transfer_threads
        self.small_threads = small_threads or transfer_threads
        self.bandwidth = Bandwidth()
        self.expected_id = expected_id
        self.lost = None if absent is None else f"{root} does not answer since the start"
        self._taking_up = 0
        if absent is None:
            self.root_fd = open_root(root, system)
        else:
            self.root_fd = system.open_nothing("tier.open")

    def close(self) -> None:
        """Let go of the root."""
        self.system.close("tier.close", self.root_fd)

    @property
    def root_inode(self) -> int:
        """The inode of the root: blocking."""
        return self.system.fstat("tier.stat", self.root_fd).st_ino

    @contextmanager
    def opened(self, place: Place) -> Iterator[int]:
        """A descriptor of the directory `place`, surely the meant one.

        It is opened for reading, not O_PATH: on NFS only that makes the client ask the server
        what is in it. Raises DirectoryGone.
        """
        fd = self._open(place)
        try:
            self._check(place, fd)
            yield fd
        finally:
            self.system.close("place.close", fd)

    def missing(self) -> OSError:
        """The error of every call while the tier is lost."""
        return OSError(errno.ENODEV, self.lost or "not lost", str(self.root))

    def guard(self) -> None:
        """Raise OSError(ENODEV) while the path of the tier leads elsewhere.

        Not to the thread that is taking it up again: everybody else waits for the end of that.
        """
        if self.lost is not None and threading.get_ident() != self._taking_up:
            raise self.missing()

    def _open(self, place: Place) -> int:
        self.guard()
        try:
            return self.system.open_beneath("place.open", self.root_fd, place.path, _DIRECTORY)
        except OSError as error:
            if error.errno in _NOT_THERE:
                self.guard()  # the root leads nowhere, perhaps: that says nothing of its names
                raise DirectoryGone(self.shown(place)) from error
            raise

    def _check(self, place: Place, fd: int) -> None:
        if place.inode is not None:
            inode = self.system.fstat("place.stat", fd).st_ino
            if inode != place.inode:
                raise DirectoryGone(self.shown(place))
        if place.id is not None and self.tag(fd) != layout.encode_id(place.id):
            raise DirectoryGone(self.shown(place))

    def tag(self, fd: int) -> bytes:
        """The value of ``user.tierfs.id``; b"" where there is none."""
        try:
            return self.system.get_xattr("place.id", fd, layout.XATTR_ID)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return b""
            raise

    def shown(self, place: Place, name: Name = b"") -> str:
        """The full path of an entry, for messages."""
        return os.fsdecode(os.path.join(os.fsencode(self.root), place.path, name)).rstrip("/")

    def visible(self, place: Place, name: Name) -> None:
        """Raise FileNotFoundError for a name that is tierfs' own."""
        if layout.hidden(place.path, name):
            raise FileNotFoundError(errno.ENOENT, "reserved by tierfs", self.shown(place, name))

    def permitted(self, place: Place, name: Name) -> None:
        """As `visible`, but `name` may be a directory that is an unsealed or a removed checkpoint:
        ``.staging_NAME``.
        """
        if layout.private(place.path, name):
            raise FileNotFoundError(errno.ENOENT, "reserved by tierfs", self.shown(place, name))


def open_root(root: Path, system: OS) -> int:
    """Open the directory of the shared tier. Raises TierError."""
    try:
        return system.open_root("tier.open", str(root))
    except FileNotFoundError:
        raise TierError(f"shared tier {root} does not exist: mount or create it") from None
    except NotADirectoryError:
        raise TierError(f"shared tier {root} is not a directory: give one") from None
    except OSError as error:
        raise TierError(f"shared tier {root} cannot be opened: {error.strerror}") from None
