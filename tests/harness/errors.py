"""Expecting an errno, the way an application meets it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fails_with(*numbers: int) -> Iterator[None]:
    """The block must raise OSError with one of these errnos."""
    wanted = "/".join(errno.errorcode[number] for number in numbers)
    met: OSError | None = None
    try:
        yield
    except OSError as error:
        met = error
    assert met is not None, f"no error instead of {wanted}"
    got = errno.errorcode.get(met.errno or 0, str(met.errno))
    assert met.errno in numbers, f"{got} instead of {wanted}: {met}"
