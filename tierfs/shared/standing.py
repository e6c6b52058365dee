"""Whether the directory of the shared tier still is the shared tier.

Its root is held open, so nothing is ever written into a bare mount point or into what was mounted
over it. But what is held open keeps an unmounted file system alive and would never find the next
one: when the path leads elsewhere, the descriptors let go of it, every call fails, and when the
tier is found under the path again, they lead there again. Their numbers stay what they are.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from tierfs.errors import TierError
from tierfs.shared import layout
from tierfs.shared.registration import Registration
from tierfs.shared.spill import Spill

log = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})


class Standing(Registration, Spill):
    """Blocking calls.

    Attributes:
        companions: called with False when the descriptors have let go of the tier, with True when
            they lead to it again.
        join: makes a tier that was absent at the start known to this member; TierError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.companions: list[Callable[[bool], None]] = []
        self.join: Callable[[], None] | None = None
        absent: int | None = kwargs.get("absent")
        self._inode = self.root_inode if absent is None else absent
        if absent is not None:
            self.shared_id = self.expected_id
        self._turning = threading.Lock()

    @property
    def inode(self) -> int:
        """The inode that the root has, also while it does not answer."""
        return self._inode

    def beat(self) -> os.statvfs_result:
        """Something small that the tier has to answer itself: its space, and its root opened.

        OSError(ENODEV) while the path does not lead to the tier.
        """
        fd = self._open_path()
        try:
            if self.lost is None and self._is_held(fd):
                return self.system.statvfs("beat.statvfs", fd)
            if not self._is_tier(fd):
                self._lose(
                    f"{self.root} is not the shared tier any more, perhaps an empty mount point: "
                    f"mount the tier there; nothing is written meanwhile"
                )
            with self._turning:
                self._take_up(fd)
            return self.system.statvfs("beat.statvfs", fd)
        finally:
            self.system.close("beat.close", fd)

    def _open_path(self) -> int:
        try:
            return self.system.open_root("beat.open", str(self.root))
        except OSError as error:
            if error.errno in _NOT_THERE:
                self._lose(f"{self.root} is gone: mount the shared tier there again")
            raise

    def _is_held(self, fd: int) -> bool:
        """Whether `fd` is the directory that is held open, on the same mount."""
        try:
            ours, there = (self.system.fstat("beat.stat", each) for each in (self.root_fd, fd))
            return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) and (
                self.system.mount_id("beat.mount", self.root_fd)
                == self.system.mount_id("beat.mount", fd)
            )
        except OSError:
            return False  # its file system is dead: is there another one?

    def _is_tier(self, fd: int) -> bool:
        if self.system.fstat("beat.stat", fd).st_ino != self._inode:
            return False
        try:
            return self.id_below(fd) == self.shared_id
        except TierError:
            return False

    def _lose(self, reason: str) -> None:
        with self._turning:
            if self.lost is None:
                self.lost = reason
                log.error("%s", reason)
                self._let_go()
        raise self.missing()

    def _let_go(self) -> None:
        nothing = self.system.open_nothing("beat.nothing")
        try:
            for held in self._held():
                self.system.replace("beat.replace", nothing, held)
        finally:
            self.system.close("beat.close", nothing)
        for companion in self.companions:
            companion(False)

    def _take_up(self, fd: int) -> None:
        """The tier is at `fd`: every descriptor leads there from now on.

        It stays lost to all other threads until the last one does.
        """
        self._taking_up = threading.get_ident()
        try:
            self.system.replace("beat.replace", fd, self.root_fd)
            if self.join is not None:
                self.join()
                self.join = None
            else:
                self._reopen(fd)
            for companion in self.companions:
                companion(True)
            self.lost = None
        except TierError as error:
            self.lost = str(error)
            raise self.missing() from None
        except BaseException:
            self.lost = self.lost or f"{self.root}: its staging area cannot be opened"
            raise
        finally:
            if self.join is not None:
                self.leave_generation()  # the next attempt makes its own
            self._taking_up = 0
        log.warning("%s is the shared tier again", self.root)

    def _reopen(self, fd: int) -> None:
        with self.member_staging() as directory:
            self.make_private(directory, self.generation)
        for held, path in self._held().items():
            if path:
                there = self.system.open_beneath("beat.staging", fd, path, _DIRECTORY)
                self.system.replace("beat.replace", there, held)
                self.system.close("beat.close", there)

    def _held(self) -> dict[int, bytes]:
        """The descriptors that are held open, and where each leads below the root."""
        member = b"/".join((layout.CONTROL, layout.STAGING, self.member.encode()))
        held = {self.root_fd: b""}
        if self.staging_fd >= 0:
            held[self.staging_fd] = b"/".join((member, self.generation))
        if self.spilled_fd >= 0:
            held[self.spilled_fd] = b"/".join((member, layout.SPILLED))
        return held
