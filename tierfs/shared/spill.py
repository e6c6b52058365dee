"""Files whose content lies here before they are committed: the local tier had no room for them."""

from __future__ import annotations

import errno
import os
import stat

from tierfs.model import Name
from tierfs.osio import OS
from tierfs.shared import layout
from tierfs.shared.jobs import FileJob
from tierfs.shared.staging import Staging

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
_OF_CONTENT = (layout.XATTR_DIGEST, layout.XATTR_SHA256)
_SETID = stat.S_ISUID | stat.S_ISGID


class Spill(Staging):
    """The place for them in the staging area of this member; it outlives each start.

    `spilled_fd` is its directory, -1 before `spill_directory`; the caller closes it.
    """

    spilled_fd = -1

    def spill_directory(self) -> int:
        """Descriptor of ``.tierfs/staging/MEMBER/spilled``, made with its ``objects``. Blocks."""
        with self.member_staging() as directory:
            self.make_private(directory, layout.SPILLED)
            fd = self.system.open_at("spill.directory", directory, layout.SPILLED, _DIRECTORY)
        try:
            self.make_private(fd, layout.SPILLED_OBJECTS)
        except BaseException:
            self.system.close("spill.directory", fd)
            raise
        self.spilled_fd = fd
        return fd

    def note_failed_drive(self) -> None:
        """Durably: the journal of this member does not know what is committed from now on."""
        with self.member_staging() as directory:
            flags = os.O_WRONLY | os.O_CREAT
            name = layout.DRIVE_FAILED
            fd = self.system.open_at("spill.failed", directory, name, flags, 0o600)
            self.system.close("spill.failed", fd)
            self.system.fsync_dir("spill.failed", directory)

    def drive_had_failed(self) -> bool:
        """Whether that was noted, and not forgotten since."""
        with self.member_staging() as directory:
            names = {item.name for item in self.system.list_dir("spill.failed", directory)}
        return layout.DRIVE_FAILED in names

    def forget_failed_drive(self) -> None:
        """What the journal has missed is accounted for."""
        with self.member_staging() as directory:
            self.remove(directory, layout.DRIVE_FAILED)
            self.system.fsync_dir("spill.failed", directory)


def link_spilled(system: OS, job: FileJob, directory: int, name: Name) -> bool:
    """Give the spilled file of `job` the further name `name` in staging: it may be published.

    False: it has to be copied. That is so where links are refused, and for a setuid that no
    chmod has confirmed: it stays with the object, and is not to be committed.
    """
    assert job.spilled is not None
    if job.attributes.mode & _SETID and not job.keep_setid:
        return False
    try:
        system.link_at("put.link", *job.spilled, directory, name)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def remove_labels(system: OS, fd: int) -> None:
    """Take from a file that is to be published what an object has and it has not."""
    for name in system.list_xattr("put.labels", fd):
        if name.startswith(layout.XATTR_PREFIX) and name not in _OF_CONTENT:
            system.remove_xattr("put.labels", fd, name)
