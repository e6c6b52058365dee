"""Which request of the kernel a handler is carrying out.

A worker that died may have carried out a request and not answered it: the kernel then asks the next
one again. What changes names is therefore journaled with the request's number, and a request that
is found there is answered as the first time (KERNEL_PATH.md, "A daemon that can be killed").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A request that changes names.

    Attributes:
        unique: the kernel's number.
        done: an earlier worker has carried it out.
    """

    unique: int
    done: bool


_current: ContextVar[Request | None] = ContextVar("request", default=None)


def current() -> Request | None:
    """The request that this task is carrying out, None if it is none that is to be journaled."""
    return _current.get()


@contextmanager
def carrying_out(request: Request | None) -> Iterator[Request | None]:
    """What this task does inside belongs to `request`."""
    token = _current.set(request)
    try:
        yield request
    finally:
        _current.reset(token)
