"""Every error that tierfs raises itself, and the one total map from exception to errno.

File system calls raise `OSError` and it is passed on as it is: it carries errno and, from
:mod:`tierfs.osio`, the step of the protocol that failed.
"""

from __future__ import annotations

import errno


class TierfsError(Exception):
    """An error with a message for the user: what happened, to which path, what to do.

    Attributes:
        exit_code: what the command line exits with.
    """

    exit_code = 1


class ConfigError(TierfsError):
    """A setting is wrong; names the field, the value and the rule."""


class TierError(TierfsError):
    """A tier cannot be used: missing, overlapping, not ours, without a needed ability."""


class TierInUse(TierError):
    """Another process has the local tier.

    Attributes:
        ending: its mount is gone: it will let go of it, mostly within seconds.
    """

    def __init__(self, message: str, *, ending: bool = False) -> None:
        super().__init__(message)
        self.ending = ending


JOURNAL_LOST = "the objects beside it still hold every file under its name"
"""In what is said of a journal that is missing or damaged: a mount may begin anew."""


class JournalError(TierfsError):
    """The journal cannot be read or written; nothing may be promised any more."""


class VerifyMismatch(OSError):
    """What was read back from the shared tier differs from what was sent (G2). Retried."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "read back differs from the local content", path)


class SpilledDamaged(OSError):
    """What is on the shared tier is not what was written, and it is the only copy there is."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "the shared tier returns other content than was written", path)


class XattrsFull(OSError):
    """A file system with room takes no more xattrs of this file: nothing that is freed helps."""

    def __init__(self, name: bytes) -> None:
        super().__init__(errno.ENOSPC, "no more xattrs fit on this file", name)


class ObjectChanged(Exception):
    """The object was written while it was sent: stage it again; not an error."""


class DirectoryGone(OSError):
    """A directory of the shared tier is no longer where it was, or not the same one any more."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ESTALE, "directory was moved, replaced or removed", path)


def to_errno(error: BaseException) -> int:
    """The errno that an application sees for `error`. Total: what is not known is EIO."""
    import trio  # here, so that the command line and `import tierfs` start without it

    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, (trio.TooSlowError, TimeoutError)):
        return errno.ETIMEDOUT
    if isinstance(error, NotImplementedError):
        return errno.ENOSYS
    return errno.EIO
