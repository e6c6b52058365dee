"""Which errors are those of a tier that is broken, as against answers of one that works."""

from __future__ import annotations

import errno

FAILURES = frozenset(
    {
        errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EUCLEAN,
        errno.ESHUTDOWN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN,
        errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.EREMOTEIO,
    }
)  # fmt: skip
"""What a file system says that does not answer, as against one that has nothing there."""


def is_failure(error: BaseException | None) -> bool:
    """Whether a call that ended with `error` says that its tier is broken."""
    return isinstance(error, OSError) and error.errno in FAILURES


def name_of(error: BaseException) -> str:
    """The word for an error in one line: EIO and the like."""
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)
